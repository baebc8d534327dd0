"""A user's script: `launched.py EXECUTOR MODEL DRAFT [--on]` prints token ids as one line; with --on it never ends."""

import json
import sys

from slipstream import LLM, SamplingParams

PROMPTS = ["the quick brown fox", "def main() -> None:"]
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0, seed=7)


def main(executor: str, model: str, draft: str, *, on: bool) -> None:
    llm = LLM(model, draft=draft, device="cpu", tp=2, draft_tp=1, executor=executor, watchdog_s=10)
    found = {}
    for draft_tp in ("1", "replicated"):
        llm.reconfigure(draft_tp=draft_tp)
        for name, params in (("greedy", GREEDY), ("sampled", SAMPLED)):
            found[f"{draft_tp} {name}"] = [each.token_ids for each in llm.generate(PROMPTS, params)]
    print(json.dumps(found), flush=True)
    while on:
        llm.generate(PROMPTS, GREEDY)
    llm.close()


if __name__ == "__main__":
    main(*sys.argv[1:4], on="--on" in sys.argv)

"""The default model and its shipped draft: ids equal plain decoding's and transformers', greedy and sampled.

Prints what it measures; results belong in benchmarks/. A mismatch is excused only where the target's two best tokens
lie closer than NEAR_TIE, and is listed.
"""

from collections.abc import Iterator, Sequence

import pytest
import torch

from slipstream import LLM, SamplingParams
from slipstream.serve.completion import Completion
from slipstream.text.prompts import PromptEntry
from slipstream.weights.gguf import GgufSource
from slipstream.weights.store import resolve_model
from tests.slow.prompts import evaluation_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

MODEL = "smollm2-135m"
NEAR_TIE = 1e-3
CHAINS = [(steps, 1, steps) for steps in range(1, 9)]
TREES = [(4, 4, 12), (3, 8, 24), (8, 2, 16)]
GREEDY = SamplingParams(max_tokens=128)
SAMPLED = [
    SamplingParams(max_tokens=64, temperature=0.5, seed=11),
    SamplingParams(max_tokens=64, temperature=1.0, seed=12),
    SamplingParams(max_tokens=64, temperature=1.0, top_p=0.9, seed=13),
]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(MODEL, steps=8, topk=4, draft_tokens=32)


@pytest.fixture(scope="module")
def entries() -> list[PromptEntry]:
    found = evaluation_prompts("mt_bench")
    assert len({str(entry.conversation) for entry in found}) == len(found), "every prompt is another one"
    return found


def answer(llm: LLM, entries: Sequence[PromptEntry], params: SamplingParams) -> list[Completion]:
    return llm.chat([list(entry.conversation) for entry in entries], params)


def compare(name: str, expected: Sequence[Completion], found: Sequence[Completion]) -> int:
    different = [index for index, (a, b) in enumerate(zip(expected, found, strict=True)) if a.token_ids != b.token_ids]
    emitted, cycles = (sum(getattr(each.statistics, what) for each in found) for what in ("emitted", "cycles"))
    print(
        f"{name}: accept length {emitted / cycles:.3f}, {len(different)} of {len(found)} answers differ {different}",
        flush=True,
    )
    return len(different)


def test_greedy_ids_equal_plain_decodings_for_every_chain_and_tree(llm: LLM, entries: list[PromptEntry]) -> None:
    llm.reconfigure(steps=0)
    plain = answer(llm, entries, GREEDY)
    different = 0
    for steps, topk, draft_tokens in [*CHAINS, *TREES]:
        llm.reconfigure(steps=steps, topk=topk, draft_tokens=draft_tokens)
        name = f"steps {steps} topk {topk} draft tokens {draft_tokens}"
        different += compare(name, plain, answer(llm, entries, GREEDY))
    assert different == 0


@pytest.mark.parametrize("params", SAMPLED, ids=["T 0.5", "T 1.0", "T 1.0 top-p 0.9"])
def test_sampled_ids_equal_plain_decodings_under_the_same_seed(
    llm: LLM, entries: list[PromptEntry], params: SamplingParams
) -> None:
    llm.reconfigure(steps=0)
    entries = entries[::4]
    plain = answer(llm, entries, params)
    for steps, topk, draft_tokens in [(4, 1, 4), (4, 4, 12)]:
        llm.reconfigure(steps=steps, topk=topk, draft_tokens=draft_tokens)
        assert compare(f"{params.temperature} {topk}", plain, answer(llm, entries, params)) == 0


def reference_model() -> torch.nn.Module:
    """transformers' Llama with the same dequantised weights, fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    source = GgufSource(resolve_model(MODEL))
    raw = source.config()
    model = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in raw.items() if key != "architectures"}))
    state = {name: source.read(name) for name in source.names()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def choices(model: torch.nn.Module, llm: LLM, completions: Sequence[Completion]) -> Iterator[tuple[int, int, float]]:
    """(answer, place, gap) wherever transformers' argmax is not our token.

    One forward over prompt and answer: if its argmax is our token everywhere, greedy `generate` gives our answer.
    """
    for index, completion in enumerate(completions):
        prompt = llm.tokenizer.encode(completion.prompt, add_special_tokens=False)
        ids = torch.tensor([[*prompt, *completion.token_ids]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
        wrong = logits.argmax(-1) != ids[0, len(prompt) :]
        for place in wrong.nonzero()[:, 0].tolist():
            best = logits[place].topk(2).values
            yield index, place, float(best[0] - logits[place, ids[0, len(prompt) + place]])


def test_greedy_ids_are_transformers_greedy_ids(llm: LLM, entries: list[PromptEntry]) -> None:
    llm.reconfigure(steps=4)
    found = answer(llm, entries, GREEDY)
    mismatches = list(choices(reference_model(), llm, found))
    tokens = sum(len(each.token_ids) for each in found)
    print(
        f"transformers: {len(mismatches)} mismatches in {tokens} tokens (answer, place, gap): {mismatches}", flush=True
    )
    assert all(gap < NEAR_TIE for _, _, gap in mismatches)


BAR = 2.3


@pytest.mark.parametrize("name", ["mt_bench", "humaneval", "gsm8k"])
def test_accept_length_of_a_chain_of_four(llm: LLM, name: str) -> None:
    llm.reconfigure(steps=4)
    found = answer(llm, evaluation_prompts(name), SamplingParams(max_tokens=256))
    length = sum(each.statistics.emitted for each in found) / sum(each.statistics.cycles for each in found)
    print(
        f"{name}: accept length {length:.3f} (sum of emitted / sum of cycles, T = 0, chain of 4, 256 tokens)",
        flush=True,
    )
    assert name != "mt_bench" or length >= BAR

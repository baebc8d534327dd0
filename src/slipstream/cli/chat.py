"""`slipstream chat`: talk with a model; the tokens that the draft foresaw are tinted."""

import contextlib
import sys
from collections.abc import Iterator

import slipstream
from slipstream.cli.options import ModelOptions
from slipstream.cli.sampling_options import SamplingOptions
from slipstream.cli.show import TintedAnswer, brief, may_tint
from slipstream.cli.spread import spread
from slipstream.config.sampling import SamplingParams
from slipstream.serve.completion import Completion

with contextlib.suppress(ImportError):  # optional: Python on Windows has none
    import readline  # noqa: F401  gives input() a history and line editing

PROMPT = "> "
EXIT, RESET = "/exit", "/reset"
HELP = f"{EXIT} or Ctrl-D leaves, {RESET} starts over, Ctrl-C stops an answer."


@spread
def chat(*, models: ModelOptions, sampling: SamplingOptions) -> None:
    """Talk with a model; accepted draft tokens are tinted."""
    params = sampling.params()
    if params.n > 1:
        raise ValueError(f"a chat has one answer a turn, not {params.n}; leave --n out")
    llm = models.load()
    llm.render([{"role": "user", "content": "hello"}])  # refuses a model without a chat template, before anyone types
    print(HELP, file=sys.stderr)
    Chat(llm, params).run()


class Chat:
    """A conversation that is sent whole with every turn."""

    def __init__(self, llm: "slipstream.LLM", params: SamplingParams) -> None:
        self.llm, self.params = llm, params
        self.messages: list[dict[str, str]] = []

    def run(self) -> None:
        """Answer line after line, until the user leaves."""
        for line in _lines():
            if line == EXIT:
                return
            if line == RESET:
                self.messages.clear()
                continue
            try:
                self.turn(line)
            except ValueError as error:  # nothing was answered; most often the context is full
                self.messages.pop()
                print(f"error: {error}; {RESET} starts over", file=sys.stderr)

    def turn(self, line: str) -> None:
        """Stream one answer; stopped, what there is of it stays in the conversation.

        Raises:
            ValueError: the conversation cannot be run.
        """
        self.messages.append({"role": "user", "content": line})
        answer, completion = TintedAnswer(self.llm.tokenizer, tint=may_tint()), None
        with contextlib.closing(self.llm.stream(self.messages, self.params)) as deltas:
            try:
                for delta in deltas:
                    answer.show(delta)
                    completion = delta.completion
            except KeyboardInterrupt:
                print("\n(stopped)", end="")
        self.messages.append({"role": "assistant", "content": answer.text})
        print(f"\n{self._below(completion)}", flush=True)

    def _below(self, completion: Completion | None) -> str:
        """The line below an answer."""
        if completion is None:
            return ""
        seed = "" if self.params.greedy else f", seed {completion.seed}"
        return f"[{brief(completion)}{seed}{self._cut(completion)}]"

    def _cut(self, completion: Completion) -> str:
        if completion.finish_reason != "length":
            return ""
        if completion.num_prompt_tokens + len(completion.token_ids) >= self.llm.max_len:
            return f"; the context is full: {RESET} starts over"
        return "; cut at --max-tokens"


def _lines() -> Iterator[str]:
    """What the user types, without blank lines, until Ctrl-D; Ctrl-C drops the line being typed."""
    while True:
        try:
            line = input(PROMPT).strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line:
            yield line

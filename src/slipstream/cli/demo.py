"""`slipstream demo`: a real model answers the same prompts plainly and speculatively, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

import slipstream
from slipstream.cli.options import DEFAULT_MODEL, SHIPPED, load, refuse_without_draft
from slipstream.cli.pull import pull_known
from slipstream.cli.show import TintedAnswer, heading, may_tint, positions, stdout_console, table, total
from slipstream.config.sampling import SamplingParams
from slipstream.flow.output import Statistics
from slipstream.serve.completion import Completion
from slipstream.text.prompts import builtin_prompts

TASKS = ("coding", "writing", "math")
WARM_UP_TOKENS = 8
MAX_BATCH = 1  # one answer at a time is what speeds up most, and what a person watches
DIFFERENT = 1  # exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prompt, answered twice."""

    task: str
    plain: Completion
    fast: Completion

    @property
    def identical(self) -> bool:
        return self.plain.token_ids == self.fast.token_ids


def demo(
    model: Annotated[str, typer.Option(help="Directory, .gguf file, pulled name or hub id.")] = DEFAULT_MODEL,
    draft: Annotated[str, typer.Option(help="The same for the draft; auto is the shipped one.")] = SHIPPED,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 160,
) -> None:
    """Watch a real model answer, plainly and speculatively."""
    params = SamplingParams(max_tokens=max_tokens)
    pull_known(model)
    refuse_without_draft(model, draft)
    prompts = demo_prompts()
    plain = answers(load(model, None, max_batch=MAX_BATCH), prompts, params, how="plain decoding")
    fast = answers(
        load(model, draft, max_batch=MAX_BATCH), prompts, params, how="speculative decoding: tinted tokens were drafted"
    )
    pairs = [Pair(task=TASKS[place], plain=plain[place], fast=fast[place]) for place in range(len(TASKS))]
    stdout_console().print(comparison(pairs))
    print(verdict(pairs, model))
    if not all(pair.identical for pair in pairs):
        raise typer.Exit(DIFFERENT)


def demo_prompts() -> list[str]:
    """The first built-in prompt of three different categories."""
    first = {entry.task: entry.prompt for entry in reversed(builtin_prompts()) if entry.prompt is not None}
    return [first[task] for task in TASKS]


def answers(llm: "slipstream.LLM", prompts: Sequence[str], params: SamplingParams, *, how: str) -> list[Completion]:
    """Answer the prompts one after another, for everyone to watch, after a short warm-up that is not counted."""
    llm.chat([{"role": "user", "content": prompts[0]}], SamplingParams(max_tokens=WARM_UP_TOKENS))
    return [watched(llm, prompt, params, title=f"{heading(prompt)} [{how}]") for prompt in prompts]


def watched(llm: "slipstream.LLM", prompt: str, params: SamplingParams, *, title: str) -> Completion:
    """Print an answer as it comes."""
    print(f"--- {title}")
    answer, completion = TintedAnswer(llm.tokenizer, tint=may_tint()), None
    for delta in llm.stream([{"role": "user", "content": prompt}], params):
        answer.show(delta)
        completion = delta.completion
    assert completion is not None, "the last delta brings the completion"
    print("\n")
    return completion


COLUMNS = (
    "prompt",
    "tokens",
    "plain tok/s",
    "speculative tok/s",
    "speed-up",
    "accept length",
    "acceptance by position",
    "identical",
)


def comparison(pairs: Sequence[Pair]) -> Table:
    """One row a prompt, and one for all."""
    rows = [_row(pair.task, [pair]) for pair in pairs]
    return table(COLUMNS, [*rows, _row("all", pairs)])


def _row(name: str, pairs: Sequence[Pair]) -> list[str]:
    plain_s, fast_s = sum(pair.plain.decode_s for pair in pairs), sum(pair.fast.decode_s for pair in pairs)
    plain, fast = total([pair.plain for pair in pairs]), total([pair.fast for pair in pairs])
    return [
        name,
        str(sum(len(pair.fast.token_ids) for pair in pairs)),
        _rate(plain, plain_s),
        _rate(fast, fast_s),
        f"{plain_s / fast_s:.2f}x" if fast_s else "-",
        f"{fast.accept_length:.2f}",
        positions(fast.acceptance_by_position),
        "yes" if all(pair.identical for pair in pairs) else "no",
    ]


def _rate(counts: Statistics, seconds: float) -> str:
    return f"{counts.emitted / seconds:.1f}" if seconds else "-"


def verdict(pairs: Sequence[Pair], model: str) -> str:
    """What was seen, and what to try next."""
    fast = total([pair.fast for pair in pairs])
    num_same = sum(pair.identical for pair in pairs)
    if num_same < len(pairs):
        return f"Only {num_same} of {len(pairs)} texts are identical: this is a bug, please report it with this table."
    plain_s, fast_s = sum(pair.plain.decode_s for pair in pairs), sum(pair.fast.decode_s for pair in pairs)
    speed_up = plain_s / fast_s if fast_s else 1.0
    seen = f"{speed_up:.2f} times as fast: a cycle emitted {fast.accept_length:.2f} tokens instead of 1"
    if speed_up < 1:
        return f"The same text, but {seen}, which did not pay for itself; next: slipstream bench cpu --model {model}"
    return f"The same text, {seen}; next: slipstream chat --model {model}"

"""`slipstream generate`: answer one prompt or a file of them."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import slipstream
from slipstream.cli.options import ModelOptions
from slipstream.cli.ranks import shares_rows
from slipstream.cli.sampling_options import SamplingOptions
from slipstream.cli.show import heading, positions, stdout_console, table, total
from slipstream.cli.spread import spread
from slipstream.config.sampling import SamplingParams
from slipstream.flow.logprobs import Logprobs, TokenLogprob
from slipstream.serve.completion import Completion
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.telemetry.progress import progress
from slipstream.text.prompts import PromptEntry, read_requests

OnFinish = Callable[[int, Completion], None]


@spread
def generate(
    prompt: Annotated[str | None, typer.Option(help="The prompt: one user turn.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines with "prompt", "turns" (the first is taken) or "messages", and if need be "priority"'
            ' (lower runs first) and "steps" (at most; 0 = no speculation); or one text a line.'
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompts as they are, without chat template.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an answer, in the prompts' order.")] = False,
    *,
    models: ModelOptions,
    sampling: SamplingOptions,
) -> None:
    """Answer a prompt or a file of prompts."""
    entries = chosen_entries(prompt, prompts)
    params = sampling.params()
    llm = models.load(together=min(models.max_batch, len(entries) * params.n))
    if params.logprobs is not None and not as_json:
        raise ValueError("log-probabilities are printed with --json; add it, or leave --logprobs out")
    show = JsonLines(llm) if as_json else Answers(llm, entries, params)
    quiet = as_json and sys.stdout.isatty()  # a bar on the same terminal would wrap the lines
    num_answers = len(entries) * params.n
    with progress("Answering", num_answers, unit="answers", quiet=quiet) as meter, Stopwatch(Clock()) as watch:

        def on_finish(index: int, completion: Completion) -> None:
            show.finished(index, completion)
            meter.advance()

        completions = answer(llm, entries, params, raw=raw, on_finish=on_finish)
    show.summary(completions, watch.seconds)


def chosen_entries(prompt: str | None, prompts: Path | None) -> list[PromptEntry]:
    """The one prompt, or the file's.

    Raises:
        ValueError: both or neither were given, or the file is not one of prompts.
    """
    if prompt is not None and prompts is not None:
        raise ValueError("--prompt and --prompts were both given; give one of them")
    if prompts is not None:
        return read_requests(prompts)
    if prompt is None:
        raise ValueError("there is nothing to answer; pass --prompt TEXT or --prompts FILE")
    return [PromptEntry(prompt=prompt)]


def answer(
    llm: "slipstream.LLM", entries: Sequence[PromptEntry], params: SamplingParams, *, raw: bool, on_finish: OnFinish
) -> list[Completion]:
    """Run all prompts, as turns of a chat or as they are.

    Raises:
        ValueError: a conversation was to run raw, a prompt does not fit, or its steps do not.
    """
    priorities, steps = [entry.priority for entry in entries], [entry.steps for entry in entries]
    if not raw:
        said = [entry.conversation for entry in entries]
        return llm.chat(said, params, priority=priorities, steps=steps, on_finish=on_finish)
    texts = [entry.prompt for entry in entries if entry.prompt is not None]
    if len(texts) < len(entries):
        raise ValueError('--raw continues texts, but the file has "messages"; leave --raw out, or give prompts')
    return llm.generate(texts, params, priority=priorities, steps=steps, on_finish=on_finish)


def question(entry: PromptEntry) -> str:
    """What was asked, for a heading."""
    return str(entry.conversation[-1].get("content"))


class JsonLines:
    """One object an answer, in their order, each as soon as all before it are out; nothing else on stdout."""

    def __init__(self, llm: "slipstream.LLM") -> None:
        self._common: dict[str, Any] = {}
        if llm.synthetic_accept_length is not None:
            self._common["synthetic_accept_length"] = llm.synthetic_accept_length
        if llm.tp > 1:
            self._common["ranks"] = shares_rows(llm.shares())
            self._common["draft_placement"] = None if llm.placement is None else str(llm.placement)
        self._load_s = llm.load_s
        self._waiting: dict[int, Completion] = {}
        self._num_printed = 0

    def finished(self, index: int, completion: Completion) -> None:
        self._waiting[index] = completion
        while self._num_printed in self._waiting:
            found = json_object(self._waiting.pop(self._num_printed), load_s=self._load_s)
            print(json.dumps({**found, **self._common}), flush=True)
            self._num_printed += 1

    def summary(self, completions: Sequence[Completion], seconds: float) -> None:
        pass


class Answers:
    """Each answer as it ends, then a table."""

    def __init__(self, llm: "slipstream.LLM", entries: Sequence[PromptEntry], params: SamplingParams) -> None:
        self._llm, self._entries, self._params = llm, entries, params

    def finished(self, index: int, completion: Completion) -> None:
        place = index // self._params.n
        number = f"[{place + 1}/{len(self._entries)}] " if len(self._entries) > 1 else ""
        answer = f" ({completion.index + 1} of {self._params.n})" if self._params.n > 1 else ""
        seed = "" if self._params.greedy else f" (seed {completion.seed})"
        print(f"{number}{heading(question(self._entries[place]))}{answer}{seed}\n\n{completion.text}\n", flush=True)

    def summary(self, completions: Sequence[Completion], seconds: float) -> None:
        stdout_console().print(summary_table(completions, seconds))
        if len(self._entries) > 1 and self._llm.speculation.steps:
            print(f"\n{self._llm.statistics.drift_line}")


def summary_table(completions: Sequence[Completion], seconds: float) -> Table:
    """All answers together; seconds: from the first prefill to the last token."""
    counts = total(completions)
    num_tokens = sum(len(each.token_ids) for each in completions)
    decode_s = sum(each.decode_s for each in completions)
    cells = {
        "prompts": str(sum(each.index == 0 for each in completions)),
        "tokens": str(num_tokens),
        "tok/s together": f"{num_tokens / seconds:.1f}",
        "decode tok/s each": f"{counts.emitted / decode_s:.1f}" if decode_s else "-",
        "accept length": f"{counts.accept_length:.2f}" if counts.cycles else "-",
        "accept rate": f"{counts.accept_rate:.2f}" if counts.proposed else "-",
        "acceptance by position": positions(counts.acceptance_by_position),
        "cycles": str(counts.cycles),
    }
    return table(list(cells), [list(cells.values())])


def json_object(completion: Completion, *, load_s: float) -> dict[str, Any]:
    """One answer under the names of docs/measuring.md."""
    return {
        "prompt": completion.prompt,
        "index": completion.index,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        **(
            {} if completion.logprobs is None else {"logprobs": [logprobs_object(each) for each in completion.logprobs]}
        ),
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": completion.num_prompt_tokens,
            "cached_tokens": completion.num_cached_tokens,
            "completion_tokens": len(completion.token_ids),
        },
        "speculation": completion.statistics.named(),
        "timing": {
            "load_s": load_s,
            "prefill_s": completion.prefill_s,
            "decode_s": completion.decode_s,
            "decode_tokens_per_s": completion.decode_tokens_per_s,
        },
    }


def logprobs_object(found: Logprobs) -> dict[str, Any]:
    """One token's; null stands for what bans and filters cut, which JSON has no number for."""
    return {**token_object(found.chosen), "top": [token_object(each) for each in found.top]}


def token_object(found: TokenLogprob) -> dict[str, Any]:
    """A token's log-probabilities under their names."""
    processed = found.processed if math.isfinite(found.processed) else None
    return {"token_id": found.token, "raw_logprob": found.raw, "processed_logprob": processed}

"""The options of `slipstream bench serving`: what is asked, how hard, and of which server of our own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from slipstream.bench.serving.bare import Subject
from slipstream.bench.serving.dialect import Manner
from slipstream.bench.serving.load import Level
from slipstream.bench.serving.prompts import Ask, Endpoint, endpoint_of, from_entries, random_ids, random_words
from slipstream.bench.serving.rows import GOALS
from slipstream.bench.shapes import full_shape
from slipstream.cli.bench_latency import numbers
from slipstream.cli.bench_placement import ACCEPTANCE
from slipstream.cli.panels import option
from slipstream.config.speculation import MAX_STEPS
from slipstream.text.prompts import PromptEntry, read_prompts

ANSWERS, LOAD, OWN = "What is asked", "Load", "A server of our own"
INPUT_LEN, NUM_PROMPTS, LEAST_PROMPTS, TURNS = 128, 100, 16, 4
MOST_AT_ONCE = 1 << 16
STEPS = 3
SEED_STRIDE = 7919  # seeds of the stages' prompts lie this far apart


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """What is asked."""

    model: Annotated[str | None, option("The first that the server lists, if left out.", ANSWERS)] = None
    endpoint: Annotated[str, option("completions or chat.", ANSWERS)] = "completions"
    prompts: Annotated[Path | None, option("File of prompts; random ones if left out.", ANSWERS)] = None
    input_len: Annotated[
        int | None, option(f"Words of each random prompt, about a token each; {INPUT_LEN}.", ANSWERS, min=1)
    ] = None
    token_ids: Annotated[
        int | None, option("Random ids below this instead of words: exact lengths (completions).", ANSWERS, min=1)
    ] = None
    num_prompts: Annotated[
        int | None,
        option(
            f"At each concurrency; all of the file, else {TURNS} x the concurrency, at least {LEAST_PROMPTS}.",
            ANSWERS,
            min=1,
        ),
    ] = None
    max_tokens: Annotated[int, option("Longest answer.", ANSWERS, "--max-tokens", "--output-len", min=1)] = 128
    ignore_eos: Annotated[
        bool | None,
        option(
            "Go on to --max-tokens; if left out: with slipstream, vLLM and SGLang.",
            ANSWERS,
            "--ignore-eos/--no-ignore-eos",
        ),
    ] = None
    temperature: Annotated[float, option("0 is greedy.", ANSWERS, min=0)] = 0.0
    seed: Annotated[int, option("Of prompts, arrivals and sampling.", ANSWERS)] = 0
    extra_body: Annotated[str | None, option("JSON object whose fields every request gets.", ANSWERS)] = None

    def manner(self) -> Manner:
        """How answers are to be.

        Raises:
            ValueError: no such endpoint, or the extra fields are no JSON object.
        """
        return Manner(
            endpoint=endpoint_of(self.endpoint),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            extra=_json_object(self.extra_body),
        )

    def entries(self) -> list[PromptEntry] | None:
        """The file's; None for random prompts.

        Raises:
            ValueError: the file cannot be read, or options contradict each other.
        """
        if self.token_ids is not None and self.endpoint != Endpoint.COMPLETIONS.value:
            raise ValueError("--token-ids needs --endpoint completions: a chat is text; leave one of them out")
        if self.prompts is None:
            return None
        if self.input_len is not None or self.token_ids is not None:
            raise ValueError(f"--prompts {self.prompts} contradicts --input-len and --token-ids, for random prompts")
        return read_prompts(self.prompts)

    def asks(self, entries: Sequence[PromptEntry] | None, count: int, place: int) -> list[Ask]:
        """So many prompts of the stage at a place; random ones are others at each, so that no cache knows them."""
        endpoint, length, seed = (
            endpoint_of(self.endpoint),
            self.input_len or INPUT_LEN,
            self.seed + SEED_STRIDE * place,
        )
        if entries is not None:
            return from_entries(entries, count, endpoint)
        if self.token_ids is not None:
            return random_ids(length, count, self.token_ids, seed=seed)
        return random_words(length, count, endpoint, seed=seed)

    def count(self, entries: Sequence[PromptEntry] | None, level: Level) -> int:
        """How many requests a level gets."""
        if self.num_prompts is not None:
            return self.num_prompts
        if entries is not None:
            return len(entries)
        return NUM_PROMPTS if level.max_concurrency is None else max(LEAST_PROMPTS, TURNS * level.max_concurrency)

    def words(self) -> dict[str, Any]:
        """The prompts, in a row."""
        if self.prompts is not None:
            return {"prompts": self.prompts.name, "input_len": None}
        kind = "random words" if self.token_ids is None else "random token ids"
        return {"prompts": kind, "input_len": self.input_len or INPUT_LEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How hard."""

    concurrency: Annotated[
        str | None,
        option(
            "Most requests in flight; several (1,8,32) are runs of their own.",
            LOAD,
            "--concurrency",
            "--max-concurrency",
        ),
    ] = None
    request_rate: Annotated[str, option("Requests a second, Poisson arrivals; inf: no waiting.", LOAD)] = "inf"
    warmup: Annotated[int, option("Requests before each run, not counted.", LOAD, min=0)] = 1
    timeout: Annotated[float, option("Longest time for one request, seconds.", LOAD)] = 600.0
    goodput: Annotated[list[str] | None, option("ttft:MS, tpot:MS or e2el:MS; may be given several times.", LOAD)] = (
        None
    )

    def levels(self, seed: int) -> list[Level]:
        """One a concurrency.

        Raises:
            ValueError: something is no number, or out of range.
        """
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"--timeout is a number of seconds above 0, not {self.timeout:g}")
        rate, most = _rate(self.request_rate), (None,)
        if self.concurrency is not None:
            most = numbers("--concurrency", self.concurrency, int, low=1, high=MOST_AT_ONCE)
        return [Level(max_concurrency=each, request_rate=rate, timeout_s=self.timeout, seed=seed) for each in most]

    def goals(self) -> dict[str, float]:
        """Limits of goodput.

        Raises:
            ValueError: no such limit.
        """
        found: dict[str, float] = {}
        for each in self.goodput or ():
            name, _, value = each.partition(":")
            try:
                found[name] = float(value)
            except ValueError:
                name = ""
            if name not in GOALS:
                raise ValueError(f"--goodput {each}: write one of {', '.join(GOALS)} with ms, for example ttft:500")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """A server of random weights, started here."""

    shape: Annotated[str | None, option("Serve this shape, such as llama-3.1-8b, instead of asking --url.", OWN)] = None
    steps: Annotated[int | None, option(f"Draft forwards a cycle; {STEPS}.", OWN, min=0, max=MAX_STEPS)] = None
    acceptance: Annotated[
        str | None, option(f"By position, decreed; the last holds for all beyond; {ACCEPTANCE}.", OWN)
    ] = None
    device: Annotated[str | None, option("auto, cpu or cuda.", OWN)] = None
    dtype: Annotated[str | None, option("auto, float32, bfloat16 or float16.", OWN)] = None
    tp: Annotated[int | None, option("Ranks the target is cut over; 1.", OWN, min=1)] = None
    draft_tp: Annotated[str | None, option("Ranks the draft is cut over; replicated; auto times all.", OWN)] = None
    bare: Annotated[
        bool | None, option("Time the cycles without a server too, before and after; so if left out.", OWN)
    ] = None

    def subject(self, asked: AskOptions, levels: Sequence[Level]) -> Subject | None:
        """What is to be served; None where a server is there already.

        Raises:
            ValueError: options that contradict each other.
        """
        if self.shape is None:
            self._refuse_any()
            return None
        for name, given in (("--prompts", asked.prompts), ("--model", asked.model), ("--token-ids", asked.token_ids)):
            if given is not None:
                raise ValueError(f"{name} contradicts --shape, whose weights and prompts are random; leave it out")
        if asked.endpoint != Endpoint.COMPLETIONS.value:
            raise ValueError("--shape has no chat template of its own; use --endpoint completions")
        if any(each.max_concurrency is None for each in levels):
            raise ValueError("--shape needs --concurrency, the batch of the bare cycles; for example --concurrency 1,8")
        full_shape(self.shape)
        return Subject(
            shape=self.shape,
            steps=STEPS if self.steps is None else self.steps,
            acceptance=numbers("--acceptance", self.acceptance or ACCEPTANCE, float, low=0, high=1),
            device=self.device or "auto",
            dtype=self.dtype or "auto",
            tp=self.tp or 1,
            draft_tp=self.draft_tp or "auto",
            input_len=asked.input_len or INPUT_LEN,
            max_tokens=asked.max_tokens,
            batches=tuple(each.max_concurrency for each in levels if each.max_concurrency is not None),
        )

    def _refuse_any(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) is not None:
                option = f"--{each.name.replace('_', '-')}"
                raise ValueError(f"{option} is of a server that --shape starts; the one at --url has its own")


def _rate(text: str) -> float:
    """Requests a second."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise ValueError(f"--request-rate is a number above 0, or inf, not {text}")
    return found


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"--extra-body is a JSON object, not {text}")
    return found

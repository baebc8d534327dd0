"""The options of `slipstream profile`, settled: what is loaded, what is timed, and how acceptance is measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slipstream.bench.delays import parse_delays
from slipstream.bench.placement import accept_length
from slipstream.bench.profile import ProfilePlan
from slipstream.cli.lists import numbers
from slipstream.cli.options import SHIPPED
from slipstream.config.placement import placements
from slipstream.config.speculation import Speculation
from slipstream.flow.orders import PlaceDraft
from slipstream.serve.settle import settle_speculation

ACCEPTANCE = "0.7,0.62,0.57,0.53,0.5"  # of a well trained head on chat, by position


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is profiled."""

    model: Annotated[str | None, typer.Option(help="Directory, .gguf file, pulled name or hub id.")] = None
    draft: Annotated[str | None, typer.Option(help="Its draft; the shipped one if left out.")] = None
    shape: Annotated[str | None, typer.Option(help="Random weights instead, for example llama-3.1-8b.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    tp: Annotated[int | None, typer.Option(help="Ranks the target is cut over; a launcher's, else 1.")] = None
    draft_tp: Annotated[str, typer.Option(help="Ranks the draft is cut over; replicated; auto times all.")] = "auto"

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ValueError: both a checkpoint and a shape, or neither.
        """
        if self.shape is None and self.model is None:
            raise ValueError("no model was named; pass --model, for example --model smollm2-135m, or --shape")
        if self.shape is not None and (self.model or self.draft):
            raise ValueError(f"--shape {self.shape} is random weights, without --model and --draft; give one of them")

    @property
    def draft_name(self) -> str:
        """As LLM takes it."""
        return SHIPPED if self.draft is None else self.draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Which cycles are timed."""

    steps: Annotated[int | None, typer.Option(help="Draft forwards a cycle, 4 if left out.")] = None
    topk: Annotated[int | None, typer.Option(help="Branches a node; 1, a chain, if left out.")] = None
    draft_tokens: Annotated[int | None, typer.Option(help="Nodes verified a cycle, without the root.")] = None
    batch: Annotated[int, typer.Option(min=1, max=256, help="Requests that decode together.")] = 1
    context: Annotated[int, typer.Option(min=2, help="Tokens of each request's made-up prompt.")] = 128
    cycles: Annotated[int, typer.Option(min=4, help="Timed of each shape and round.")] = 24
    rounds: Annotated[int, typer.Option(min=1, help="Over all shapes, so that a drift meets each.")] = 2
    acceptance: Annotated[
        str, typer.Option(help="By position, decreed while cycles are timed; 0 rejects everything.")
    ] = ACCEPTANCE
    graphs: Annotated[bool, typer.Option("--graphs/--no-graphs", help="On CUDA, time captured cycles.")] = True
    inject: Annotated[str | None, typer.Option(hidden=True, help="Delays in ms, as draft=5,host=2.")] = None
    inject_allreduce_us: Annotated[float, typer.Option(help="Delay every collective by this.")] = 0.0

    def speculation(self) -> Speculation:
        """The cycle that is split.

        Raises:
            ValueError: numbers that contradict each other, or no steps.
        """
        found = settle_speculation(self.steps, self.topk, self.draft_tokens, has_draft=True)
        if found.steps == 0:
            raise ValueError("--steps 0 decodes plainly, and there is no cycle to split; give 1 or more")
        return found

    def plan(self, draft: PlaceDraft, *, vocab_size: int, ranks: int) -> ProfilePlan:
        """What is timed of models that are in memory.

        Raises:
            ValueError: an option that cannot be read.
        """
        return ProfilePlan(
            draft=draft,
            places=placements(ranks) if ranks > 1 else (),
            vocab_size=vocab_size,
            shape=self.speculation(),
            batch=self.batch,
            context=self.context,
            acceptance=numbers("--acceptance", self.acceptance, float, low=0, high=1),
            cycles=self.cycles,
            rounds=self.rounds,
            graphs=self.graphs,
            delays=parse_delays(self.inject),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPrompts:
    """How acceptance is measured, apart from the cost of cycles."""

    prompts: Annotated[Path | None, typer.Option(help="To measure acceptance; the built-in ones if left out.")] = None
    limit: Annotated[int, typer.Option(min=0, help="So many of them; 0 measures no acceptance.")] = 12
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer to each.")] = 64


def decreed_lengths(plan: ProfilePlan) -> float:
    """The accept length under which the profiled cycle is timed."""
    return accept_length(plan.shape.steps, plan.acceptance)

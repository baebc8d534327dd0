"""`slipstream train`: the target answers prompts, and a draft learns to foresee it."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.train.options import (
    DataOptions,
    DraftOptions,
    Initial,
    LoopOptions,
    LossOptions,
    Mask,
    Normalise,
    RunOptions,
)

Files = list[Path] | None
REQUIRED = inspect.Parameter.empty
EPOCHS = 4.0  # where no budget is given
ANSWER_BATCH = {"cuda": 2048, "cpu": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option of the verb; `field` is where its value goes."""

    name: str
    kind: Any
    help: str
    default: Any = None
    field: str | None = None  # None = the name with underscores
    least: float | None = None  # smallest value taken


RUN = (
    Flag(name="model", kind=str, default=REQUIRED, help="Target: directory, .gguf file, pulled name or hub id."),
    Flag(name="out", kind=Path, default=REQUIRED, help="Folder for conversations, checkpoints, log and draft."),
    Flag(name="eval-prompts", kind=Files, help="Held-out prompt file, one set each; may be repeated."),
    Flag(name="max-eval", kind=int, default=80, least=1, help="Prompts of each held-out set."),
    Flag(name="data", kind=Path | None, field="conversations", help="Folder whose conversations are reused or made."),
    Flag(name="data-only", kind=bool, default=False, help="Stop when the conversations are made."),
    Flag(name="resume", kind=bool, default=False, help="Continue from the checkpoint in --out."),
    Flag(name="device", kind=str | None, help="auto, cpu, cuda or cuda:N; auto if left out."),
    Flag(name="seed", kind=int, default=0, help="Order, initial weights and sampling."),
)
DATA = (
    Flag(name="prompts", kind=Files, help="Prompt file; may be repeated."),
    Flag(name="cap", kind=list[str] | None, field="caps", help="SET=N prompts at most; mc_=N for each set so begun."),
    Flag(name="max-prompts", kind=int | None, least=1, help="Most prompts taken from the files."),
    Flag(name="self-prompts", kind=int, default=0, least=0, help="User turns the target draws itself."),
    Flag(name="max-prompt-tokens", kind=int, default=512, least=1, help="Longer prompts are dropped."),
    Flag(name="answer-tokens", kind=int, default=256, least=2, help="Most tokens of an answer."),
    Flag(name="answer-batch", kind=int | None, least=1, help="Sequences answered together; 2048 on cuda, 16 on cpu."),
    Flag(name="temperatures", kind=str, default="0,0.8", help="Temperatures, taken in turn over the prompts."),
    Flag(name="loop-tail", kind=int | None, least=0, help="Cut answers this many tokens into their first loop."),
)
DRAFT = (
    Flag(name="draft-vocab", kind=int, default=16384, field="vocab_size", least=1, help="Ids the draft can say."),
    Flag(name="intermediate-size", kind=int | None, least=1, help="MLP width; the target's if not given."),
    Flag(name="fc-norm", kind=bool, default=False, help="EAGLE-3.1: one norm a captured chunk."),
    Flag(name="norm-output", kind=bool, default=False, help="Feed the next step the normed state."),
    Flag(name="norm-before-residual", kind=bool, default=False, help="Residual = the normed hidden state."),
    Flag(name="init", kind=Initial, default=Initial.TARGET, field="initial", help="Where first weights come from."),
)
LOSS = (
    Flag(name="ttt-steps", kind=int, default=5, field="steps", least=1, help="Training-time-test steps."),
    Flag(name="decay", kind=float, default=0.8, least=0, help="Weight of step i is decay ** i."),
    Flag(name="mask", kind=Mask, default=Mask.SERVING, help="Which slots are supervised."),
    Flag(name="normalise", kind=Normalise, default=Normalise.VALID, help="Mean over slots that give loss, or all."),
    Flag(name="teacher-temperature", kind=float, default=1.0, least=0.01, help="Below 1 sharpens the target."),
)
LOOP = (
    Flag(name="minutes", kind=float | None, least=0.001, help="Train this long; the schedule ends on time."),
    Flag(name="steps", kind=int | None, least=1, help="Optimizer steps."),
    Flag(name="epochs", kind=float | None, least=0.001, help="Passes over the data; 4 where no budget is given."),
    Flag(name="batch-tokens", kind=int, default=49152, least=1, help="Tokens a step, padding included."),
    Flag(name="lr", kind=float, default=1e-3, least=0, help="Peak learning rate."),
    Flag(name="warmup", kind=float, default=0.03, least=0, help="Share of the run that warms up."),
    Flag(name="final-lr", kind=float, default=0.05, least=0, help="Last learning rate, as a share of the peak."),
    Flag(name="clip", kind=float, default=1.0, least=1e-6, help="Largest gradient norm."),
    Flag(name="log-every", kind=int, default=20, least=1, help="Steps between log lines."),
    Flag(name="save-every-minutes", kind=float, default=5.0, least=0, help="Minutes between checkpoints."),
    Flag(name="measure-every-minutes", kind=float, default=2.0, least=0, help="Minutes between walks."),
    Flag(name="measure-steps", kind=int, default=4, least=1, help="Draft steps of the walked accept length."),
    Flag(name="compile", kind=bool, default=False, help="torch.compile the loss."),
)
PANELS = {"Run": RUN, "Data": DATA, "Draft": DRAFT, "Loss": LOSS, "Loop": LOOP}


def train(**values: Any) -> None:
    """Train an EAGLE-3 draft: regenerate, train, measure, export."""
    settle_device = import_module("slipstream.serve.settle").settle_device  # brings torch: help must not
    device = str(settle_device(values["device"] or "auto"))
    import_module("slipstream.train.run").run(settle({**values, "device": device}))


def settle(values: Mapping[str, Any]) -> RunOptions:
    """The run's options from the command line's.

    Raises:
        ValueError: options that contradict each other.
    """
    parts = {panel: _chosen(flags, values) for panel, flags in PANELS.items()}
    seed, device = parts["Run"].pop("seed"), values["device"]
    data, loop = parts["Data"], parts["Loop"]
    data["caps"] = [_cap(text) for text in data["caps"] or ()]
    data["temperatures"] = _numbers(data["temperatures"])
    data["answer_batch"] = data["answer_batch"] or ANSWER_BATCH[device.partition(":")[0]]
    if not any(loop[budget] is not None for budget in ("minutes", "steps", "epochs")):
        loop["epochs"] = EPOCHS
    return RunOptions(
        **_tupled(parts["Run"], "eval_prompts"),
        data=DataOptions(**_tupled(data, "prompts", "caps"), seed=seed),
        draft=DraftOptions(**parts["Draft"]),
        loss=LossOptions(**parts["Loss"]),
        loop=LoopOptions(**loop, seed=seed),
    )


def _chosen(flags: tuple[Flag, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    return {flag.field or _plain(flag.name): values[_plain(flag.name)] for flag in flags}


def _tupled(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**values, **{name: tuple(values[name] or ()) for name in names}}


def _cap(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdecimal():
        raise ValueError(f"--cap {text} is not SET=N; write for example --cap t0_p3=7000")
    return name, int(number)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(value) for value in text.split(","))
    except ValueError:
        raise ValueError(f"--temperatures {text} is no list of numbers; write for example 0,0.8") from None
    if not all(0 <= value < math.inf for value in found):
        raise ValueError(f"--temperatures {text} holds one that is no temperature; they are 0 (greedy) or more")
    return found


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _signature() -> inspect.Signature:
    """The parameters of `train` as typer reads them."""
    return inspect.Signature(
        [
            inspect.Parameter(
                _plain(flag.name),
                inspect.Parameter.KEYWORD_ONLY,
                default=flag.default,
                annotation=Annotated[flag.kind, _option(flag, panel)],
            )
            for panel, flags in PANELS.items()
            for flag in flags
        ]
    )


def _option(flag: Flag, panel: str) -> Any:
    return typer.Option(f"--{flag.name}", help=flag.help, rich_help_panel=panel, min=flag.least)


train.__signature__ = _signature()
train.__annotations__ = {name: found.annotation for name, found in _signature().parameters.items()}

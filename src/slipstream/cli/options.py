"""The options that verbs share, settled: two spellings that disagree are an error, and nothing is ignored."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import slipstream
from slipstream.cli.lists import sizes
from slipstream.cli.panels import option
from slipstream.cli.ranks import show_start, show_trial
from slipstream.cli.tuned import open_options
from slipstream.cli.wiring import D2tOption, LayersOption, NormBeforeResidualOption, NormOutputOption, wiring_of
from slipstream.telemetry.progress import BYTES, progress
from slipstream.weights.shipped import shipped_draft, short_name

MODEL, SPECULATION, RANKS, SGLANG = "Model", "Speculation", "Ranks", "SGLang's names"
MOST_PLACES = 1 << 14
DEFAULT_MODEL = "smollm2-135m"
PASSED_ON = (
    *("device", "dtype", "draft_dtype", "max_len", "max_batch", "kv_gib", "memory_fraction", "prefix_cache"),
    *("draft_max_len", "tp", "executor", "strict_memory_balance", "watchdog_s", "inject_allreduce_us"),
    *("synthetic_accept_length", "capture_convention", "dummy_weights"),
)
SHIPPED = "auto"  # what LLM calls the draft that ships with slipstream

Value = TypeVar("Value", str, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which models, and where they run."""

    model: Annotated[str | None, option("Directory, .gguf file, pulled name or hub id.", MODEL)] = None
    draft: Annotated[str | None, option("The same for the draft; the shipped one if left out.", MODEL)] = None
    config: Annotated[Path | None, option("What `slipstream tune` wrote; flags beat it.", MODEL, "--config")] = None
    no_draft: Annotated[bool, option("Decode plainly.", MODEL, "--no-draft")] = False
    device: Annotated[str, option("auto, cpu, cuda; or cuda:N, for one rank.", MODEL)] = "auto"
    dtype: Annotated[str, option("auto, float32, bfloat16 or float16.", MODEL)] = "auto"
    max_len: Annotated[int | None, option("Tokens of prompt and answer; the model's context if left out.", MODEL)] = (
        None
    )
    max_batch: Annotated[int, option("Prompts that run together.", MODEL)] = 16
    kv_gib: Annotated[float | None, option("GiB of keys and values on each rank; 2 on a CPU.", MODEL)] = None
    memory_fraction: Annotated[
        float | None, option("Share of each device's memory for everything; 0.9 on CUDA.", MODEL)
    ] = None
    graph_sizes: Annotated[
        str | None, option("Batches captured on CUDA, such as 1,2,4,8; powers of two if left out; 0: none.", MODEL)
    ] = None
    dummy_weights: Annotated[bool, option("Random ones, to time cycles.", MODEL, "--dummy-weights")] = False
    capture_convention: Annotated[str, option("How the draft's layer ids read: auto, output or input.", MODEL)] = "auto"
    steps: Annotated[int | None, option("Draft forwards a cycle, 4 if left out; 0 decodes plainly.", SPECULATION)] = (
        None
    )
    topk: Annotated[int | None, option("Branches a node; 1, a chain, if left out.", SPECULATION)] = None
    draft_tokens: Annotated[int | None, option("Nodes verified a cycle, without the root.", SPECULATION)] = None
    tp: Annotated[int | None, option("Ranks the target is cut over; a launcher's, else 1.", RANKS)] = None
    draft_tp: Annotated[
        str | None, option("Ranks the draft is cut over; replicated; auto times all, as if left out.", RANKS)
    ] = None
    draft_dtype: Annotated[str, option("auto (the target's), float32, bfloat16 or float16.", RANKS)] = "auto"
    executor: Annotated[str, option("spawn (or torchrun's ranks), or ray.", RANKS)] = "spawn"
    strict_memory_balance: Annotated[
        bool, option("Stop if one rank has much less free memory.", RANKS, "--strict-memory-balance")
    ] = False
    watchdog_s: Annotated[float, option("Seconds a rank may be silent before all end.", RANKS)] = 30.0
    inject_allreduce_us: Annotated[
        float, option("Delay every all-reduce, gather and broadcast by this, on the device.", RANKS)
    ] = 0.0
    synthetic_accept_length: Annotated[
        float | None, option("Decree the accept length, to time cycles; answers mean nothing then.", RANKS)
    ] = None
    prefix_cache: Annotated[
        bool, option("Prompts that begin alike share what was computed.", MODEL, "--prefix-cache/--no-prefix-cache")
    ] = True
    draft_max_len: Annotated[
        int | None, option("Tokens of context beyond which nothing is drafted; no limit if left out.", SPECULATION)
    ] = None
    draft_layers: LayersOption = None
    draft_norm_output: NormOutputOption = None
    draft_norm_before_residual: NormBeforeResidualOption = None
    draft_d2t: D2tOption = "offsets"
    model_path: Annotated[str | None, option("--model.", SGLANG)] = None
    speculative_draft_model_path: Annotated[str | None, option("--draft.", SGLANG)] = None
    speculative_num_steps: Annotated[int | None, option("--steps.", SGLANG)] = None
    speculative_eagle_topk: Annotated[int | None, option("--topk.", SGLANG)] = None
    speculative_num_draft_tokens: Annotated[int | None, option("--draft-tokens, with the root.", SGLANG)] = None

    def load(self, *, together: int = 1) -> "slipstream.LLM":
        """Load what was chosen, with a bar on a terminal; together: requests that will run at once.

        Raises:
            ValueError: options that contradict each other, or whatever LLM refuses.
        """
        return load(**self.settings(together=together))

    def settings(self, *, together: int = 1) -> dict[str, Any]:
        """What LLM is to be made with; together: requests that will run at once.

        Raises:
            ValueError: options that contradict each other.
        """
        if self.config is not None:
            return self._with_file(self.config, together).settings()
        model, shape = self.chosen_model(), self._shape()
        return {
            "model": model,
            "draft": self._draft(shape),
            "steps": shape.steps,
            "topk": shape.topk,
            "draft_tokens": shape.draft_tokens,
            **{name: getattr(self, name) for name in PASSED_ON},
            "graph_sizes": _graph_sizes(self.graph_sizes),
            "draft_tp": self.draft_tp or "auto",
            "draft_wiring": wiring_of(
                self.draft_layers,
                norm_output=self.draft_norm_output,
                norm_before_residual=self.draft_norm_before_residual,
                d2t=self.draft_d2t,
            ),
        }

    def _with_file(self, path: Path, together: int) -> "ModelOptions":
        """The file's settings where no flag was given."""
        model = _agreed("--model", self.model, "--model-path", self.model_path)
        draft = _agreed("--draft", self.draft, "--speculative-draft-model-path", self.speculative_draft_model_path)
        shape = self._shape()
        given = {"model": model, "draft": draft, "no_draft": self.no_draft, "draft_tp": self.draft_tp}
        given |= {"steps": shape.steps, "topk": shape.topk, "draft_tokens": shape.draft_tokens}
        theirs = dict.fromkeys(name for name in vars(type(self)) if name.startswith("speculative_"))
        return replace(self, **{**theirs, **given, **open_options(path, together, given)}, model_path=None, config=None)

    def chosen_model(self) -> str:
        """The target, under either of its names."""
        model = _agreed("--model", self.model, "--model-path", self.model_path)
        if model is None:
            raise ValueError(f"no model was named; pass --model, for example --model {DEFAULT_MODEL}")
        return model

    def named(self, model: str | None) -> "ModelOptions":
        """The same with a target that was named without an option.

        Raises:
            ValueError: an option names another.
        """
        return replace(self, model=_agreed("MODEL", model, "--model", self.model))

    def _draft(self, shape: "Shape") -> str | None:
        given = _agreed("--draft", self.draft, "--speculative-draft-model-path", self.speculative_draft_model_path)
        if not self.no_draft:
            return SHIPPED if given is None else given
        if given is not None:
            raise ValueError(f"--no-draft contradicts the draft {given}; leave one of them out")
        if shape.steps or shape.draft_tokens or (shape.topk or 1) > 1:
            raise ValueError("--no-draft contradicts --steps, --topk and --draft-tokens; leave it or them out")
        return None

    def _shape(self) -> "Shape":
        steps = _agreed("--steps", self.steps, "--speculative-num-steps", self.speculative_num_steps)
        topk = _agreed("--topk", self.topk, "--speculative-eagle-topk", self.speculative_eagle_topk)
        theirs = "--speculative-num-draft-tokens"
        with_root = self.speculative_num_draft_tokens
        if with_root is None:
            return Shape(steps=steps, topk=topk, draft_tokens=self.draft_tokens)
        if with_root < 1:
            raise ValueError(f"{theirs} counts the root, so it is 1 or more, not {with_root}")
        if self.draft_tokens is not None and self.draft_tokens != with_root - 1:
            raise ValueError(
                f"--draft-tokens {self.draft_tokens} contradicts {theirs} {with_root}, which counts the root and so"
                f" means {with_root - 1}; give one of them"
            )
        if topk in (None, 1) and steps is not None and steps != with_root - 1:
            raise ValueError(
                f"{theirs} {with_root} counts the root, but a chain of {steps} steps has {steps + 1} nodes with it;"
                " leave it out, or raise topk"
            )
        return Shape(steps=steps, topk=topk, draft_tokens=with_root - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a cycle as far as it was given."""

    steps: int | None
    topk: int | None
    draft_tokens: int | None


def _graph_sizes(text: str | None) -> tuple[int, ...] | None:
    """Which batches are captured; () for none.

    Raises:
        ValueError: no such sizes.
    """
    if text is None:
        return None
    found = sizes("--graph-sizes", text, int, low=0, high=MOST_PLACES)
    return () if found == (0,) else found


def load(model: str, draft: str | None, **settings: Any) -> "slipstream.LLM":
    """Load a model, with a bar on a terminal."""
    with progress("Loading", None, unit=BYTES) as meter:
        llm = slipstream.LLM(model, draft=draft, on_load=meter.advance, on_trial=show_trial, **settings)
    show_start(llm)
    return llm


def refuse_without_draft(model: str, draft: str) -> None:
    """Say before anything is loaded that there is no draft.

    Raises:
        ValueError: none was named and none ships for this model.
    """
    if draft == SHIPPED and shipped_draft(short_name(Path(model))) is None:
        raise ValueError(f"no draft ships for {model}; pass --draft with a folder that holds one")


def _agreed(name: str, value: Value | None, other_name: str, other: Value | None) -> Value | None:
    """The value of an option with two names.

    Raises:
        ValueError: both were given and differ.
    """
    if value is not None and other is not None and value != other:
        raise ValueError(f"{name} {value} contradicts {other_name} {other}; give one of them")
    return other if value is None else value

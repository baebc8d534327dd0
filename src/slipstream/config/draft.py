"""The shape of an EAGLE-3 draft and every variant flag that changes its arithmetic."""

from dataclasses import dataclass
from enum import Enum

from slipstream.config.model import ModelConfig

DEFAULT_CAPTURES_NEED = 7  # layers: below, the default captures coincide


class CaptureConvention(Enum):
    """What an explicit capture-layer id in a checkpoint means.

    OUTPUT: id L is the output of layer L, that is after L + 1 layers (SpecForge, Model-Optimizer).
    INPUT: id L is the input of layer L, that is after L layers (vLLM, speculators, transformers' hidden_states).
    AUTO: speculators checkpoints are INPUT; others are OUTPUT exactly when their first id is 1 (the default of OUTPUT
    writers), as SGLang decides it.
    """

    AUTO = "auto"
    OUTPUT = "output"
    INPUT = "input"


class MapReading(Enum):
    """Which tensor of a checkpoint maps draft ids to target ids, and how.

    OFFSETS: d2t, target id = draft id + d2t[draft id], as every writer should have it. IDS: d2t holds target ids.
    MASK: t2d, the target ids that it marks. FIRST: neither, the head speaks the first ids.
    """

    OFFSETS = "offsets"
    IDS = "ids"
    MASK = "mask"
    FIRST = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWiring:
    """What is known better than the checkpoint: how the draft is fed, and how its answers read."""

    layers: tuple[int, ...] | None = None  # after k target layers, in fc's own order; None = the checkpoint's
    norm_output: bool | None = None
    norm_before_residual: bool | None = None
    map_reading: MapReading = MapReading.OFFSETS


AS_DECLARED = DraftWiring()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """An EAGLE-3 head. `body` gives its layers' widths; body.vocab_size is the target's."""

    body: ModelConfig
    target_hidden_size: int
    draft_vocab_size: int
    captures: tuple[int, ...]  # after k target layers, ascending
    norm_before_residual: bool = False  # residual = the normed hidden state
    fc_norm: bool = False  # EAGLE-3.1: one RMS norm for each captured chunk
    norm_before_fc: bool = False  # one RMS norm over the concatenation
    norm_output: bool = False  # the next step is fed the normed hidden state
    fc_bias: bool = False
    tie_head: bool = False  # the head is the embedding table

    @property
    def feature_size(self) -> int:
        """Width of the concatenated captures."""
        return len(self.captures) * self.target_hidden_size

    @property
    def pruned(self) -> bool:
        """Whether the head covers a part of the vocabulary."""
        return self.draft_vocab_size != self.body.vocab_size


def default_captures(num_layers: int) -> tuple[int, ...]:
    """After 2, N // 2 and N - 3 layers, which every engine takes when a checkpoint names none.

    Raises:
        ValueError: the target is so short that they coincide.
    """
    if num_layers < DEFAULT_CAPTURES_NEED:
        raise ValueError(
            f"a target of {num_layers} layers is too short for the default capture layers"
            f" (2, {num_layers // 2}, {num_layers - 3}); name eagle_aux_hidden_state_layer_ids in the draft's config"
        )
    return (2, num_layers // 2, num_layers - 3)


def settle_captures(
    ids: tuple[int, ...] | None, convention: CaptureConvention, *, num_layers: int, speculators: bool = False
) -> tuple[int, ...]:
    """Turn a checkpoint's layer ids into "after k layers", once.

    Raises:
        ValueError: ids that repeat, do not ascend or lie outside the target.
    """
    if ids is None:
        return default_captures(num_layers)
    if convention is CaptureConvention.AUTO:
        output = not speculators and ids[:1] == (1,)
        convention = CaptureConvention.OUTPUT if output else CaptureConvention.INPUT
    shift = 1 if convention is CaptureConvention.OUTPUT else 0
    captures = tuple(layer + shift for layer in ids)
    if not captures or list(captures) != sorted(set(captures)) or captures[0] < 0 or captures[-1] > num_layers:
        raise ValueError(
            f"capture layer ids {list(ids)} read as '{convention.value}' mean after {list(captures)} layers, but the"
            f" target has {num_layers} and they must ascend without repeats; check --capture-convention"
        )
    return captures

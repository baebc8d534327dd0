"""How a draft can be fed, how its answers can be read, and each way in which that can be wrong by one thing.

facts about what goes wrong in the field: layer ids under two conventions, ids off by one, captured states in another
order, a normed hidden state fed back, tokens that are not shifted, vocabulary maps that are zeroed or misread.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from torch import Tensor

from slipstream.config.draft import MapReading, default_captures


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """One complete way to feed a draft and to read it."""

    layers: tuple[int, ...]  # after k target layers, in fc's own order
    norm_output: bool
    norm_before_residual: bool
    map_reading: MapReading
    shifted: bool = True  # at position p the draft embeds token p + 1, not p
    own_embedding: bool = True  # the checkpoint's embeddings, where it has any
    own_rope: bool = True  # the draft's RoPE, where it is not the target's


class Aspect(Enum):
    """What a hypothesis changes."""

    LAYERS = "layers"
    FEEDBACK = "feedback"
    RESIDUAL = "residual"
    MAP = "map"
    SHIFT = "shift"
    EMBEDDING = "embedding"
    ROPE = "rope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A wiring that differs from another by one thing."""

    name: str
    aspect: Aspect | None  # None: the wiring that the others are compared with
    wiring: Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What there is to choose from for one pair of models."""

    num_layers: int  # of the target
    maps: Mapping[MapReading, Tensor]  # target ids [V] under each reading that is possible
    has_embedding: bool  # the checkpoint has embeddings that are not the target's
    has_rope: bool  # the draft's RoPE is not the target's


DECLARED = "as declared"


def alternatives(base: Wiring, choices: Choices, *, leave: frozenset[Aspect] = frozenset()) -> list[Hypothesis]:
    """Every hypothesis that differs from `base` by one thing; aspects in `leave` are settled."""
    found = [each for each in _all(base, choices) if each.aspect not in leave]
    return [each for each in found if each.wiring != base]


def _all(base: Wiring, choices: Choices) -> Iterator[Hypothesis]:
    seen = [choices.maps[base.map_reading]] if base.map_reading in choices.maps else []
    for reading, ids_V in choices.maps.items():
        if not any(_same(ids_V, other_V) for other_V in seen):
            seen.append(ids_V)
            yield _one(MAP_NAMES[reading], Aspect.MAP, base, map_reading=reading)
    yield from _layers(base, choices.num_layers)
    normed, raw = "post-norm feedback", "pre-norm feedback"
    yield _one(raw if base.norm_output else normed, Aspect.FEEDBACK, base, norm_output=not base.norm_output)
    residual = "residual before the norm" if base.norm_before_residual else "residual after the norm"
    yield _one(residual, Aspect.RESIDUAL, base, norm_before_residual=not base.norm_before_residual)
    yield _one("unshifted tokens" if base.shifted else "shifted tokens", Aspect.SHIFT, base, shifted=not base.shifted)
    if choices.has_embedding:
        name = "the target's embedding" if base.own_embedding else "the draft's own embedding"
        yield _one(name, Aspect.EMBEDDING, base, own_embedding=not base.own_embedding)
    if choices.has_rope:
        name = "the target's RoPE" if base.own_rope else "the draft's own RoPE"
        yield _one(name, Aspect.ROPE, base, own_rope=not base.own_rope)


MAP_NAMES: Mapping[MapReading, str] = {
    MapReading.OFFSETS: "d2t as offsets",
    MapReading.IDS: "d2t as ids",
    MapReading.MASK: "t2d instead of d2t",
    MapReading.FIRST: "d2t zeroed",
}


def _layers(base: Wiring, num_layers: int) -> Iterator[Hypothesis]:
    seen = {base.layers}
    candidates = [
        ("layers +1", tuple(layer + 1 for layer in base.layers)),
        ("layers -1", tuple(layer - 1 for layer in base.layers)),
        ("layers reversed", base.layers[::-1]),
        ("layers ascending", tuple(sorted(base.layers))),
    ]
    if len(base.layers) == 3 and num_layers >= 7:
        candidates.append(("default layers", default_captures(num_layers)))
    for name, layers in candidates:
        if layers not in seen and all(0 <= layer <= num_layers for layer in layers):
            seen.add(layers)
            yield _one(name, Aspect.LAYERS, base, layers=layers)


def _one(name: str, aspect: Aspect, base: Wiring, **change: object) -> Hypothesis:
    return Hypothesis(name=name, aspect=aspect, wiring=replace(base, **change))


def _same(one_V: Tensor, other_V: Tensor) -> bool:
    return one_V.shape == other_V.shape and bool((one_V == other_V).all())

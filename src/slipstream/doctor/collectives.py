"""The collectives of a cycle by arithmetic: how many, of what size, over how many ranks."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

ELEMENT_BYTES = 2  # of bf16, in which hidden states travel
KEY_BYTES = 8  # a score and its token id, packed into one integer
CANDIDATE_BYTES = 2 * ELEMENT_BYTES  # a score and its token id as the draft gathers them
TOKEN_BYTES = 8


class DraftPlacement(Enum):
    """Which ranks hold the draft."""

    REPLICATED = "replicated"  # whole on every rank
    SHARDED = "sharded"  # cut over the first ranks


class TargetShape(Protocol):
    """What a target's communication depends on; a ModelConfig is one."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """What a draft's communication depends on."""

    hidden_size: int
    num_layers: int = 1
    shares_embedding: bool = True  # with the target, whose table is cut over all its ranks, where the draft is too
    topk: int = 1
    draft_tokens: int | None = None  # None: a chain, as many as steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Where the draft lives: on every rank, or cut over the first `ranks`."""

    kind: DraftPlacement
    ranks: int  # over which it is cut; 1 when replicated


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Collectives of one kind in a cycle."""

    stage: str
    role: str
    op: str
    name: str  # as the layer calls it
    count: int
    num_bytes: int  # of one, a rank's share
    ranks: int


def collectives_of_cycle(
    config: TargetShape, draft: DraftShape, placement: Placing, steps: int, tp: int
) -> tuple[CollectiveRow, ...]:
    """Everything one request's cycle sends, in order; steps 0 is a plain decode step."""
    if tp == 1:
        return ()
    if steps == 0:
        return _target(config, 1, tp)
    nodes = steps if draft.draft_tokens is None else draft.draft_tokens
    return (*_draft(draft, placement, steps, tp, nodes=nodes), *_target(config, nodes + 1, tp))


def _draft(draft: DraftShape, placing: Placing, steps: int, tp: int, *, nodes: int) -> tuple[CollectiveRow, ...]:
    """A step's collectives, steps times, then the tree for those who did not draft it."""
    hidden, width = draft.hidden_size * ELEMENT_BYTES * draft.topk, placing.ranks
    found: list[CollectiveRow] = []
    if draft.shares_embedding and placing.kind is DraftPlacement.SHARDED and width == tp:
        found.append(_row("draft", "draft", "all_reduce", "embedding", steps, hidden, tp))
    if placing.kind is DraftPlacement.SHARDED and width > 1:
        layers = steps * draft.num_layers
        candidates = draft.topk * (2 * draft.topk + 1) * CANDIDATE_BYTES if draft.topk > 1 else KEY_BYTES
        name = "best children" if draft.topk > 1 else "best token"
        found.append(_row("draft", "draft", "all_reduce", "attention", layers, hidden, width))
        found.append(_row("draft", "draft", "all_reduce", "mlp", layers, hidden, width))
        found.append(_row("draft", "draft", "all_gather", name, steps, candidates, width))
    if placing.kind is DraftPlacement.SHARDED and width < tp:
        found.append(_row("draft", "draft", "broadcast", "tree", 1, 2 * nodes * TOKEN_BYTES, tp))
    return tuple(found)


def _target(config: TargetShape, rows: int, tp: int) -> tuple[CollectiveRow, ...]:
    hidden = config.hidden_size * ELEMENT_BYTES * rows
    return (
        _row("verify", "target", "all_reduce", "embedding", 1, hidden, tp),
        _row("verify", "target", "all_reduce", "attention", config.num_layers, hidden, tp),
        _row("verify", "target", "all_reduce", "mlp", config.num_layers, hidden, tp),
        _row("verify", "target", "all_gather", "best token", 1, rows * KEY_BYTES, tp),
    )


def _row(stage: str, role: str, op: str, name: str, count: int, num_bytes: int, ranks: int) -> CollectiveRow:
    return CollectiveRow(stage=stage, role=role, op=op, name=name, count=count, num_bytes=num_bytes, ranks=ranks)

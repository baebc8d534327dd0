"""How a layer is cut over a group: which heads, columns and vocabulary rows are a rank's own (Shoeybi et al. 2019).

Heads are never split. A width that the ranks do not divide is cut unevenly, in blocks that matrix units like.
"""

from dataclasses import dataclass

from slipstream.parallel.group import Group

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Elements [start, stop) of a dimension."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a vocabulary."""

    group: Group
    span: Span  # the ids it scores
    total: int

    @property
    def first(self) -> int:
        """The lowest of its ids."""
        return self.span.start


def shard_of(total: int, group: Group) -> Shard:
    """This rank's part of a vocabulary of `total` ids."""
    return Shard(group, span_of(total, group.rank, group.size), total)


def span_of(total: int, rank: int, size: int) -> Span:
    """A rank's part of a width: even where `size` divides it, else whole blocks and what is left in the last.

    A width too small for a block each is cut between any two elements, so that no rank goes without.
    """
    if total % size == 0:
        return Span(total // size * rank, total // size * (rank + 1))
    block = BLOCK if total >= BLOCK * size else 1
    blocks = -(-total // block)
    bounds = [min(total, blocks * edge // size * block) for edge in (rank, rank + 1)]
    return Span(bounds[0], bounds[1])


def query_heads(num_heads: int, rank: int, size: int) -> Span:
    """A rank's query heads; check_heads has seen that they divide."""
    return span_of(num_heads, rank, size)


def kv_heads(num_kv_heads: int, rank: int, size: int) -> Span:
    """A rank's key and value heads; with fewer of them than ranks, several ranks hold the same one."""
    if num_kv_heads >= size:
        return span_of(num_kv_heads, rank, size)
    head = rank * num_kv_heads // size
    return Span(head, head + 1)


def valid_sizes(num_heads: int, num_kv_heads: int) -> tuple[int, ...]:
    """The group sizes that this many heads can be cut over."""
    return tuple(
        size
        for size in range(1, num_heads + 1)
        if num_heads % size == 0 and (num_kv_heads % size == 0 or size % num_kv_heads == 0)
    )


def check_heads(what: str, *, num_heads: int, num_kv_heads: int, size: int) -> None:
    """Refuse a group over which a model cannot be cut.

    Raises:
        ValueError: naming the sizes that are possible.
    """
    sizes = valid_sizes(num_heads, num_kv_heads)
    if size not in sizes:
        raise ValueError(
            f"{what} has {num_heads} heads and {num_kv_heads} KV heads, which cannot be cut over {size} ranks;"
            f" use {', '.join(map(str, sizes))}"
        )

"""Build the Attend of one forward from rows given as addresses.

Shape letters: S requests, R rows of each, P path length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.attention.interface import RowsAttend
from slipstream.attention.paged import PagedAttend
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.attention.sequence import SequenceRows


def attend_spans(
    pool: KVPool, runs: Sequence[SlotRun], spans: Sequence[tuple[int, int]], *, shift: int = 0
) -> RowsAttend:
    """Causal rows: request s runs positions [start, stop) of spans[s]; entries stand at position + shift.

    shift 0 is the target's addressing, 1 the draft's, whose address 0 is never used.
    """
    device, sequences, begin = pool.device, [], 0
    positions, slots = [], []
    for run, (start, stop) in zip(runs, spans, strict=True):
        addresses = torch.arange(start + shift, stop + shift, device=device)
        rows = SequenceRows(
            start=begin, stop=begin + stop - start, run=run, addresses=addresses, last=stop + shift - 1, first=shift
        )
        sequences.append(rows)
        positions.append(addresses - shift)
        slots.append(run.slots[start + shift : stop + shift])
        begin = rows.stop
    if pool.pdl is None:
        return PagedAttend(pool, _joined(positions), _joined(slots), tuple(sequences))
    from slipstream.attention.spans import span_attend  # noqa: PLC0415 - needs triton

    return span_attend(pool, pool.pdl, _joined(positions), _joined(slots), sequences)


def attend_trees(
    pool: KVPool,
    runs: Sequence[SlotRun],
    *,
    committed: Sequence[int],
    addresses_SR: Tensor,
    positions_SR: Tensor,
    paths_SRP: Tensor,
    first: int = 0,
) -> PagedAttend:
    """Tree rows: each sees the entries [first, committed) of its request and those of its own path.

    addresses_SR: where each row's entry is written; paths_SRP: addresses from the tree's first row down to the row
    itself, NO_ADDRESS beyond.
    """
    num_rows, sequences, slots = addresses_SR.shape[1], [], []
    for index, run in enumerate(runs):
        sequences.append(
            SequenceRows(
                start=index * num_rows,
                stop=(index + 1) * num_rows,
                run=run,
                addresses=addresses_SR[index],
                last=committed[index] + paths_SRP.shape[2] - 1,
                first=first,
                committed=committed[index],
                paths=paths_SRP[index],
            )
        )
        slots.append(run.slots[addresses_SR[index]])
    return PagedAttend(pool, positions_SR.flatten(), _joined(slots), tuple(sequences))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)

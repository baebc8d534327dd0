"""Threads stand in for ranks: the same sums, the same order, and one that stays away is not waited for in vain."""

from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from threading import BrokenBarrierError

import pytest
import torch

from slipstream.parallel.loopback import Exchange, LoopbackGroup
from tests.together import together


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_collectives_do_what_the_protocol_says_and_every_rank_gets_the_same_bits(size: int) -> None:
    values = torch.randn(size, 4, 3, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-2, 1)

    def collect(group: LoopbackGroup) -> tuple[torch.Tensor, ...]:
        mine = values[group.rank].clone()
        found = group.all_reduce(mine, "a"), group.all_gather(mine, "b"), group.broadcast(mine, "c")
        mine.zero_()  # its owner may; the others' results must not change
        return found

    in_order = reduce(torch.add, values.unbind())
    for total, gathered, first in together(size, collect):
        assert torch.equal(total, in_order)
        assert torch.equal(gathered, values)
        assert torch.equal(first, values[0])


def test_a_result_may_be_overwritten_without_harm_to_the_others() -> None:
    def spoil(group: LoopbackGroup) -> torch.Tensor:
        for _ in range(50):
            x = torch.full((8,), float(group.rank + 1))
            for found in (group.broadcast(x, "a"), group.all_gather(x, "b"), group.all_reduce(x, "c")):
                found.fill_(-1.0)
        return group.all_reduce(x, "d")

    assert all(each.tolist() == [3.0] * 8 for each in together(2, spoil))


def test_a_rank_that_stays_away_breaks_the_meeting_for_all() -> None:
    exchange = Exchange(3, timeout_s=0.2)
    groups = [LoopbackGroup(exchange, rank) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(group.all_reduce, torch.ones(1), "x") for group in groups]
        for each in waiting:
            with pytest.raises(BrokenBarrierError):
                each.result()

"""Memory is shared out by the rank with the least room, and a refusal names what would do."""

import re
from dataclasses import replace

import pytest

from slipstream.flow.orders import RankShare
from slipstream.serve.budget import CUDA_WORKSPACE, GIB, SPARE_ENTRIES, Budget, balance_warning, count_entries

ENTRY = 100_000  # bytes
SIZES = {"longest": 4100, "tail": 30, "least": 32}


def share(rank: int, *, free_gib: float = 60.0, entry_bytes: int = ENTRY, device: str = "cuda") -> RankShare:
    return RankShare(
        rank=rank,
        host="here",
        device=f"{device}:{rank}" if device == "cuda" else device,
        target_bytes=0,
        draft_bytes=0,
        kv_bytes=0,
        draft_group=0,
        shards=(),
        free_bytes=int(free_gib * GIB),
        total_bytes=80 * GIB,
        entry_bytes=entry_bytes,
        shares_embedding=False,
        all_reduce=(),
        reruns=0,
    )


def entries(budget: Budget, *shares: RankShare, wanted: int = 10**9) -> int:
    return count_entries(budget, shares, wanted=wanted, **SIZES)


def test_no_more_is_taken_than_is_wanted() -> None:
    assert entries(Budget(), share(0), wanted=5000) == 5000
    assert entries(Budget(kv_gib=1.0), share(0), wanted=5000) == 5000


def test_a_fraction_is_of_the_whole_device_with_everything_on_it() -> None:
    found = entries(Budget(memory_fraction=0.5), share(0))
    assert found * ENTRY <= 20 * GIB - CUDA_WORKSPACE < (found + SPARE_ENTRIES + 1) * ENTRY


def test_the_rank_with_the_least_room_for_its_own_entries_decides() -> None:
    """The one with the draft has less memory left, or larger entries."""
    budget, roomy = Budget(memory_fraction=0.9), share(1)
    for tight in (share(0, free_gib=30), share(0, entry_bytes=2 * ENTRY)):
        assert entries(budget, tight, roomy) == entries(budget, roomy, tight) == entries(budget, tight)
        assert entries(budget, tight) < entries(budget, roomy)
    assert entries(Budget(kv_gib=1.0), share(0, entry_bytes=2 * ENTRY), roomy) == GIB // (2 * ENTRY)


def test_ranks_of_one_host_share_its_memory_on_a_cpu() -> None:
    budget = Budget(memory_fraction=0.9)
    alone, both = (entries(budget, *(share(rank, device="cpu") for rank in range(size))) for size in (1, 2))
    assert 0.4 * alone < both < 0.5 * alone + 1


def test_the_fraction_that_a_refusal_names_is_enough_and_one_percent_less_is_not() -> None:
    shares = [share(0, free_gib=50), share(1, free_gib=40)]
    with pytest.raises(ValueError, match=r"on rank 1 .*; raise --memory-fraction to 0\.\d\d") as refused:
        entries(Budget(memory_fraction=0.5), *shares)
    named = re.search(r"to (0\.\d\d)", str(refused.value))
    assert named is not None
    enough = float(named[1])
    assert entries(Budget(memory_fraction=enough), *shares) >= SIZES["longest"]
    with pytest.raises(ValueError, match="raise --memory-fraction"):
        entries(Budget(memory_fraction=round(enough - 0.01, 2)), *shares)


def test_the_length_that_a_refusal_names_fits() -> None:
    budget, large = Budget(memory_fraction=0.98), share(0, free_gib=3.0, entry_bytes=10 * ENTRY)
    with pytest.raises(ValueError, match=r"lower --max-len to \d+$") as refused:
        entries(budget, large)
    length = int(str(refused.value).rsplit(" ", 1)[1])
    longest = length + SIZES["tail"]
    assert count_entries(budget, [large], wanted=10**9, **{**SIZES, "longest": longest}) >= longest


def test_where_nothing_helps_the_refusal_says_so() -> None:
    with pytest.raises(ValueError, match="use a smaller model or more ranks"):
        entries(Budget(memory_fraction=0.9), share(0, free_gib=0.5))


def test_more_keys_and_values_than_the_weights_leave_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--kv-gib 70 is more than the 30\.0 GiB that the weights leave on rank 1"):
        entries(Budget(kv_gib=70.0), share(0, free_gib=75), share(1, free_gib=30))


def test_an_imbalance_of_more_than_a_tenth_is_told_with_both_ranks() -> None:
    even = [share(0, free_gib=60), share(1, free_gib=55)]
    assert balance_warning(even) is None
    found = balance_warning([even[0], replace(even[1], free_bytes=50 * GIB)])
    assert found is not None
    assert "rank 1 (here cuda:1) has 50.0 GiB free" in found
    assert "rank 0 has 60.0" in found


def test_pools_that_are_there_now_make_room_for_the_new_ones() -> None:
    """As when a longer cycle wants larger ones."""
    empty, full = share(0), replace(share(0, free_gib=20.0), kv_bytes=40 * GIB)
    for budget in (Budget(memory_fraction=0.9), Budget(kv_gib=30.0)):
        assert entries(budget, full) == entries(budget, empty)

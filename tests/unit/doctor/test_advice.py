"""Gains are latency differences times how often a cycle pays them."""

from slipstream.doctor.advice import Curve, advise, all_reduce_us
from slipstream.doctor.collectives import CollectiveRow
from slipstream.doctor.latency import CUDA_SETTINGS, Health, Latency

SIZES = (8192, 32768, 4 << 20)


def row(name: str, op: str, count: int, num_bytes: int) -> CollectiveRow:
    return CollectiveRow(stage="verify", role="target", op=op, name=name, count=count, num_bytes=num_bytes, ranks=2)


PLAIN = (row("mlp", "all_reduce", 10, 8192),)
CYCLE = (row("mlp", "all_reduce", 10, 32768), row("best token", "all_gather", 1, 8))


def latencies(**us: tuple[float, float, float]) -> list[Latency]:
    """Settings by name with spaces and dashes as underscores; the others hung."""
    found: list[Latency] = []
    for setting in CUDA_SETTINGS:
        times = us.get(setting.name.replace(" ", "_").replace("-", "_"), ())
        health = Health.OK if times else Health.HUNG
        found.append(Latency(setting=setting, health=health, us=times, reason=""))
    return found


def advice(tp: int = 2, **us: tuple[float, float, float]) -> dict[str, tuple[float, float, float]]:
    found = advise(latencies(**us), sizes=SIZES, plain=PLAIN, cycle=CYCLE, tp=tp)
    return {each.line: (each.cycle_us, each.plain_us, each.largest_us) for each in found}


def test_a_size_between_two_measured_ones_takes_the_larger():
    curve = Curve(sizes=SIZES, us=(1.0, 2.0, 3.0))
    assert [curve.at(size) for size in (1, 8192, 8193, 9 << 20)] == [1.0, 1.0, 2.0, 3.0]


def test_only_all_reduces_are_counted():
    assert all_reduce_us(Curve(sizes=SIZES, us=(5.0, 6.0, 7.0)), CYCLE) == 60.0


def test_a_faster_protocol_is_advised_with_its_gain_and_what_a_prefill_loses():
    assert advice(NCCL=(12, 13, 50), NCCL_LL=(10, 11, 80)) == {"NCCL_PROTO=LL": (20, 20, -30)}


def test_the_best_comes_first_and_what_gains_nothing_is_not_advised():
    found = advice(NCCL=(12, 13, 50), NCCL_LL=(10, 11, 80), NCCL_LL128=(9, 10, 50), NCCL_Simple=(20, 21, 40))
    assert list(found) == ["NCCL_PROTO=LL128", "NCCL_PROTO=LL"]


def test_a_gain_within_the_spread_is_none():
    assert advice(NCCL=(12, 13, 50), NCCL_LL=(12, 12.9, 50)) == {}


def test_over_two_ranks_shared_memory_may_be_mixed_with_nccl():
    found = advice(NCCL=(12, 13, 50), one_shot=(6, 8, 90), two_shot=(7, 7, 60))
    assert found == {"": (60, 60, 0)}


def test_over_more_ranks_shared_memory_serves_every_size():
    found = advice(4, NCCL=(12, 13, 50), one_shot=(6, 8, 90), two_shot=(7, 7, 60))
    assert found == {"": (60, 60, -10)}


def test_without_numbers_for_the_default_there_is_no_advice():
    assert advice(NCCL_LL=(1, 1, 1)) == {}

"""Lists in options: by position every number counts, of sizes each is tried once."""

import pytest

from slipstream.cli import bench_latency
from slipstream.cli.bench_latency import Grid, chosen_subject
from slipstream.cli.lists import numbers, sizes
from slipstream.config.placement import LEADER_ALONE
from slipstream.flow.orders import PlaceDraft


def test_a_list_by_position_keeps_equal_neighbours_and_a_list_of_sizes_has_each_once():
    assert numbers("--acceptance", "0.7,0.7, 0.5", float, low=0, high=1) == (0.7, 0.7, 0.5)
    assert sizes("--batch", "4,1,4,16", int, low=1, high=256) == (4, 1, 16)
    assert sizes("--context", "2k,2048", bench_latency.tokens, low=2, high=1 << 24) == (2048,)


def test_bench_latency_decrees_an_acceptance_for_every_position():
    subject = chosen_subject("tiny", None, None)
    order = PlaceDraft(path=None, placement=LEADER_ALONE, dtype="float32", dummy=subject.dummy)
    sweep = Grid(steps="3,1,3", batch="1,1", acceptance="0.7,0.7,0.5").sweep(subject, order)
    assert sweep.acceptance == (0.7, 0.7, 0.5)
    assert (sweep.steps, sweep.batches) == ((0, 1, 3), (1,))


@pytest.mark.parametrize("read", [numbers, sizes])
@pytest.mark.parametrize(("text", "said"), [("1,,2", "is numbers with commas"), ("1,9", "between 0 and 2")])
def test_what_is_no_list_in_range_is_refused(read, text: str, said: str):
    with pytest.raises(ValueError, match=said):
        read("--steps", text, int, low=0, high=2)

"""A launcher's ranks meet once."""

from dataclasses import replace

import pytest
import torch.distributed as dist

from slipstream.parallel.channel import KEY, refuse_second_group
from slipstream.parallel.launch import local_spot


def test_ranks_that_have_met_serve_no_second_engine():
    store, spot = dist.HashStore(), local_spot(2)
    refuse_second_group(spot, store)
    store.set(KEY.format(attempt=0), "where rank 0 was")
    with pytest.raises(ValueError, match="serve one engine"):
        refuse_second_group(spot, store)


def test_ranks_that_a_launcher_restarted_may_meet_again():
    store, spot = dist.HashStore(), local_spot(2)
    store.set(KEY.format(attempt=0), "where rank 0 of the first attempt was")
    refuse_second_group(replace(spot, attempt=1), store)

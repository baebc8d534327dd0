"""A launcher's ranks meet once."""

import pytest
import torch.distributed as dist

from slipstream.parallel.channel import KEY, refuse_second_group


def test_ranks_that_have_met_serve_no_second_engine():
    store = dist.HashStore()
    refuse_second_group(store)
    store.set(KEY, "where rank 0 was")
    with pytest.raises(ValueError, match="serve one engine"):
        refuse_second_group(store)

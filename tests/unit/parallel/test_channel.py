"""Ranks meet once, and small orders reach them at once."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch.distributed as dist

from slipstream.parallel.channel import KEY, open_follower, open_leader, refuse_second_group
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


def sends_at_once(connection) -> bool:
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as sock:
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_an_order_does_not_wait_for_the_receipt_of_the_last_one():
    store, spot = dist.HashStore(), local_spot(2)
    with ThreadPoolExecutor() as pool:
        coming = pool.submit(open_follower, replace(spot, rank=1), store)
        leader, follower = open_leader(spot, store, lost=lambda: None), coming.result()
    assert sends_at_once(leader._connections[0])
    assert sends_at_once(follower._connection)
    leader.tell("go")
    assert follower.hear() == "go"
    leader.close()
    follower.close()

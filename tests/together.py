"""Run one function on every rank of a loopback group, a thread each."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from slipstream.parallel.loopback import LoopbackGroup, loopback

Found = TypeVar("Found")


def together(size: int, call: Callable[[LoopbackGroup], Found]) -> list[Found]:
    """What the ranks return, in rank order."""
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(call, loopback(size)))

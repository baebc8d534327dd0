"""Microseconds of a collective as it will run: in CUDA graphs on a GPU, called one by one on a CPU."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

CALLS, REPEATS, WARM_UP = 50, 7, 3


def time_calls(
    call: Callable[[], object], device: torch.device, *, calls: int = CALLS, repeats: int = REPEATS
) -> float:
    """Median microseconds of a call, many of them back to back; all ranks of a collective time it together."""
    if device.type == "cuda":
        return _in_graph(call, calls=calls, repeats=repeats)
    for _ in range(WARM_UP):
        call()
    return median(_seconds(call, calls) for _ in range(repeats)) / calls * 1e6


def _seconds(call: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - began


def _in_graph(call: Callable[[], object], *, calls: int, repeats: int) -> float:
    graph = captured(call, calls=calls)
    graph.replay()
    spans: list[float] = []
    for _ in range(repeats):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()  # sync: a measurement, before anything is served
        spans.append(began.elapsed_time(ended))
    return median(spans) / calls * 1e3


def captured(
    call: Callable[[], object], *, calls: int = 1, pool: Any = None, before: Callable[[], object] = lambda: None
) -> torch.cuda.CUDAGraph:
    """Capture a call repeated, after the warm-up that libraries need to set themselves up.

    pool: a handle of torch.cuda.graph_pool_handle: memory of graphs that never run at once and leave nothing for each
    other in it. before: done before each call that warms up and before the first replay, not captured.
    """
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(WARM_UP):
            before()
            call()
        before()
    torch.cuda.current_stream().wait_stream(warm)
    torch.cuda.synchronize()  # sync: nothing may be pending when a capture begins
    graph = torch.cuda.CUDAGraph()
    # "thread_local": NCCL's watchdog thread asks its events while this thread captures, which "global" forbids
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    return graph


def message(num_bytes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of a size: sums of them stay finite however often they are reduced."""
    return torch.zeros(max(1, num_bytes // dtype.itemsize), dtype=dtype, device=device)

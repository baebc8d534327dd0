"""Timing of device work by graph replay, and where the numbers go: a line on the screen, a line of JSON.

Rates are bytes over seconds; TB/s = 1e12 bytes a second.
"""

import json
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

COPY_BYTES = 2 << 30


@dataclass(slots=True)
class Record:
    """Where measurements go, and how much time is left."""

    path: Path | None
    stop_at: float  # time.monotonic() after which nothing new begins
    read_rate: float = 4.4e12  # bytes a second, once measured
    failed: list[str] = field(default_factory=list)

    def left(self) -> float:
        """Seconds left."""
        return self.stop_at - time.monotonic()

    def say(self, text: str, **values: Any) -> None:
        """Print a line and keep its values."""
        print(text, flush=True)
        self.keep(**values)

    def keep(self, **values: Any) -> None:
        """Keep values without a line on the screen."""
        if self.path is not None and values:
            with self.path.open("a") as file:
                file.write(json.dumps(values, default=str) + "\n")

    def attempt(self, name: str, work: Callable[[], None], *, least: float = 5.0) -> None:
        """Do one part; its failure is recorded and the next part runs."""
        if self.left() < least:
            self.say(f"skipped {name}: no time", what="skipped", name=name)
            return
        try:
            work()
        except Exception as error:
            self.failed.append(name)
            self.say(f"FAILED {name}: {str(error)[:300]}", what="failed", name=name, trace=traceback.format_exc())

    def rate(self, name: str, ms: float, num_bytes: float, **values: Any) -> None:
        """Print a time beside what it moved: TB/s and the share of the read rate."""
        rate = num_bytes / ms * 1e3
        share = rate / self.read_rate
        text = f"{name:58s} {ms:8.4f} ms {rate / 1e12:6.2f} TB/s {share:5.0%}"
        self.say(text, what="time", name=name, ms=ms, tb_s=rate / 1e12, share=share, **values)


def graph_ms(work: Callable[[], Any], *, replays: int = 9, calls: int = 1) -> float:
    """Median milliseconds of one call of `work` in a CUDA graph of `calls` calls, replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            work()
    times = []
    for number in range(replays + 2):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        if number > 1:
            times.append(before.elapsed_time(after) / calls)
    return statistics.median(times)


def measure_rates(record: Record) -> None:
    """The device's copy and read rates, by which everything else is judged."""
    source = torch.empty(COPY_BYTES // 2, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    copy_ms = graph_ms(lambda: target.copy_(source))
    record.say(
        f"{torch.cuda.get_device_name()}: copy {2 * COPY_BYTES / copy_ms / 1e9:.2f} TB/s (read + write)",
        what="copy", tb_s=2 * COPY_BYTES / copy_ms / 1e9,
    )  # fmt: skip
    view = source.view(torch.int32)
    read_ms = graph_ms(lambda: view.amax())
    record.read_rate = COPY_BYTES / read_ms * 1e3
    record.say(f"read {record.read_rate / 1e12:.2f} TB/s (amax)", what="read", tb_s=record.read_rate / 1e12)

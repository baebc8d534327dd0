"""Writes down when rank 0's device enters each part of a cycle, and when its collectives begin and end.

It hears the marks of the cycle and hooks the models: the draft's steps are its forwards, sampling begins where the
target's head ends. On a CPU a point in time is the host's clock; on a GPU an event, which a captured graph records
again at every replay (an external event), so that nothing waits and graphs stay whole.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from slipstream.bench.delays import Brake
from slipstream.bench.spans import ACCEPT, EXTEND, HOST, VERIFY, Call, CycleTimes, label_at, spans_between, step_label
from slipstream.bench.watched import WatchedProducts
from slipstream.config.speculation import Speculation
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.engine.executor import Ordering, RankExecutor
from slipstream.flow.batch import Batch
from slipstream.flow.orders import MakePools
from slipstream.layers.products import Products
from slipstream.models.decoder import Decoder
from slipstream.parallel.stamps import Stage
from slipstream.runner.cycle import Marks
from slipstream.runner.worker import Worker

LABELS = {Stage.EXTEND: EXTEND, Stage.VERIFY: VERIFY, Stage.ACCEPT: ACCEPT}
Moment = float | torch.cuda.Event


@dataclass(frozen=True, slots=True)
class _Point:
    label: str
    when: Moment
    is_mark: bool = False  # made by the host beside the graphs, where there are any


@dataclass(frozen=True, slots=True)
class _Call:
    role: str
    op: str
    name: str
    num_bytes: int
    began: Moment
    ended: Moment


@dataclass(slots=True)
class _Tape:
    """What was written down, in the order of the host."""

    points: list[_Point] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)


class Recorder:
    """Marks of one cycle after the other; `left` gives a cycle's times when the engine's step has returned."""

    def __init__(self, device: torch.device, brake: Brake) -> None:
        self._inner: Marks | None = None
        self._brake, self._on_gpu = brake, device.type == "cuda"
        self._active = False
        self._live, self._replayed, self._capture = _Tape(), _Tape(), _Tape()
        self._num_steps, self._began_calls = 0, []
        self._handles: list[RemovableHandle] = []
        self._watched: list[tuple[Decoder | Eagle3Draft, Products]] = []
        self._engine_s = self._entered_s = time.perf_counter()
        self._end: Moment | None = None
        self._used: list[torch.cuda.Event] = []  # of this cycle, but for those that graphs record
        self._spare: list[torch.cuda.Event] = []  # of former cycles, to be recorded again

    # ------------------------------------------------------------------ what the rank tells

    def mark(self, stage: Stage) -> None:
        """The cycle enters a stage, or launches the graph that does."""
        assert self._inner is not None, "attach comes first"
        self._inner.mark(stage)
        if stage in LABELS:
            self._point(LABELS[stage], is_mark=True)

    def enter(self, stage: Stage) -> None:
        """Work that may be captured enters a stage."""
        self._num_steps = 0
        self._point(LABELS[stage])

    def collective_begins(self) -> None:
        """One is about to be queued."""
        if self._active:
            self._began_calls.append(self._now())

    def collective_ends(self, *, role: str, op: str, name: str, num_bytes: int) -> None:
        """It has been queued."""
        if self._active and self._began_calls:
            self._tape().calls.append(_Call(role, op, name, num_bytes, self._began_calls.pop(), self._now()))

    # ------------------------------------------------------------------ what the engine's side tells

    def attach(self, worker: Worker) -> None:
        """Listen to a new worker; what a former one's graphs left is forgotten."""
        self.detach()
        self._replayed, cycle, delays = _Tape(), worker.cycle, self._brake.delays
        self._inner, cycle.stamps, cycle.on_enter = cycle.stamps, self, self.enter
        self._handles.append(cycle.target.register_forward_pre_hook(self._brake.before(delays.verify)))
        target = cycle.target
        self._watch(target, WatchedProducts(inner=target.products, after={target.head: lambda: self._point(ACCEPT)}))
        if worker.drafter is not None:
            draft = worker.drafter.draft.model
            self._handles.append(draft.register_forward_pre_hook(lambda *_: self._forward_begins()))
            self._handles.append(draft.register_forward_hook(lambda *_: self._forward_ends()))
            held = {draft.fc: delays.extend, draft.head: delays.draft}
            before = {layer: partial(self._brake.hold, ms) for layer, ms in held.items()}
            self._watch(draft, WatchedProducts(inner=draft.products, before=before))

    def detach(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for model, products in self._watched:
            model.products = products
        self._watched.clear()

    def _watch(self, model: Decoder | Eagle3Draft, products: WatchedProducts) -> None:
        self._watched.append((model, products.inner))
        model.products = products

    def begin(self) -> None:
        """The engine hands a cycle to the rank."""
        self._spare, self._used = self._spare + self._used, []
        self._live, self._capture, self._active, self._num_steps = _Tape(), _Tape(), True, 0
        self._entered_s = time.perf_counter()
        self._point(HOST)
        first = self._live.points[0].when
        if isinstance(first, float):
            self._entered_s = first  # one clock: the device's time is the host's

    def end(self) -> None:
        """The rank is done with it."""
        self._end, self._active = self._now(), False
        if isinstance(self._end, torch.cuda.Event):
            self._end.synchronize()  # sync: the device has nothing left to do but this event

    def left(self) -> CycleTimes | None:
        """The times of the cycle whose step has just returned; None where it captured a graph."""
        began_s, ended_s = self._engine_s, time.perf_counter()
        found = None
        if self._capture.points:
            self._replayed = self._capture
        elif self._live.points:
            found = self._times(began_s, ended_s)
        self._engine_s = time.perf_counter()
        return found

    # ------------------------------------------------------------------ inside

    def _forward_begins(self) -> None:
        """The draft's first forward of a cycle extends; each other one is a step."""
        if self._num_steps:
            self._num_steps += 1
            self._point(step_label(self._num_steps))

    def _forward_ends(self) -> None:
        if self._num_steps == 0:
            self._num_steps = 1
            self._point(step_label(1))

    def _point(self, label: str, *, is_mark: bool = False) -> None:
        if self._active:
            self._tape().points.append(_Point(label, self._now(), is_mark))

    def _tape(self) -> _Tape:
        return self._capture if self._capturing() else self._live

    def _capturing(self) -> bool:
        return self._on_gpu and torch.cuda.is_current_stream_capturing()

    def _now(self) -> Moment:
        if not self._on_gpu:
            return time.perf_counter()
        if self._capturing():
            event = torch.cuda.Event(enable_timing=True, external=True)
        else:
            event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
            self._used.append(event)
        event.record()
        return event

    def _times(self, began_s: float, ended_s: float) -> CycleTimes:
        """Put the device's time after the host's: the first point was made when the rank was handed the cycle."""
        first, shift_ms = self._live.points[0].when, (self._entered_s - began_s) * 1e3
        captured = bool(self._replayed.points)
        points = [
            (HOST if captured and each.is_mark else each.label, shift_ms + _ms_between(first, each.when))
            for each in (*self._live.points, *self._replayed.points)
        ]
        assert self._end is not None, "end comes before left"
        end_ms = shift_ms + _ms_between(first, self._end)
        wall_ms = (ended_s - began_s) * 1e3
        on_device = spans_between([(HOST, 0.0), *points], end_ms)
        spans = (*on_device, *spans_between([(HOST, end_ms)], max(end_ms, wall_ms)))  # from the device's end on
        calls = tuple(
            self._call(each, on_device, first, shift_ms) for each in (*self._live.calls, *self._replayed.calls)
        )
        return CycleTimes(began_s=began_s, wall_ms=wall_ms, spans=spans, calls=calls)

    def _call(self, call: _Call, spans: Any, first: Moment, shift_ms: float) -> Call:
        begin_ms = shift_ms + _ms_between(first, call.began)
        return Call(
            label=label_at(spans, begin_ms),
            role=call.role,
            op=call.op,
            name=call.name,
            num_bytes=call.num_bytes,
            begin_ms=begin_ms,
            end_ms=shift_ms + _ms_between(first, call.ended),
        )


class RecordedExecutor(Ordering):
    """Rank 0 and its group, with a recorder told where each cycle begins and ends."""

    def __init__(self, inner: RankExecutor, recorder: Recorder, brake: Brake) -> None:
        self.inner, self.recorder, self._brake = inner, recorder, brake

    @property
    def has_draft(self) -> bool:
        """Whether a draft was placed."""
        return self.inner.has_draft

    @property
    def ended(self) -> bool:
        """Whether the group was closed or lost."""
        return self.inner.ended

    def check(self, shape: Speculation) -> None:
        """Refuse a cycle that the draft cannot grow (ValueError)."""
        self.inner.check(shape)

    def close(self) -> None:
        """End the group in peace."""
        self.inner.close()

    def order_all(self, order: object) -> Any:
        """Have an order carried out; a batch is a cycle, new pools are a new worker."""
        if isinstance(order, Batch):
            self._brake.hold_host()
            self.recorder.begin()
            found = self.inner.order_all(order)
            self.recorder.end()
            return found
        found = self.inner.order_all(order)
        if isinstance(order, MakePools):
            self.recorder.attach(self.inner.worker)
        return found


def _ms_between(first: Moment, second: Moment) -> float:
    if isinstance(first, torch.cuda.Event) and isinstance(second, torch.cuda.Event):
        return first.elapsed_time(second)
    assert isinstance(first, float), "all moments of a device are of one kind"
    assert isinstance(second, float), "the same"
    return (second - first) * 1e3

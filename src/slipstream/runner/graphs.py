"""The cycle of cycle.py in static shapes: two CUDA graphs, and the next cycle launched before this one is read.

The first graph extends the draft, drafts and hands the chain round; the second verifies, accepts and leaves features
for the next extend. Which batches go this way follows from the batch alone, so all ranks decide alike. A capture keeps
the delay that the wire had: drop the graphs when it changes.

Shape letters: S places, N rows of the tree, D depth + 1, F feature width.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from slipstream.attention.sequence import NO_ADDRESS
from slipstream.attention.static import static_attend
from slipstream.config.speculation import MAX_STEPS
from slipstream.draft.placement import hand_round
from slipstream.draft.static import level_attend, static_extend, step_attend
from slipstream.flow.batch import Batch, capture_sizes
from slipstream.flow.output import Run
from slipstream.parallel.stamps import Stage
from slipstream.runner.cycle import Cycle, run_of
from slipstream.runner.flight import Flight, limits_of
from slipstream.runner.inputs import Resident, tree_keys
from slipstream.runner.segment import Segment
from slipstream.runner.statics import Capture, CycleShape, Statics, shape_of
from slipstream.runner.waiting import WaitingRoom, shorten
from slipstream.verify.accept import Accepted

MOST_KEYS = 16_384  # without our kernels longer contexts run uncaptured, which reads no padding
MOST_SHAPES = 64  # captured at a time: they share their working memory, but each has tensors and graphs of its own
KERNEL_GROWTH = 4  # kernels skip the keys that a request does not have: few captures do


@dataclass(frozen=True, slots=True)
class Captured:
    """A shape's tensors and its two segments."""

    statics: Statics
    draft: Segment
    verify: Segment


class GraphedCycle:
    """Runs what `covers` says it can; between such cycles and others, `vacate`."""

    def __init__(
        self, cycle: Cycle, *, max_batch: int, steps: int, sizes: Sequence[int] | None = None, capture: bool = True
    ) -> None:
        """steps: of the usual cycle, which sizes the extend. sizes: of batches that run here, powers of two if left
        out. capture: False runs the same code without graphs.
        """
        self.cycle, self.capture, self._extend_rows = cycle, capture, steps + 1
        self._captured: dict[CycleShape, Captured] = {}
        self._memory = torch.cuda.graph_pool_handle() if capture else None
        self.captures: list[Capture] = []  # in the order in which they were made
        self.most_shapes, self.sizes = MOST_SHAPES, capture_sizes(sizes, max_batch)
        self.ahead: Flight | None = None  # the next cycle, launched before the last one's outcome was read
        self._in_a_row, self._most_in_a_row = 0, cycle.feature_ring // 4  # so launched; plain ones beside a draft
        self.may_run_ahead = True
        self.room: WaitingRoom | None = None
        if cycle.drafter is not None:
            self.room = WaitingRoom(
                num_places=self.sizes[-1],
                num_rows=max(cycle.feature_ring, MAX_STEPS + 1),
                feature_size=cycle.drafter.draft.model.config.feature_size,
                like=cycle.target.norm.weight,
            )

    def covers(self, batch: Batch) -> bool:
        """Whether a batch runs here: bearable contexts of requests that ask for no more than a distribution."""
        if len(batch.rows) > self.sizes[-1] or not all(row.params.as_scored for row in batch.rows):
            return False
        return self.cycle.pool.pdl is not None or self._shape(batch).num_keys <= MOST_KEYS

    def _shape(self, batch: Batch) -> CycleShape:
        growth = 2 if self.cycle.pool.pdl is None else KERNEL_GROWTH
        return shape_of(batch, sizes=self.sizes, growth=growth)

    def drop(self) -> None:
        """Forget every capture; the next cycle of each shape captures anew."""
        self._discard()
        if self.capture:
            torch.cuda.synchronize()  # sync: the last replay has ended, before its memory goes
        self._captured.clear()
        self._memory = torch.cuda.graph_pool_handle() if self.capture else None

    def vacate(self) -> None:
        """Hand each request its waiting positions, before a cycle that runs elsewhere."""
        self._discard()
        if self.room is not None:
            self.room.vacate()

    def hand_back(self, resident: Resident) -> None:
        """Give a request that leaves what waits for it; the others' next cycle may be on its way."""
        if self.room is not None:
            drafting_ahead = self.ahead is not None and self.ahead.shape.steps > 0
            self.room.hand_back(resident, was_read=drafting_ahead)

    def step(self, batch: Batch, residents: Sequence[Resident]) -> tuple[Run, ...]:
        """Run one cycle, and launch the next one before the host reads what this one left.

        The next cycle begins where this one will have ended; what it left of requests that ended is never read, and
        all of it counts for nothing if the next batch is another one.
        """
        flight, self.ahead, limits = self.ahead, None, limits_of(batch, residents)
        if flight is None or not flight.serves(batch, residents):
            self._undo(flight)
            flight = self._launch(batch, residents)
        if self._foresees(batch, residents, flight):
            flight.statics.load_pages(flight.residents)
            self.ahead, self._in_a_row = self._fly(flight.shape, flight.residents, limits), self._in_a_row + 1
        outcome = flight.outcome()
        if any(count == 0 for count, *_ in outcome):  # the ranks disagreed: once more, with rank 0's chain
            assert self.ahead is None, "cycles whose ranks compare what they verify run one by one"
            self.cycle.reruns += 1
            flight = self._again(flight)
            outcome = flight.outcome()
        return self._commit(batch, residents, flight, outcome)

    def _launch(self, batch: Batch, residents: Sequence[Resident]) -> Flight:
        """Load a batch and launch its cycle."""
        shape, self._in_a_row = self._shape(batch), 0
        waiting = self._seat(residents, shape.steps)
        fresh, began_s, held = shape not in self._captured, time.perf_counter(), self._reserved()
        if fresh:
            self._make_room()
        self._captured[shape] = self._prepare(shape) if fresh else self._captured.pop(shape)  # last used, last
        self._captured[shape].statics.load(batch.rows, residents, waiting)
        flight = self._fly(shape, residents, limits_of(batch, residents))
        if fresh:
            seconds = time.perf_counter() - began_s
            self.captures.append(Capture(shape=shape, seconds=seconds, num_bytes=self._reserved() - held))
        return flight

    def _make_room(self) -> None:
        """Forget the shape that ran longest ago, where as many are captured as may be."""
        if len(self._captured) >= self.most_shapes:
            if self.capture:
                torch.cuda.synchronize()  # sync: its last replay has ended, before a rare capture
            del self._captured[next(iter(self._captured))]

    def _reserved(self) -> int:
        """Bytes that the device's allocator holds."""
        return torch.cuda.memory_reserved(self.cycle.pool.device) if self.capture else 0

    def _fly(self, shape: CycleShape, residents: Sequence[Resident], limits: Mapping[int, int]) -> Flight:
        """Launch the cycle whose fields are loaded."""
        captured, marks = self._captured[shape], self.cycle.stamps
        if shape.steps:
            marks.mark(Stage.EXTEND)
            captured.draft.run(lambda: self._draft(captured.statics))
        marks.mark(Stage.VERIFY)
        self._run_verify(captured)
        marks.mark(Stage.ACCEPT)
        return Flight(shape, captured.statics, tuple(residents), limits, *captured.statics.landing.send())

    def _run_verify(self, captured: Captured) -> None:
        captured.verify.run(lambda: self._verify(captured.statics), moves=captured.statics.after)

    def _again(self, flight: Flight) -> Flight:
        """Verify a cycle once more with rank 0's tree; its fields stand where they stood, since nothing counted."""
        captured = self._captured[flight.shape]
        self._hand_round(flight.statics)
        self._run_verify(captured)
        place, landed = flight.statics.landing.send_again()
        return replace(flight, place=place, landed=landed)

    def _foresees(self, batch: Batch, residents: Sequence[Resident], flight: Flight) -> bool:
        """Whether the next cycle's shape and entries are known before this one's outcome is."""
        shape = flight.shape
        if not self.may_run_ahead or len(residents) != len(flight.residents) or self._compares(shape):
            return False
        waits = shape.steps == 0 and self.cycle.seat.drafts  # for the draft: one position more each cycle
        if shape.speculation != batch.speculation or (waits and self._in_a_row >= self._most_in_a_row):
            return False
        if all(row.room <= 1 for row in batch.rows):  # every answer ends with this cycle
            return False
        rows = tuple(replace(row, root_position=row.root_position + shape.steps + 1) for row in batch.rows)
        if self._shape(replace(batch, rows=rows)) != shape:
            return False
        beyond = 1 + shape.speculation.num_tail_entries
        return all(
            row.root_position + beyond <= len(resident.run.slots) for row, resident in zip(rows, residents, strict=True)
        )

    def _compares(self, shape: CycleShape) -> bool:
        """Whether the ranks compare what they verify."""
        return self.cycle.seat.compares(is_chain=shape.speculation.is_chain) and shape.num_rows > 1

    def _discard(self) -> None:
        flight, self.ahead = self.ahead, None
        self._undo(flight)

    def _undo(self, flight: Flight | None) -> None:
        """Leave the room as it was before a cycle; entries that it wrote stand beyond what is committed."""
        if flight is not None and flight.shape.steps and self.room is not None:
            self.room.undo(flight.shape.num_places, self._rows_to_extend(flight.shape.steps))

    def _seat(self, residents: Sequence[Resident], steps: int) -> list[int]:
        """Make room for what waits, and say how much waits for each request."""
        if self.room is None or self.cycle.drafter is None:
            return [1] * len(residents)
        longest = self.room.longest(residents)
        full = self.cycle.feature_ring - self._most_in_a_row
        if steps == 0 and longest >= full:
            self.room.vacate()
            self.cycle.drain_rings(residents, full=full)
        if steps and longest > self._rows_to_extend(steps):
            self.room.vacate()
            shorten(self.cycle.drafter, residents, most=self._rows_to_extend(steps))
        self.room.seat(residents)
        return list(self.room.counts)

    def _rows_to_extend(self, steps: int) -> int:
        return max(self._extend_rows, steps + 1)

    def _prepare(self, shape: CycleShape) -> Captured:
        vocab_size = self.cycle.target.config.vocab_size
        pool = self.cycle.pool
        statics = Statics(shape, self.cycle.page_size, vocab_size, pool.device, direct=pool.pdl is not None)
        return Captured(statics, Segment(self._memory), Segment(self._memory))

    def _draft(self, statics: Statics) -> None:
        """Extend, draft, hand round; a rank without the draft receives."""
        self.cycle.on_enter(Stage.EXTEND)
        statics.begin()
        drafter, steps = self.cycle.drafter, statics.shape.steps
        if drafter is not None and self.room is not None:
            places, rows = statics.shape.num_places, self._rows_to_extend(steps)
            keys, roots_S = statics.keys(statics.positions_S[:, None], first=1), statics.positions_S
            waiting = self.room.read(places, rows)
            opening = static_extend(drafter, keys, roots_S, statics.waiting_S, *waiting)
            drawn = (opening, statics.roots_S, roots_S)
            if statics.shape.speculation.is_chain:
                at_step = partial(step_attend, drafter, keys, roots_S)
                tree = statics.chain(drafter.chain(*drawn, steps, statics.sampling(), None, at_step))
            else:
                at_level = partial(level_attend, drafter, keys, roots_S)
                tree = drafter.tree(*drawn, statics.shape.speculation, statics.sampling(), None, at_level)
            statics.take(tree)
        if self.cycle.seat.travels:
            self._hand_round(statics)

    def _hand_round(self, statics: Statics) -> None:
        statics.take(hand_round(statics.tree(), self.cycle.seat.target))

    def _verify(self, statics: Statics) -> None:
        """Verify, accept, and leave what the next extend needs."""
        cycle, tree = self.cycle, statics.tree()
        cycle.on_enter(Stage.VERIFY)
        if not statics.shape.steps:
            statics.begin()
        roots_S = statics.positions_S
        attend = static_attend(cycle.pool, tree_keys(statics.keys(roots_S[:, None]), roots_S, tree))
        check = self._compares(statics.shape)
        verified = cycle.look(tree, attend, statics.sampling(), check=check)
        accepted = cycle.walk(tree, verified, statics.limits_S, statics.seeds_S, statics.positions_S)
        if not tree.is_chain:
            self._settle(statics, accepted)
        if self.room is not None and verified.features_TF is not None:
            features_SDF = verified.features_TF.view(*tree.tokens_SN.shape, -1)
            if not tree.is_chain:
                features_SDF = features_SDF.take_along_dim(accepted.rows_SD[..., None], dim=1)
            self.room.keep(accepted.tokens_SD, features_SDF, None if statics.shape.steps else statics.waiting_S)
            if cycle.page_features is not None:
                cycle.page_features.keep_rows(statics.keys(roots_S[:, None]), roots_S, features_SDF, pdl=cycle.pool.pdl)
        statics.leave(accepted, tree, pdl=cycle.pool.pdl)

    def _settle(self, statics: Statics, accepted: Accepted) -> None:
        """Move the accepted path's entries to the addresses of their positions; what is not accepted moves nowhere."""
        root_S1 = statics.positions_S[:, None]
        keys, depths_D = statics.keys(root_S1), torch.arange(accepted.rows_SD.shape[1], device=statics.device)
        stays_SD = (depths_D == 0) | (depths_D >= accepted.counts_S[:, None])
        sources_SD, targets_SD = (
            (root_S1 + rows).masked_fill(stays_SD, NO_ADDRESS) for rows in (accepted.rows_SD, depths_D)
        )
        self.cycle.pool.move(keys.slots_at(sources_SD).flatten(), keys.slots_at(targets_SD).flatten())

    def _commit(
        self, batch: Batch, residents: Sequence[Resident], flight: Flight, outcome: list[list[int]]
    ) -> tuple[Run, ...]:
        """Move every request on by what it emitted."""
        places = {id(each): place for place, each in enumerate(flight.residents)}
        runs: list[Run] = []
        for row, resident in zip(batch.rows, residents, strict=True):
            place = places[id(resident)]
            count, tokens = outcome[place][0], outcome[place][1 : flight.shape.steps + 2]
            depths = outcome[place][flight.shape.steps + 2 :]
            resident.expects = (tokens[count - 1], row.root_position + count)
            if self.room is not None:
                self.room.counts[place] = count if flight.shape.steps else self.room.counts[place] + 1
            runs.append(run_of(row, tokens[:count], depths))
        return tuple(runs)

"""The cycle of cycle.py for greedy chains, in static shapes: two CUDA graphs, one synchronisation at the end.

The first graph extends the draft, drafts and hands the chain round; the second verifies, accepts and leaves features
for the next extend. Which batches go this way follows from the batch alone, so all ranks decide alike. A capture keeps
the delay that the wire had: drop the graphs when it changes.

Shape letters: S places, N rows of the chain, F feature width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.static import rows_from
from slipstream.attention.tree import chain
from slipstream.config.speculation import MAX_STEPS
from slipstream.draft.placement import hand_round
from slipstream.draft.static import static_chain, static_extend
from slipstream.flow.batch import Batch, bucket
from slipstream.flow.output import Run
from slipstream.parallel.stamps import Stage
from slipstream.runner.cycle import Cycle, run_of
from slipstream.runner.inputs import Resident
from slipstream.runner.segment import Segment
from slipstream.runner.statics import CycleShape, Statics, shape_of
from slipstream.runner.waiting import WaitingRoom, shorten

MOST_KEYS = 16_384  # longer contexts run uncaptured, which reads no padding


@dataclass(frozen=True, slots=True)
class Captured:
    """A shape's tensors and its two segments."""

    statics: Statics
    draft: Segment
    verify: Segment


class GraphedCycle:
    """Runs what `covers` says it can; between such cycles and others, `vacate`."""

    def __init__(self, cycle: Cycle, *, max_batch: int, steps: int, capture: bool = True) -> None:
        """steps: of the usual cycle, which sizes the extend. capture: False runs the same code without graphs."""
        self.cycle, self.capture, self._extend_rows = cycle, capture, steps + 1
        self._captured: dict[CycleShape, Captured] = {}
        self._memory = torch.cuda.graph_pool_handle() if capture else None
        self.room: WaitingRoom | None = None
        if cycle.drafter is not None:
            self.room = WaitingRoom(
                num_places=bucket(max_batch),
                num_rows=max(cycle.feature_ring, MAX_STEPS + 1),
                feature_size=cycle.drafter.draft.model.config.feature_size,
                like=cycle.target.norm.weight,
            )

    def covers(self, batch: Batch) -> bool:
        """Whether a batch runs here: greedy chains of bearable length whose requests ask for nothing else."""
        if not batch.speculation.is_chain or not all(row.params.plain for row in batch.rows):
            return False
        return shape_of(batch).num_keys <= MOST_KEYS

    def drop(self) -> None:
        """Forget every capture; the next cycle of each shape captures anew."""
        self._captured.clear()
        self._memory = torch.cuda.graph_pool_handle() if self.capture else None

    def vacate(self) -> None:
        """Hand each request its waiting positions, before a cycle that runs elsewhere."""
        if self.room is not None:
            self.room.vacate()

    def step(self, batch: Batch, residents: Sequence[Resident]) -> tuple[Run, ...]:
        """Run one cycle."""
        shape, marks = shape_of(batch), self.cycle.stamps
        waiting = self._seat(residents, shape.steps)
        if shape not in self._captured:
            self._captured[shape] = self._prepare(shape)
        captured = self._captured[shape]
        statics = captured.statics
        statics.load(batch.rows, residents, waiting)
        if shape.steps:
            marks.mark(Stage.EXTEND)
            captured.draft.run(lambda: self._draft(statics))
        marks.mark(Stage.VERIFY)
        captured.verify.run(lambda: self._verify(statics))
        marks.mark(Stage.ACCEPT)
        outcome = statics.outcome.tolist()  # sync: the host trims the runs and schedules the next cycle
        if any(count == 0 for count, *_ in outcome):  # the ranks disagreed: once more, with rank 0's chain
            self.cycle.reruns += 1
            self._hand_round(statics)
            captured.verify.run(lambda: self._verify(statics))
            outcome = statics.outcome.tolist()  # sync: as above, in the rare cycle that is run twice
        return self._commit(batch, residents, statics, outcome)

    def _seat(self, residents: Sequence[Resident], steps: int) -> list[int]:
        """Make room for what waits, and say how much waits for each request."""
        if self.room is None or self.cycle.drafter is None:
            return [1] * len(residents)
        longest = self.room.longest(residents)
        if steps == 0 and longest >= self.cycle.feature_ring:
            self.room.vacate()
            self.cycle.drain_rings(residents)
        if steps and longest > self._rows_to_extend(steps):
            self.room.vacate()
            shorten(self.cycle.drafter, residents, most=self._rows_to_extend(steps))
        self.room.seat(residents)
        return list(self.room.counts)

    def _rows_to_extend(self, steps: int) -> int:
        return max(self._extend_rows, steps + 1)

    def _prepare(self, shape: CycleShape) -> Captured:
        return Captured(Statics(shape, self.cycle.pool.device), Segment(self._memory), Segment(self._memory))

    def _draft(self, statics: Statics) -> None:
        """Extend, draft, hand round; a rank without the draft receives."""
        self.cycle.on_enter(Stage.EXTEND)
        drafter, steps = self.cycle.drafter, statics.shape.steps
        if drafter is not None and self.room is not None:
            places, rows = statics.shape.num_places, self._rows_to_extend(steps)
            opening = static_extend(
                drafter,
                statics.slots_SL,
                statics.positions_S,
                statics.waiting_S,
                self.room.tokens_SW[:places, :rows],
                self.room.features_SWF[:places, :rows],
            )
            tokens_SN = static_chain(
                drafter, statics.slots_SL, opening, statics.roots_S, statics.positions_S, steps=steps
            )
            statics.tokens_SN.copy_(tokens_SN * statics.taken_S[:, None])  # one chain on all ranks, spare places too
        if self.cycle.seat.travels:
            self._hand_round(statics)

    def _hand_round(self, statics: Statics) -> None:
        statics.tokens_SN.copy_(hand_round(chain(statics.tokens_SN), self.cycle.seat.target).tokens_SN)

    def _verify(self, statics: Statics) -> None:
        """Verify, accept, and leave what the next extend needs."""
        cycle, num_rows = self.cycle, statics.shape.num_rows
        cycle.on_enter(Stage.VERIFY)
        tree = chain(statics.tokens_SN if num_rows > 1 else statics.roots_S[:, None])
        addresses_SN = statics.positions_S[:, None] + torch.arange(num_rows, device=statics.device)
        attend = rows_from(cycle.pool, statics.slots_SL, addresses_SN)
        verified = cycle.look(tree, attend, None, check=cycle.seat.grown_by_all and num_rows > 1)
        accepted = cycle.walk(tree, verified, statics.limits_S, statics.seeds_S, statics.positions_S)
        statics.outcome.copy_(torch.cat((accepted.counts_S[:, None], accepted.tokens_SD), dim=1))
        if self.room is not None and verified.features_TF is not None:
            features_SNF = verified.features_TF.view(*tree.tokens_SN.shape, -1)
            self._keep(self.room, statics, accepted.tokens_SD, features_SNF)
            if cycle.page_features is not None:
                slots_SN = statics.slots_SL.gather(1, addresses_SN)
                cycle.page_features.keep_rows(slots_SN, addresses_SN, features_SNF)

    def _keep(self, room: WaitingRoom, statics: Statics, tokens_SN: Tensor, features_SNF: Tensor) -> None:
        """After a chain its rows are all that waits; a plain step adds one to those that did."""
        places, num_rows = statics.shape.num_places, statics.shape.num_rows
        if statics.shape.steps:
            room.tokens_SW[:places, :num_rows] = tokens_SN
            room.features_SWF[:places, :num_rows] = features_SNF
            return
        places_S = torch.arange(places, device=statics.device)
        room.tokens_SW[places_S, statics.waiting_S] = tokens_SN[:, 0]
        room.features_SWF[places_S, statics.waiting_S] = features_SNF[:, 0]

    def _commit(
        self, batch: Batch, residents: Sequence[Resident], statics: Statics, outcome: list[list[int]]
    ) -> tuple[Run, ...]:
        """Move every request on by what it emitted."""
        runs: list[Run] = []
        for place, (row, resident) in enumerate(zip(batch.rows, residents, strict=True)):
            count, *tokens = outcome[place]
            resident.expects = (tokens[count - 1], row.root_position + count)
            if self.room is not None:
                self.room.counts[place] = count if statics.shape.steps else self.room.counts[place] + 1
            runs.append(run_of(row, tokens[:count], range(statics.shape.num_rows)))
        return tuple(runs)

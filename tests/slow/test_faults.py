"""Every fault in each rank at each stage: the group ends within the limit and a few seconds, and says why."""

from pathlib import Path

import pytest

from tests.faults.case import Group, plan_for, run_fault
from tests.faults.rank import LONG, SHORT, Fault, How
from tests.unit.cli.world import World, make_world

pytestmark = pytest.mark.slow

STAGES = ("extend", "propose", "verify", "accept", "idle")
PLACEMENTS = ("replicated", "2")  # those in which rank 1 extends and proposes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", [How.KILL, How.STOP, How.RAISE])
def test_a_fault_ends_the_whole_group(world: World, tmp_path: Path, how: How, rank: int, stage: str) -> None:
    placement = PLACEMENTS[(STAGES.index(stage) + rank) % 2]
    fault = Fault(rank=rank, how=how, stage=stage)
    group = Group(tmp_path, plan_for(world, fault, draft_tp=placement, max_tokens=SHORT if stage == "idle" else LONG))
    try:
        seconds = run_fault(group, fault)
    finally:
        group.end()
    print(f"\n{how:5} rank {rank} {stage:8} {placement:10} {seconds:4.1f} s, exit codes {group.codes}", flush=True)

"""A group of two ranks and a tiny model: what ends it, what does not, and what it leaves behind."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.parallel import process
from tests.faults.case import SLACK_S, Group, plan_for, run_fault
from tests.faults.rank import SHORT, Fault, How
from tests.unit.cli.world import World, make_world

INTERRUPT_S = 5.0  # from Ctrl-C until nothing is left

Start = Callable[..., Group]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Start]:
    groups: list[Group] = []

    def start_group(fault: Fault | None = None, **plan: Any) -> Group:
        groups.append(Group(tmp_path, plan_for(world, fault, **plan)))
        return groups[-1]

    yield start_group
    for each in groups:
        each.end()


def generate_arguments(world: World, *more: str) -> tuple[str, ...]:
    models = ("--model", world.model, "--draft", world.draft, "--device", "cpu", "--tp", "2", "--draft-tp", "2")
    return ("generate", *models, "--prompts", world.prompts, "--max-tokens", "200", "--ignore-eos", *more)


def test_a_killed_rank_ends_the_group_and_asking_again_says_so_at_once(start: Start) -> None:
    fault = Fault(rank=1, how=How.KILL, stage="verify")
    group = start(fault, script="answer_again")
    group.note("struck")
    (first, _), (second, seconds) = group.note("found")
    group.wait(None, group.plan.watchdog_s + SLACK_S)
    assert f"rank 1 (pid {group.process(1)[0]} on host " in first
    assert "has ended at cycle 3, stage verify" in first
    assert second == first
    assert seconds < 0.1
    assert group.codes[0] == 0  # the user has caught it
    assert sorted(group.rings()) == [0]


def test_a_stopped_rank_ends_the_group(start: Start) -> None:
    fault = Fault(rank=1, how=How.STOP, stage="propose")
    run_fault(start(fault), fault)


def test_an_idle_group_ends_when_rank_zero_is_killed(start: Start) -> None:
    fault = Fault(rank=0, how=How.KILL, stage="idle")
    run_fault(start(fault, max_tokens=SHORT), fault)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", [How.MEMORY, How.VALUE])
def test_any_exception_of_a_cycle_ends_the_group(start: Start, how: How, rank: int) -> None:
    fault = Fault(rank=rank, how=how, stage="accept")
    group = start(fault)
    run_fault(group, fault)
    name = {How.MEMORY: "OutOfMemoryError", How.VALUE: "ValueError"}[how]
    assert f"stage accept: {name}: " in group.rings()[1 - rank][0]["reason"]


def test_ctrl_c_during_an_answer_ends_the_command_with_130(start: Start, world: World) -> None:
    group = start(script="command_line", arguments=generate_arguments(world))
    group.note("cycling")
    group.wait(group.interrupt(), INTERRUPT_S)
    assert group.codes[0] == 130
    assert "interrupted" in group.stderr.splitlines()
    assert {(each.rank, each.what) for each in group.sentences()} <= {(0, "was interrupted")}
    assert "Traceback" not in group.stderr


@pytest.mark.slow
def test_ctrl_c_while_the_ranks_come_up_ends_the_command_with_130(start: Start, world: World) -> None:
    group = start(script="command_line", arguments=generate_arguments(world))
    group.note("rank-1")
    group.wait(group.interrupt(), INTERRUPT_S)
    assert group.codes[0] == 130
    assert "Traceback" not in group.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_command_that_waits_for_a_stopped_rank(start: Start, world: World) -> None:
    fault = Fault(rank=1, how=How.STOP, stage="verify")
    group = start(fault, script="command_line", arguments=generate_arguments(world))
    group.note("struck")
    group.wait(group.interrupt(), INTERRUPT_S)
    assert group.codes[0] == 130


@pytest.mark.slow
def test_ctrl_c_in_an_idle_script_ends_its_ranks_in_peace(start: Start) -> None:
    group = start(max_tokens=SHORT)
    group.note("idle")
    group.wait(group.interrupt(), INTERRUPT_S)
    assert group.codes == {0: -2, 1: 0}  # Python passes SIGINT on; a shell shows 130
    assert group.sentences() == []


def test_an_exception_of_the_users_leaves_the_group_usable_and_its_end_quiet(start: Start) -> None:
    group = start(script="stumble")  # a script that ends without closing
    wanted, found, busy = group.note("found")
    assert found == wanted
    assert not busy
    group.wait(None, SLACK_S)
    assert group.codes == {0: 0, 1: 0}
    assert group.stderr == ""


@pytest.mark.slow
def test_a_closed_engine_says_that_it_is_closed(start: Start) -> None:
    group = start(script="close_and_ask")
    assert group.note("found") == ["GroupError", "this engine was closed; make another"]
    group.wait(None, SLACK_S)
    assert group.codes == {0: 0, 1: 0}


def test_ctrl_c_stops_an_answer_and_the_group_goes_on(start: Start) -> None:
    group = start(script="stop_an_answer")
    group.note("interrupt me")
    time.sleep(0.3)
    group.interrupt()
    wanted, found = group.note("found")
    assert found == wanted
    group.wait(None, SLACK_S)
    assert group.codes == {0: 0, 1: 0}
    assert group.sentences() == []


def test_another_engine_can_follow_one_that_was_closed_or_lost_but_not_stand_beside_one(start: Start) -> None:
    group = start(script="start_again")
    refusal, refused_s, same = group.note("found")
    assert "close the engine that has ranks before making another" in refusal
    assert refused_s < 5
    assert same
    group.leader.wait(SLACK_S)
    assert group.codes.get(0) in (0, None)


@pytest.mark.slow
def test_a_forgotten_engine_ends_its_ranks_quietly(start: Start) -> None:
    group = start(script="forget")
    group.note("idle")
    assert process.is_gone(*group.process(1))
    group.wait(None, group.plan.watchdog_s + SLACK_S)
    assert group.codes == {0: 0, 1: 0}
    assert group.stderr == ""


@pytest.mark.parametrize("stage", ["start", pytest.param("join", marks=pytest.mark.slow)])
def test_a_rank_that_ends_before_it_joins_is_named_with_its_exit_code(start: Start, world: World, stage: str) -> None:
    fault = Fault(rank=1, how=How.EXIT, stage=stage)
    group = start(fault, script="command_line", arguments=generate_arguments(world))
    group.note("struck")
    group.wait(None, SLACK_S)
    assert group.codes[0] == 2
    errors = [line for line in group.stderr.splitlines() if line.startswith("error: ")]
    assert errors == ["error: rank 1 ended with code 3 before it joined; see its words above"]
    assert "Traceback" not in group.stderr


@pytest.mark.slow
def test_no_rank_outlives_a_rank_zero_that_was_killed_before_they_met(start: Start) -> None:
    group = start()
    group.note("rank-1")
    group.leader.kill()
    group.wait(None, SLACK_S)
    assert group.codes[0] == -9
    assert group.codes[1] == 1

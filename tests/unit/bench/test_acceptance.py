"""Accept length over a set: sums, tasks, beginnings, seeds."""

import pytest

from slipstream.bench.acceptance import NO_TASK, as_row, chain_forecast, measure, summarise, up_to_position
from slipstream.config.sampling import SamplingParams
from slipstream.flow.output import Statistics
from slipstream.serve.completion import Completion
from slipstream.serve.llm import LLM
from slipstream.text.loops import LOOP_GRAM
from slipstream.text.prompts import read_prompts
from tests.unit.cli.world import World


def completion(tokens: list[int], runs: tuple[int, ...], *, depth: int = 4) -> Completion:
    assert len(tokens) == sum(runs) + 1
    counts = Statistics()
    for run in runs:
        counts.record(kept=run, depth=depth, proposed=depth, trimmed=False)
    return Completion(
        prompt="",
        text="",
        token_ids=tuple(tokens),
        finish_reason="length",
        num_prompt_tokens=1,
        num_cached_tokens=0,
        seed=0,
        runs=runs,
        statistics=counts,
        prefill_s=0.0,
        decode_s=1.0,
    )


def test_accept_length_is_a_sum_over_a_sum_and_by_task():
    short, long = completion([*range(6)], (5,)), completion([*range(11)], (1,) * 10)
    found = summarise([short, long, short], ["code", "math", "code"])
    assert found.whole.accept_length == pytest.approx(20 / 12)
    assert {task: each.accept_length for task, each in found.by_task.items()} == {"code": 5.0, "math": 1.0}
    assert (found.num_answers, found.loop_rate) == (3, 0.0)
    assert found.accept_length_until_loop == found.whole.accept_length


def test_short_answers_weigh_as_much_as_long_ones_in_the_mean_of_answers():
    short, long = completion([*range(6)], (5,)), completion([*range(11)], (1,) * 10)
    assert summarise([short, long], ["a", "a"]).accept_length_mean_of_answers == 3.0


def test_shallower_chains_follow_from_the_deepest_ones_histogram():
    found = summarise([completion([*range(11)], (1, 2, 3, 4))], ["code"]).whole
    assert found.histogram == [1, 1, 1, 1]
    by_hand = [
        sum(count * min(accepted, j) for accepted, count in enumerate(found.histogram)) / 4 for j in (1, 2, 3, 4)
    ]
    assert chain_forecast(found.acceptance_by_position) == pytest.approx([1 + each for each in by_hand])
    assert up_to_position(found.acceptance_by_position) == pytest.approx([0.75, 0.5, 0.25, 0.0])


def test_of_a_tree_no_shallower_shape_is_forecast():
    row = as_row(summarise([completion([*range(6)], (2, 3))], ["code"]), is_chain=False)
    assert row["accept_length_by_steps"] is None


def test_an_answer_that_loops_is_counted_until_there():
    before, loop = [*range(100, 110)], [*range(LOOP_GRAM)]
    looping = completion([*before, *loop, *loop], (1,) * (len(before) + LOOP_GRAM - 1) + (4, 4, 4, 4))
    found = summarise([looping], [NO_TASK])
    assert found.loop_rate == 1.0
    assert found.accept_length_until_loop == 1.0
    assert found.whole.accept_length > 1.0


def test_a_row_holds_every_number_under_its_name():
    row = as_row(summarise([completion([*range(6)], (2, 3))], ["code"]), is_chain=True)
    assert row["cycles"] == 2
    assert row["emitted"] == row["accepted"] + row["cycles"] == 5
    assert row["histogram"] == [0, 1, 1]
    assert row["acceptance_by_position"] == [1.0, 0.5, 0.0]
    assert row["accept_length_by_task"] == {"code": 2.5}
    assert row["accept_length_until_loop"] == 2.5


def test_sampled_prompts_get_seeds_of_their_own_whatever_the_batch(world: World):
    entries = read_prompts(world.prompts_path)
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=3)
    rows = []
    for max_batch in (1, 3):
        llm = LLM(world.model, draft=world.draft, steps=2, max_batch=max_batch)
        rows.append(as_row(measure(llm, entries, params), is_chain=True))
    assert rows[0] == rows[1]
    assert set(rows[0]["accept_length_by_task"]) == {"even", "odd"}

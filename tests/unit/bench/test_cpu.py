"""The race, the parts of a cycle, and the arithmetic around them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.bench import cpu
from slipstream.bench.cost import draft_seconds, verify_seconds
from slipstream.bench.cpu import PLAIN, SPECULATIVE, TRANSFORMERS, Cycle, Timed
from slipstream.bench.reference import Reference
from slipstream.config.sampling import SamplingParams
from slipstream.flow.output import Statistics
from slipstream.serve.llm import LLM
from slipstream.telemetry.clock import Clock, ManualClock
from slipstream.text.prompts import PromptEntry, read_prompts
from tests.unit.cli.world import World
from tests.unit.weights import tiny_gguf


class Runner:
    """A contender that takes a fixed time a token and says who ran when."""

    def __init__(self, name: str, clock: ManualClock, seconds: float, log: list[str]) -> None:
        self.name, self.clock, self.seconds, self.log = name, clock, seconds, log

    def __call__(self, prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        self.log.append(self.name)
        self.clock.advance(self.seconds * max_tokens)
        return (*prompt, max_tokens)


def test_contenders_take_turns_after_a_warm_up_that_is_not_timed():
    clock, log = ManualClock(), []
    contenders = {name: Runner(name, clock, seconds, log) for name, seconds in (("a", 0.5), ("b", 0.25))}
    timed = cpu.race(contenders, [[1], [2]], max_tokens=8, rounds=2, clock=clock)
    assert "".join(log) == "ab" + "aabb" * 2
    assert timed["a"].seconds == (8.0, 8.0)
    assert timed["b"].rate == timed["b"].num_tokens / 4.0


def test_the_median_of_the_rounds_counts():
    assert Timed(answers=((1, 2), (3,)), seconds=(1.0, 3.0, 1.5)).rate == 2.0


def test_answers_are_compared_token_for_token():
    one = Timed(answers=((1, 2), (3,), (4,)), seconds=(1.0,))
    other = Timed(answers=((1, 2), (3, 3), (4,)), seconds=(1.0,))
    assert cpu.num_equal(one, other) == 2


def test_the_break_even_accept_length_is_the_cycle_ratio():
    cycle = Cycle(plain_step_s=0.02, cycle_s=0.03, draft_step_s=0.002, parts_s=0.03, counts=Statistics())
    assert cycle.ratio == pytest.approx(1.5)


@pytest.fixture(scope="module")
def row(world: World) -> dict:
    plain, fast = (LLM(world.model, draft=draft, max_batch=1) for draft in (None, world.draft))
    entries = read_prompts(world.prompts_path)[:2]
    report = cpu.measure(plain, fast, Reference(Path(world.model)), entries, max_tokens=12, rounds=2)
    return cpu.as_row(report)


def test_all_contenders_give_the_same_answers(row: dict):
    assert list(row["tokens_per_s"]) == [TRANSFORMERS, PLAIN, SPECULATIVE]
    assert set(row["answers_equal_to_plain"].values()) == {2}


def test_the_parts_of_a_cycle_are_measured(row: dict):
    assert list(row["verify_ms"]) == ["1", "2", "3", "5", "9"]
    assert row["verify_ratio"]["1"] == 1.0
    assert row["cycle_ratio"] == row["break_even_accept_length"]
    assert row["cycle_ratio"] == pytest.approx(row["cycle_ms"] / row["plain_step_ms"])
    assert row["parts_ms"] > row["draft_step_ms"] > 0
    assert row["accept_length"] >= 1.0


def test_a_warm_up_is_in_no_count(world: World):
    plain = cpu.Ours(LLM(world.model, draft=None, max_batch=1))
    timed = cpu.race({PLAIN: plain}, [[5, 6, 7]], max_tokens=9, rounds=2, clock=Clock())
    assert plain.counts.emitted == 2 * (timed[PLAIN].num_tokens - 1)


def test_the_parts_can_be_timed_without_touching_the_engines_cache(world: World):
    llm = LLM(world.model, draft=world.draft, max_batch=1)
    before = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8))[0].token_ids
    verify_seconds(llm.worker.target, (1, 3), cached=32, repeats=1, clock=Clock())
    draft_seconds(llm.worker.drafter.draft.model, cached=32, repeats=1, clock=Clock())
    assert llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8))[0].token_ids == before


def test_transformers_runs_the_weights_of_a_gguf_file(tmp_path: Path):
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path)
    llm = LLM(str(path), draft=None, max_batch=1)
    prompt = [5, 9, 200, 31]
    ours = llm.generate([prompt], SamplingParams(max_tokens=10, ignore_eos=True))[0].token_ids
    assert Reference(path).generate(prompt, max_tokens=10, eos_ids=()) == ours


def test_prompts_go_to_every_contender_as_the_same_ids(world: World):
    llm = LLM(world.model, draft=None, max_batch=1)
    (ids,) = cpu.prompt_ids(llm, [PromptEntry(prompt="the fox")])
    assert llm.tokenizer.decode(ids) == "user: the fox\nassistant:"


def test_transformers_decodes_greedily_whatever_its_checkpoint_asks_for(world: World, tmp_path: Path):
    model = Path(shutil.copytree(world.model, tmp_path / "model"))
    (model / "generation_config.json").write_text('{"repetition_penalty": 5.0, "do_sample": true}')
    answers = [Reference(Path(path)).generate([5, 6, 7], max_tokens=16, eos_ids=()) for path in (world.model, model)]
    assert answers[0] == answers[1]

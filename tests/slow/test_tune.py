"""tune beside the exhaustive grid on the default model: as good a choice, in a third of the time at most.

Everything runs in one process, and the choice and the grid's best three are compared in turn at the end, so that other
work on the machine slows all of them. Prompts come from SLIPSTREAM_PROMPTS, or are the built-in ones.
"""

import os
from pathlib import Path
from statistics import median

import pytest

from slipstream import LLM
from slipstream.bench.cpu import prompt_ids
from slipstream.bench.tune import Search, Tuned, Tuner
from slipstream.bench.tune_grid import PLAIN_SETUP, Setup, name_of, shapes
from slipstream.bench.tune_journal import Journal
from slipstream.bench.tune_rows import verdict
from slipstream.bench.tune_run import Task, answer
from slipstream.config.placement import placements
from slipstream.config.sampling import SamplingParams
from slipstream.engine.executor import RankExecutor
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.text.prompts import PromptEntry, builtin_prompts, read_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

MODEL = "smollm2-135m"
NUM_PROMPTS, MAX_TOKENS, ROUNDS, BATCH = 9, 40, 3, 1
DUEL_ROUNDS = 8  # so that its own noise is a third of the bound
GRIDS_BEST = 3  # of a noisy grid the first may be the luckiest
WITHIN, SHARE_OF_TIME = 0.03, 1 / 3


def prompts() -> list[PromptEntry]:
    folder = os.environ.get("SLIPSTREAM_PROMPTS")
    found = read_prompts(Path(folder) / "mt_bench.jsonl") if folder else builtin_prompts()
    return found[:: max(1, len(found) // NUM_PROMPTS)][:NUM_PROMPTS]


def search(llm: LLM) -> Search:
    ids = tuple(tuple(each) for each in prompt_ids(llm, prompts()))
    eos = frozenset(llm.tokenizer.eos_ids | set(llm.model_config.eos_ids))
    return Search(
        draft=llm.started.draft,
        shapes=shapes((1, 2, 3, 4, 5, 6, 8), (1, 2, 4), (4, 6, 8, 12, 16, 24)),
        placements=placements(1),
        batches=(BATCH,),
        task=Task(prompts=ids, params=SamplingParams(max_tokens=MAX_TOKENS), stop_ids=eos),
        vocab_size=llm.model_config.vocab_size,
        cycles=16,
        warm_up=2,
        rounds=ROUNDS,
        least_noise=0.01,
    )


def exhaustive(tuner: Tuner, setups: list[Setup]) -> dict[Setup, float]:
    """Tokens a second of every setup for real, round after round over all of them: medians."""
    rates: dict[Setup, list[float]] = {setup: [] for setup in setups}
    for number in range(ROUNDS):
        for setup in setups:
            rates[setup].append(tuner.real_run(setup, BATCH, number)["tokens_per_s"])
    return {setup: median(found) for setup, found in rates.items()}


def duel(executor: RankExecutor, tuner: Tuner, setups: list[Setup]) -> dict[Setup, list[float]]:
    """Tokens a second on all prompts, the setups in turn, every other round backwards."""
    rates: dict[Setup, list[float]] = {setup: [] for setup in setups}
    for number in range(DUEL_ROUNDS):
        for setup in setups if number % 2 else reversed(setups):
            tuner.place(setup.placement)
            run = answer(executor, setup.shape, tuner.search.task, batch=BATCH, clock=Clock())
            rates[setup].append(run.tokens_per_s)
    return rates


def beside(rates: dict[Setup, list[float]], one: Setup, other: Setup) -> float:
    """How fast one setup is beside another: the median of the rounds' ratios."""
    return median(mine / theirs for mine, theirs in zip(rates[one], rates[other], strict=True))


def test_tune_chooses_as_well_as_the_whole_grid_in_a_third_of_its_time(tmp_path: Path) -> None:
    llm = LLM(MODEL, device="cpu", steps=1, max_batch=1)
    executor, clock = llm.started.executor, Clock()
    assert isinstance(executor, RankExecutor)
    wanted = search(llm)
    tuner = Tuner(executor, wanted, Journal(tmp_path / "journal.jsonl", {}), clock=clock)
    with Stopwatch(clock) as tuning:
        found = tuner.run()
    setups = [PLAIN_SETUP, *(Setup(shape=shape, placement=str(wanted.placements[0])) for shape in wanted.shapes)]
    with Stopwatch(clock) as grid:
        rates = exhaustive(tuner, setups)
    chosen, best = found.choices[BATCH].setup, sorted(rates, key=lambda each: rates[each], reverse=True)[:GRIDS_BEST]
    fought = duel(executor, tuner, list(dict.fromkeys((chosen, PLAIN_SETUP, *best))))
    ratios = {setup: beside(fought, chosen, setup) for setup in best}
    report(found, rates, fought=fought, ratios=ratios, seconds=(tuning.seconds, grid.seconds))
    assert min(ratios.values()) >= 1 - WITHIN
    assert tuning.seconds <= SHARE_OF_TIME * grid.seconds


def report(
    found: Tuned,
    rates: dict[Setup, float],
    *,
    fought: dict[Setup, list[float]],
    ratios: dict[Setup, float],
    seconds: tuple[float, float],
) -> None:
    """What a log wants; the spread of plain decoding tells how calm the machine was."""
    predicted, plain = found.predicted(BATCH), rates[PLAIN_SETUP]
    print(f"\n{verdict(found, BATCH)}; load {os.getloadavg()[0]:.1f}")
    share = seconds[0] / seconds[1]
    print(f"tune {seconds[0]:.0f} s {found.seconds}, {len(found.costs)} timed; grid {seconds[1]:.0f} s, {len(rates)}")
    print(f"tune takes {share:.2f} of the grid's time")
    for setup, each in found.confirmed[BATCH].items():
        told = " ".join(f"{rate:.1f}" for rate in each)
        print(f"confirmed: {name_of(setup.shape):>8} {found.choices[BATCH].gains[setup]:.3f}x plain; {told} tok/s")
    for setup, each in fought.items():
        told = f"; chosen / this {ratios[setup]:.3f}" if setup in ratios else ""
        print(f"in turn: {name_of(setup.shape):>8} {' '.join(f'{rate:.1f}' for rate in each)} tok/s{told}")
    for setup in sorted(rates, key=lambda each: rates[each], reverse=True):
        shape, promised = setup.shape, predicted.get(setup)
        told = "not timed" if promised is None else f"{promised:.1f} predicted"
        length = found.accept_lengths[shape]
        print(
            f"{name_of(shape):>8} {rates[setup]:.1f} tok/s, {rates[setup] / plain:.2f}x plain; {told}, AL {length:.2f}"
        )

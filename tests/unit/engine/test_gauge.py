"""The acceptance drift gauge: quiet while nothing changes, loud when less is accepted than at first."""

from random import Random

import pytest

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.engine.engine import Ending
from slipstream.engine.gauge import RECENT_CYCLES, REFERENCE_CYCLES, THRESHOLD, AcceptanceGauge
from slipstream.flow.request import Request
from tests.tiny_engine import NoStops, run_all, some_prompts, tiny_engine

FIRST, LATER = 3.07, 2.80  # accept lengths of a server, fresh and after hours
STEPS = 4


def emitted(random: Random, accept_length: float) -> int:
    """Of a cycle of 4 steps with this accept length on average: the rate a with 1 + a + .. + a^4 = accept_length."""
    rate = RATES[accept_length]
    count = 1
    while count <= STEPS and random.random() < rate:
        count += 1
    return count


def rate_of(accept_length: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**power for power in range(5)) < accept_length else (low, middle)
    return low


RATES = {length: rate_of(length) for length in (FIRST, LATER)}


def fed(lengths: list[float], *, seed: int = 0) -> AcceptanceGauge:
    gauge, random = AcceptanceGauge(steps=STEPS), Random(seed)
    for length in lengths:
        gauge.see(emitted=emitted(random, length), depth=STEPS)
    return gauge


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_draft_raises_no_alarm(seed: int) -> None:
    gauge, random = fed([FIRST] * (REFERENCE_CYCLES + RECENT_CYCLES), seed=seed), Random(seed)
    drifts: list[float] = []
    for _ in range(60_000):
        gauge.see(emitted=emitted(random, FIRST), depth=STEPS)
        assert gauge.drift is not None
        drifts.append(gauge.drift)
    assert min(drifts) > THRESHOLD
    assert max(drifts) < 2 - THRESHOLD


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_from_3_07_to_2_80_over_a_long_time_is_seen(seed: int) -> None:
    slowly = [FIRST if Random(seed + place).random() > place / 50_000 else LATER for place in range(50_000)]
    gauge = fed([FIRST] * REFERENCE_CYCLES + slowly + [LATER] * 4 * RECENT_CYCLES, seed=seed)
    assert gauge.drifted
    assert gauge.drift == pytest.approx(LATER / FIRST, abs=0.03)
    assert gauge.reference == pytest.approx(FIRST, abs=0.08)
    assert gauge.recent == pytest.approx(LATER, abs=0.1)
    assert f"acceptance drift {gauge.drift:.2f} = {gauge.recent:.2f} / {gauge.reference:.2f} (accept length" in str(
        gauge
    )
    assert str(gauge).endswith("below 0.95: the draft fits these prompts less than the first ones")


def test_it_knows_nothing_until_there_is_something_to_compare() -> None:
    gauge = fed([FIRST] * (REFERENCE_CYCLES + RECENT_CYCLES - 1))
    assert gauge.drift is None
    assert not gauge.drifted
    assert str(gauge).startswith("acceptance drift: not known before 10240 drafted cycles, 10239 so far (accept length")
    gauge.see(emitted=1, depth=STEPS)
    assert gauge.drift is not None
    assert "\n" not in str(gauge)


def test_cycles_that_drafted_less_or_nothing_do_not_count() -> None:
    gauge = AcceptanceGauge(steps=STEPS)
    for depth in (0, 1, 3):
        gauge.see(emitted=1, depth=depth)
    assert (gauge.cycles, gauge.recent) == (0, 0.0)
    plain = AcceptanceGauge(steps=0)
    plain.see(emitted=1, depth=0)
    assert plain.cycles == 0


def test_an_engine_counts_the_cycles_of_full_depth_and_starts_anew_with_another_shape() -> None:
    engine = tiny_engine(speculation(3, 2, 6))
    params = SamplingParams(max_tokens=20)
    for number, steps in enumerate((None, 0, 1)):
        request = Request(id=number, prompt=(number, 5), params=params, seed=0, steps=steps)
        engine.add(request, Ending(stop_ids=(), matcher=NoStops()))
    answers = {}
    while engine.busy:
        answers |= {news.request: news.answer for news in engine.step() if news.answer is not None}
    full = [kept for place, kept in enumerate(answers[0].runs) if 19 - sum(answers[0].runs[:place]) > 3]
    assert engine.gauge.cycles == len(full) > 3
    assert engine.gauge.recent == engine.gauge.reference == pytest.approx(sum(full) / len(full))
    engine.reconfigure(speculation(2))
    assert engine.gauge.cycles == 0
    run_all(engine, some_prompts(2), params)
    assert engine.gauge.cycles > 0

"""What speculation gains on real prompts is what its parts say: accept length over R, within 3%.

The default model, which must have been pulled; prompts from SLIPSTREAM_PROMPTS (mt_bench.jsonl in that folder), or the
built-in ones.
"""

from dataclasses import dataclass
from statistics import median

import pytest

from slipstream import LLM
from slipstream.config.engine import EngineConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.engine.placement import time_cycles
from slipstream.telemetry.clock import Clock
from tests.gpu.default_model import MODEL, NEEDS_MODEL, prompts_of

pytestmark = [*NEEDS_MODEL, pytest.mark.timeout(300)]

STEPS, MAX_TOKENS, WARM_UP, CYCLES, ROUNDS = 3, 256, 8, 96, 2
NEAR = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Answers one at a time, prefill excluded."""

    tokens_per_s: float
    accept_length: float
    cycle_ms: float  # median of cycles of as long a context, acceptance decreed


def ran(steps: int) -> Ran:
    """Every prompt, then cycles of made-up tokens; plain steps are of an engine without a draft."""
    draft = {"steps": steps} if steps else {"draft": None}
    llm = LLM(MODEL, device="cuda", max_batch=1, max_len=1536, **draft)
    params, prompts = SamplingParams(max_tokens=MAX_TOKENS), prompts_of(llm)
    for _ in range(2):  # the first time captures a graph for each length of context, which is no part of a cycle
        found = [llm.generate([prompt], [params])[0] for prompt in prompts]
    emitted, cycles = (sum(getattr(each.statistics, name) for each in found) for name in ("emitted", "cycles"))
    context = round(sum(len(each) for each in prompts) / len(prompts) + MAX_TOKENS / 2)
    decreed = emitted / cycles if steps else None
    config = EngineConfig(speculation=speculation(steps), max_len=2, synthetic_accept_length=decreed)
    settings = {"vocab_size": llm.model_config.vocab_size, "clock": Clock(), "num_prompt": context}
    seconds = [
        each
        for _ in range(ROUNDS)
        for each in time_cycles(llm.started.executor, config, cycles=WARM_UP + CYCLES, **settings)[WARM_UP:]
    ]
    llm.close()
    return Ran(
        tokens_per_s=emitted / sum(each.decode_s for each in found),
        accept_length=emitted / cycles,
        cycle_ms=median(seconds) * 1e3,
    )


def test_the_speed_up_is_accept_length_over_cycle_ratio() -> None:
    plain, speculative = ran(0), ran(STEPS)
    speed_up, ratio = speculative.tokens_per_s / plain.tokens_per_s, speculative.cycle_ms / plain.cycle_ms
    wanted = speculative.accept_length / ratio
    told = f"{plain}; {speculative}; speed-up {speed_up:.3f}, accept length / R {wanted:.3f}"
    print(told)
    assert speed_up == pytest.approx(wanted, rel=NEAR), told

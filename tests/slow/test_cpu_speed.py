"""Speed on a CPU as ratios within one run; run it on a machine that does nothing else."""

import pytest

from slipstream import LLM
from slipstream.bench import cpu
from slipstream.bench.reference import Reference
from slipstream.weights.store import resolve_model
from tests.slow.prompts import evaluation_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MODEL = "smollm2-135m"
PLAIN_BESIDE_TRANSFORMERS = 1.5
SPECULATIVE_BESIDE_TRANSFORMERS = 2.0
SPECULATIVE_BESIDE_PLAIN = 1.35
FIVE_ROWS_BESIDE_ONE = 1.45


def test_plain_and_speculative_decoding_beat_transformers() -> None:
    found = cpu.measure(
        LLM(MODEL, draft=None, device="cpu"),
        LLM(MODEL, device="cpu", steps=4),
        Reference(resolve_model(MODEL)),
        evaluation_prompts("mt_bench")[:6],
        max_tokens=128,
        rounds=3,
    )
    print(cpu.as_row(found), flush=True)
    theirs, plain, fast = (found.timed[name] for name in (cpu.TRANSFORMERS, cpu.PLAIN, cpu.SPECULATIVE))
    assert cpu.num_equal(fast, plain) == cpu.num_equal(theirs, plain) == 6
    assert plain.rate >= PLAIN_BESIDE_TRANSFORMERS * theirs.rate
    assert fast.rate >= SPECULATIVE_BESIDE_TRANSFORMERS * theirs.rate
    assert fast.rate >= SPECULATIVE_BESIDE_PLAIN * plain.rate
    assert found.verify_s[5] <= FIVE_ROWS_BESIDE_ONE * found.verify_s[1]

"""What a server runs before anyone waits."""

from types import SimpleNamespace

import pytest

from slipstream.config.speculation import speculation
from slipstream.serve import warmup
from tests.tiny_engine import tiny_engine


@pytest.mark.parametrize(("max_len", "lengths"), [(128, {1, 20, 40, 80}), (64, {1, 20, 40}), (12, {1})])
def test_prompts_of_every_tile_are_run_on_a_gpu_and_nothing_of_it_is_counted(
    max_len: int, lengths: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, stages, computed = tiny_engine(speculation(2), max_len=max_len, max_batch=2), [], []
    prefill = engine.executor.prefill

    def noted(work: object) -> object:
        computed.extend(chunk.stop - chunk.start for chunk in work.chunks)
        return prefill(work)

    monkeypatch.setattr(engine.executor, "prefill", noted)
    llm = SimpleNamespace(engine=engine, device=SimpleNamespace(type="cuda"))
    warmup.warm_up(llm, SimpleNamespace(send=lambda message: stages.append(message.stage)))
    assert set(computed) == lengths, "a prompt that begins as another one did would be computed in part"
    assert not engine.busy
    assert engine.totals.emitted == 0
    assert all(stage.startswith("warming up: ") for stage in stages)

"""Which times may be compared."""

import json
from pathlib import Path

import pytest

from slipstream.bench.baseline import (
    comparable,
    cycle_ratio,
    differences,
    fingerprint,
    nccl_settings,
    point_of,
    read_baseline,
    settings_of,
)
from slipstream.config.engine import EngineConfig
from slipstream.config.speculation import speculation

SETTINGS = {"model": "m", "graphs": True, "all_reduce": "8192:one-shot", "tp": 2, "slipstream": "1.0"}


def row(steps: int = 0, cycle_ms: float = 4.0, **settings: object) -> dict:
    merged = {**SETTINGS, **settings}
    point = {"steps": steps, "batch": 1, "context": 128, "draft": "d" if steps else None, "draft_placement": None}
    mark = {"settings": merged, "fingerprint": fingerprint(merged)}
    return {"bench": "latency", "cycle_ms": cycle_ms, **point, **mark}


def test_r_is_a_cycle_over_the_plain_step_of_the_same_settings() -> None:
    assert cycle_ratio(row(3, 5.0), row()) == 1.25


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"graphs": False}, "graphs True (baseline False)"),
        ({"all_reduce": "8192:nccl"}, "all_reduce 8192:one-shot (baseline 8192:nccl)"),
        ({"overlap": False}, "overlap unset (baseline False)"),
        ({"slipstream": "0.9"}, "slipstream 1.0 (baseline 0.9)"),
    ],
)
def test_a_plain_run_with_other_settings_is_refused_and_named(setting: dict, said: str) -> None:
    with pytest.raises(ValueError, match="a speed-up across them says nothing") as refused:
        cycle_ratio(row(3, 5.0), row(**setting))
    assert said in str(refused.value)


def test_differences_list_nothing_else() -> None:
    assert differences(SETTINGS, {**SETTINGS, "tp": 1}) == ["tp 2 (baseline 1)"]


def test_only_rows_of_equal_settings_are_compared_and_the_last_counts() -> None:
    rows = [row(cycle_ms=9.0), row(3, 6.0), row(graphs=False, cycle_ms=1.0), row(cycle_ms=4.0)]
    found = comparable(SETTINGS, rows, source="--baseline F")
    assert {place: each["cycle_ms"] for place, each in found.items()} == {point_of(row()): 4.0, point_of(row(3)): 6.0}


def test_a_baseline_without_any_row_of_these_settings_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^--baseline F was measured with other settings: graphs True"):
        comparable(SETTINGS, [row(graphs=False)], source="--baseline F")


def test_a_baseline_file_must_hold_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    with pytest.raises(ValueError, match="does not exist"):
        read_baseline(file)
    file.write_text("not json\n")
    with pytest.raises(ValueError, match="is not JSON lines"):
        read_baseline(file)
    file.write_text(json.dumps({"bench": "acceptance"}) + "\n")
    with pytest.raises(ValueError, match="holds no rows of bench latency"):
        read_baseline(file)
    file.write_text(json.dumps(row()) + "\n\n")
    assert read_baseline(file) == [row()]


def test_nccl_variables_belong_to_the_settings_and_others_do_not() -> None:
    assert nccl_settings({"NCCL_PROTO": "LL", "HOME": "/", "NCCL_ALGO": "Ring"}).split() == [
        "NCCL_ALGO=Ring",
        "NCCL_PROTO=LL",
    ]


def test_the_shape_of_a_cycle_is_no_setting_and_everything_else_is() -> None:
    class Alone:
        def shares(self) -> list:
            return [type("Share", (), {"all_reduce": ()})]

    import torch

    def of(config: EngineConfig) -> dict:
        alone, device = Alone(), torch.device("cpu")
        return settings_of(alone, config, model="m", weights="dummy", dtype="float32", device=device, tp=1)  # type: ignore[arg-type]

    plain = of(EngineConfig(speculation=speculation(0), max_len=64))
    assert plain == of(EngineConfig(speculation=speculation(3), max_len=99, max_batch=2, synthetic_accept_length=2.0))
    assert plain != of(EngineConfig(speculation=speculation(0), max_len=64, prefill_chunk=64))

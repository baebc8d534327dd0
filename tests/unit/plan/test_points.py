"""Published rows: what they state, what is assumed, what cannot be used."""

from pathlib import Path

import pytest

from slipstream.plan.drafts import DraftKind
from slipstream.plan.points import Point, read_curves, read_point, read_points, source_of, speedup_of

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data"
ROW = {
    "id": "x", "source": "github a/b#1", "hardware": "H100", "n_gpus": "2", "interconnect": "",
    "model": "Qwen3-30B-A3B", "total_params_b": "30.5", "active_params_b": "3.3", "weight_bits": "16",
    "draft": "EAGLE-3", "batch_size": "1", "num_steps": "3", "topk": "3", "num_draft_tokens": "8", "accept_len": "2.2",
    "baseline_tok_s": "200", "spec_tok_s": "150", "speedup": "", "notes": "",
}  # fmt: skip


def point(**changed: str) -> Point:
    found = read_point({**ROW, **changed})
    assert isinstance(found, Point), found
    return found


def test_a_full_row_is_read_as_it_stands():
    found = point()
    assert (found.machine.name, found.batch, found.steps, found.topk, found.rows) == ("2x-h100-nvlink4", 1, 3, 3, 8)
    assert (found.accept_length, found.speedup, found.assumed) == (2.2, 0.75, ())


def test_identity_and_remarks_decide_nothing():
    plain, dressed = point(), point(id="SLOWDOWN", source="elsewhere", notes="SLOWDOWN; TensorRT; suspect")
    for name in ("shape", "machine", "draft", "batch", "steps", "topk", "rows", "accept_length"):
        assert getattr(plain, name) == getattr(dressed, name)


def test_what_is_not_stated_is_named_as_assumed():
    found = point(hardware="", n_gpus="", num_steps="", num_draft_tokens="", topk="", accept_len="")
    assert found.assumed == ("hardware", "steps", "accept length")
    assert found.machine.assumed
    assert (found.steps, found.rows) == (3, 4)


def test_weights_that_would_not_fit_are_taken_narrower():
    found = point(model="Qwen3-235B", total_params_b="235", active_params_b="22", weight_bits="", n_gpus="8")
    assert found.shape.routed_bits == 8
    assert point(weight_bits="").shape.bits == 16


def test_a_range_among_the_remarks_is_the_column_s_value():
    assert point(accept_len="", notes="accept_len as published: 2.1-2.4; SGLang").accept_length == pytest.approx(2.25)
    assert speedup_of({"notes": "speedup as published: 0.83-0.87"}) == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"spec_tok_s": ""}, "no speed-up"),
        ({"batch_size": ""}, "the batch"),
        ({"model": "Laguna", "total_params_b": ""}, "shape is not known"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(changed, reason):
    found = read_point({**ROW, **changed})
    assert isinstance(found, str)
    assert reason in found


def test_forks_are_one_source_and_issues_are_their_own():
    assert source_of("github voipmonitor/rtx6kpro models/a.md @29f") == source_of(
        "local-inference-lab/rtx6kpro models/b.md"
    )
    assert source_of("github vllm-project/vllm#20780") == source_of("vllm-project/vllm#20780")
    assert source_of("github vllm-project/vllm#20780") != source_of("github vllm-project/vllm#16035")


def test_a_baseline_that_lets_a_cycle_beat_a_plain_step_is_broken_for_all_its_rows():
    kept, excluded = read_points(DATA / "published_points.csv")
    broken = [each for each in excluded if "plain run is broken" in each.reason]
    assert {each.id.split("-")[3] for each in broken} == {"Scout"}
    assert len(broken) == 10
    assert all(each.accept_length is None or each.speedup <= each.accept_length for each in kept)


def test_every_row_of_the_file_is_used_or_left_out_with_a_reason():
    kept, excluded = read_points(DATA / "published_points.csv")
    assert len(kept) + len(excluded) == 229
    assert all(each.reason for each in excluded)


def test_curves_know_their_steps_requests_and_rows():
    curves = {(each.source, each.tokens, each.steps): each for each in read_curves(DATA / "cost_curves.csv")}
    kimi = curves["rtx6kpro", 8, 3]
    assert (kimi.requests, kimi.rows) == (2, 4)
    plain = curves["rtx6kpro", 8, 0]
    assert (plain.requests, plain.rows) == (8, 1)
    chain = curves["vllm#20780", 4, 3]
    assert (chain.requests, chain.rows) == (1, 4)
    assert chain.draft is not None
    assert chain.draft.kind in (DraftKind.EAGLE, DraftKind.EAGLE3)


def test_a_file_without_its_columns_is_refused(tmp_path: Path):
    file = tmp_path / "points.csv"
    file.write_text("id,model\n1,x\n")
    with pytest.raises(ValueError, match="lacks the column source"):
        read_points(file)

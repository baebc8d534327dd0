"""Every engine's own numbers of acceptance, made ours; the source is named."""

import json
from typing import Any

import pytest

from slipstream.bench.serving.acceptance import accepted_of, read_samples
from slipstream.bench.serving.answer import Answer


def answer(num_output: int = 10, **more: Any) -> Answer:
    settings: dict[str, Any] = {"speculation": None, "meta": None, "finish_reason": None, **more}
    return Answer(
        began_s=0.0, chunk_s=(1.0,), chunk_tokens=None, num_input=1, num_output=num_output, counted=True, **settings
    )


VLLM = """# HELP vllm:spec_decode_num_drafts_total n
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} %d.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} %d
"""


def test_vllms_counters_are_differences_of_the_run_summed_over_engines() -> None:
    before, after = read_samples(VLLM % (100, 0, 300, 150, 90, 60)), read_samples(VLLM % (110, 10, 360, 180, 106, 74))
    found = accepted_of([answer()], before, after, b"")
    assert found.accept_length == 1 + 30 / 20
    assert (found.cycles, found.proposed, found.accepted, found.accept_rate) == (20, 60, 30, 0.5)
    assert found.up_to_position == (0.8, 0.7)
    assert "vllm:spec_decode_num_drafts_total" in found.source


def test_fields_of_answers_come_before_counters_which_others_may_move_too() -> None:
    told = {
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 12,
        "acceptance_histogram": [1, 1, 2, 0],
        "mean_acceptance_length": 2.25,
    }
    counters = read_samples(VLLM % (110, 10, 360, 180, 106, 74))
    found = accepted_of([answer(speculation=told), answer()], {}, counters, b"")
    assert (found.accept_length, found.cycles) == (2.25, 4)
    assert found.up_to_position == (0.75, 0.5, 0.0)
    assert "1 of 2 answers" in found.source


def test_sglangs_answers_count_the_prefills_token_which_is_taken_off() -> None:
    meta = {"spec_verify_ct": 3, "spec_accept_length": 10 / 3, "spec_accept_token_num": 6, "spec_draft_token_num": 9}
    found = accepted_of([answer(10, meta=meta)], {}, {}, b"")
    assert found.accept_length == 3.0
    assert found.accept_rate == pytest.approx(2 / 3)
    assert "(tokens - 1) / spec_verify_ct" in found.source


def test_sglangs_gauge_is_the_mean_of_its_engines_and_said_to_be_of_its_last_interval() -> None:
    text = 'sglang:spec_accept_length{dp="0"} 2.0\nsglang:spec_accept_length{dp="1"} 3.0\nsglang:spec_accept_rate 0.5\n'
    found = accepted_of([answer()], {}, read_samples(text), b"")
    assert (found.accept_length, found.accept_rate, found.cycles) == (2.5, 0.5, None)
    assert "last interval" in found.source


def test_sglangs_server_info_is_the_last_resort() -> None:
    info = json.dumps({"internal_states": [{"avg_spec_accept_length": 2.75}]}).encode()
    found = accepted_of([answer()], {}, {}, info)
    assert (found.accept_length, "/server_info" in found.source) == (2.75, True)


def test_our_counters_hold_the_targets_own_tokens_already() -> None:
    text = (
        "slipstream_cycles_total %d\nslipstream_emitted_tokens_total %d\nslipstream_proposed_tokens_total %d\n"
        'slipstream_position_accepted_total{position="1"} %d\n'
    )
    found = accepted_of([answer()], read_samples(text % (5, 9, 10, 3)), read_samples(text % (15, 34, 40, 11)), b"")
    assert (found.accept_length, found.accepted, found.proposed) == (2.5, 15, 30)
    assert found.up_to_position == (0.8,)


@pytest.mark.parametrize(
    ("after", "info"),
    [
        ("", b""),
        (VLLM % (0, 0, 0, 0, 0, 0), b"{}"),
        ("sglang:spec_accept_length 0.0\n", b"[]"),
        ("slipstream_cycles_total 0\n", b'{"internal_states": [{"avg_spec_accept_length": null}]}'),
        ("process_cpu_seconds_total NaN\nbroken{", b"no json"),
    ],
)
def test_not_reported_is_an_answer(after: str, info: bytes) -> None:
    found = accepted_of([answer()], {}, read_samples(after), info)
    assert found.accept_length is None
    assert found.source.startswith("not reported")


def test_counters_that_did_not_grow_are_of_others() -> None:
    samples = read_samples(VLLM % (100, 0, 300, 150, 90, 60))
    assert accepted_of([answer()], samples, samples, b"").accept_length is None

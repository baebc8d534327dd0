"""Rows of results."""

import json
from pathlib import Path

import torch

import slipstream
from slipstream.bench.report import append_rows, environment, hardware

CPU = torch.device("cpu")


def test_rows_are_added_to_what_is_there(tmp_path: Path):
    file = tmp_path / "deep" / "results.jsonl"
    append_rows(file, [{"a": 1}])
    append_rows(file, [{"a": 2}, {"a": 3}])
    assert [json.loads(line)["a"] for line in file.read_text().splitlines()] == [1, 2, 3]


def test_a_row_says_what_it_was_measured_with():
    found = environment(CPU)
    assert found["slipstream"] == slipstream.__version__
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["date"].startswith("20")


def test_the_hardware_has_a_name():
    assert hardware(CPU)

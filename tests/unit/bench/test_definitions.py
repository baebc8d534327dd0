"""The dictionary of numbers, and how rows are held against it."""

import pytest

from slipstream.bench.definitions import DEFINITIONS, define, undefined


def test_a_field_without_a_definition_is_named_by_its_path() -> None:
    row = {"steps": 3, "speed": 1.0, "inner": {"batch": 1, "warp": [2]}, "rows": [{"steps": 0}, {"odd": 1}], "bare": []}
    assert undefined(row) == ["speed", "inner.warp", "rows.odd", "bare"]


def test_a_defined_object_stands_for_its_keys_which_are_data() -> None:
    assert undefined({"accept_length_by_task": {"mt_bench": 2.0}}) == []


def test_definitions_are_frozen_sentences() -> None:
    with pytest.raises(TypeError):
        DEFINITIONS["steps"] = "other"  # type: ignore[index]
    assert all(len(meaning) > 10 and not meaning.endswith(".") for meaning in DEFINITIONS.values())


def test_a_legend_says_each_name_once_in_the_given_order() -> None:
    lines = define(["batch", "steps", "batch"])
    assert [line.partition(" = ")[0] for line in lines] == ["batch", "steps"]

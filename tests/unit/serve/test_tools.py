"""Calls of tools in an answer's text: both styles, in pieces of any size, and what is none."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.serve.http.settings import ToolStyle
from slipstream.serve.http.tools import (
    FirstCall,
    ForcedCalls,
    HermesTools,
    LlamaTools,
    ToolParser,
    make_parser,
    tool_style,
)

LOOK = '{"name": "look", "arguments": {"where": "\\u4f60 </tool", "n": [1, 2]}}'
CALL = f"<tool_call>\n{LOOK}\n</tool_call>"


def parse(parser: ToolParser, text: str, cuts: list[int] | None = None) -> tuple[str, list[tuple[str, object]]]:
    """Push a text in pieces."""
    said, calls = "", []
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts or [])})
    for start, stop in pairwise(places):
        more, found = parser.push(text[start:stop])
        said, calls = said + more, calls + found
    more, found = parser.finish()
    return said + more, [(call.name, json.loads(call.arguments)) for call in calls + found]


@pytest.mark.parametrize(
    ("text", "said", "names"),
    [
        (CALL, "", ["look"]),
        (f"Let me see. {CALL}", "Let me see.", ["look"]),
        (f"{CALL}\n{CALL}", "", ["look", "look"]),
        (f"a {CALL} b", "ab", ["look"]),
        (f"<tool_call>{LOOK}", "", ["look"]),
        ("no call at all", "no call at all", []),
        ("a < b and <tool", "a < b and <tool", []),
        ("<tool_call>broken</tool_call>", "<tool_call>broken</tool_call>", []),
        ("<tool_call>[1]</tool_call> so", "<tool_call>[1]</tool_call> so", []),
        ('<tool_call>{"name": "f"}</tool_call>', "", ["f"]),
        ("ends with blanks  \n", "ends with blanks  \n", []),
    ],
)
@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 400), max_size=60))
def test_hermes_calls_are_found_however_the_text_is_cut(
    text: str, said: str, names: list[str], cuts: list[int]
) -> None:
    found, calls = parse(HermesTools(), text, cuts)
    assert found == said
    assert [name for name, _ in calls] == names
    assert (found, calls) == parse(HermesTools(), text)


@pytest.mark.parametrize(
    ("text", "said", "names"),
    [
        ('{"name": "look", "parameters": {"a": 1}}', "", ["look"]),
        ('<|python_tag|>{"name": "look", "parameters": {}}', "", ["look"]),
        ('{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', "", ["a", "b"]),
        ('{"name": "a", "parameters": {}}\n{"name": "b", "arguments": {}}', "", ["a", "b"]),
        ('{"some": "json"}', '{"some": "json"}', []),
        ('{"name": "a", "parameters": {}} and words', '{"name": "a", "parameters": {}} and words', []),
        ("plain words {", "plain words {", []),
        ('{"name": "cut', '{"name": "cut', []),
        ("  <|x", "  <|x", []),
    ],
)
@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 400), max_size=60))
def test_llama_calls_are_found_however_the_text_is_cut(text: str, said: str, names: list[str], cuts: list[int]) -> None:
    found, calls = parse(LlamaTools(), text, cuts)
    assert (found, [name for name, _ in calls]) == (said, names)


def test_text_before_a_call_streams_at_once() -> None:
    parser = HermesTools()
    assert parser.push("I will look <too") == ("I will look", [])
    assert parser.push("k a step") == (" <took a step", [])
    assert parser.push("<tool_call>" + LOOK)[1] == []
    ((call,),) = [calls for _, calls in [parser.push("</tool_call>")]]
    assert call.name == "look"


def test_only_the_first_call_counts_where_none_may_be_parallel() -> None:
    assert len(parse(FirstCall(HermesTools()), CALL * 3, list(range(400)))[1]) == 1


def test_a_forced_list_that_was_cut_off_is_text() -> None:
    assert parse(ForcedCalls(), '[{"name": "f", "arg') == ('[{"name": "f", "arg', [])
    assert parse(ForcedCalls(), '[{"name": "f", "arguments": {"a": 1}}]') == ("", [("f", {"a": 1})])


def test_the_style_follows_the_template() -> None:
    assert tool_style(ToolStyle.AUTO, "{% if tools %}<tool_call>{% endif %}") is ToolStyle.HERMES
    assert tool_style(ToolStyle.AUTO, '{% if tools %}"parameters"{% endif %}') is ToolStyle.LLAMA
    assert tool_style(ToolStyle.AUTO, "{{ messages }}") is ToolStyle.NONE
    assert tool_style(ToolStyle.LLAMA, "<tool_call>") is ToolStyle.LLAMA
    assert isinstance(make_parser(ToolStyle.LLAMA, parallel=True), LlamaTools)


def test_a_body_streams_its_index_and_has_an_id_of_its_own() -> None:
    call = HermesTools().push(CALL)[1][0]
    first, second = call.body(0, streamed=True), call.body(1, streamed=False)
    assert first["index"] == 0
    assert "index" not in second
    assert first["id"] != second["id"]
    assert json.loads(first["function"]["arguments"])["n"] == [1, 2]

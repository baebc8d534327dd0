"""What a model thinks is split from what it answers, however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.serve.http.reasoning import ThinkSplitter, opened, thinks
from slipstream.serve.http.settings import ReasoningStyle


def split(text: str, cuts: list[int], *, thinking: bool) -> tuple[str, str]:
    splitter = ThinkSplitter(thinking=thinking)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [splitter.push(text[start:stop]) for start, stop in pairwise(places)]
    pieces.append(splitter.finish())
    return "".join(reasoning for reasoning, _ in pieces), "".join(content for _, content in pieces)


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        ("<think>\nhm, a < b\n\nso\n</think>\n\nIt is 4.\n", False, ("hm, a < b\n\nso", "It is 4.\n")),
        ("hm\n</think>\n\nIt is 4.", True, ("hm", "It is 4.")),
        ("It is 4.", False, ("", "It is 4.")),
        ("  It is 4.", False, ("", "  It is 4.")),
        ("<think></think>4", False, ("", "4")),
        ("\n<think>hm</think>4", False, ("hm", "4")),
        ("<think>cut off </thi", False, ("cut off </thi", "")),
        ("<thi", False, ("", "<thi")),
        ("4 <think>not a thought</think>", False, ("", "4 <think>not a thought</think>")),
        ("<think>a</think> b <think>c</think>", False, ("a", "b <think>c</think>")),
        ("", False, ("", "")),
    ],
)
@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 200), max_size=40))
def test_thoughts_are_split_off(text: str, thinking: bool, expected: tuple[str, str], cuts: list[int]) -> None:
    reasoning, content = split(text, cuts, thinking=thinking)
    assert (reasoning, content) == expected


def test_the_template_says_whether_a_model_thinks() -> None:
    assert thinks(ReasoningStyle.AUTO, "...<think>...")
    assert not thinks(ReasoningStyle.AUTO, "...")
    assert thinks(ReasoningStyle.THINK, "...")
    assert not thinks(ReasoningStyle.NONE, "<think>")
    assert opened("assistant\n<think>\n")
    assert not opened("<think>\n</think>\n\n")

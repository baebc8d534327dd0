"""Grammars say which tokens may come, take them back, and end an answer."""

import json
import re
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config.grammar import Grammar, choice, json_object, json_schema, lark, regex
from slipstream.text.grammar import Automaton, Grammars, reason_of
from slipstream.text.tokenizer import Tokenizer
from tests.tiny_grammar import CONFIG, EOS, RAW, allowed, ended, grammars

SAMPLES = {
    "schema": json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    "regex": regex("(the|a) (quick )?[a-z]{1,6}"),
    "lark": lark('start: "1" start "2" | "fox"'),
    "choice": choice(["the quick", "the quick brown fox", "\u4f60\u597d"]),
    "json": json_object(),
}


def may_come(automaton: Automaton) -> set[int]:
    words = np.zeros(grammars().num_words, dtype=np.int32)
    automaton.fill(words)
    return set(np.nonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))[0].tolist())


def spelled(text: str) -> list[int]:
    return RAW.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=12))
def test_any_way_through_a_grammar_and_back_meets_what_a_fresh_matcher_says(name: str, choices: Sequence[int]) -> None:
    grammar, taken = SAMPLES[name], list[int]()
    automaton = grammars().open(grammar)
    for pick in choices:
        if automaton.ended:
            break
        may = sorted(may_come(automaton))
        assert set(may) == allowed(grammar, taken)
        assert not automaton.push(next(token for token in range(CONFIG.vocab_size) if token not in may))
        assert may_come(automaton) == set(may), "a token that may not come changes nothing"
        assert automaton.push(may[pick % len(may)])
        taken.append(may[pick % len(may)])
    while taken:
        automaton.rollback(1)
        taken.pop()
        assert may_come(automaton) == allowed(grammar, taken)
        assert automaton.ended == ended(grammar, taken) or not taken


def test_an_answer_ends_where_only_eos_may_follow_and_not_where_its_text_may_go_on() -> None:
    automaton = grammars().open(SAMPLES["choice"], spelled("the quick"))
    assert EOS in may_come(automaton)
    assert not automaton.ended
    for token in spelled(" brown fox"):
        automaton.push(token)
    assert automaton.ended
    assert may_come(automaton) == {EOS}


def test_a_copy_goes_its_own_way() -> None:
    automaton = grammars().open(SAMPLES["regex"])
    other = automaton.copy()
    assert other.push(spelled("the")[0])
    assert may_come(automaton) == allowed(SAMPLES["regex"], [])


def test_forced_tokens_spell_the_only_text_that_may_come() -> None:
    automaton = grammars().open(regex("the quick (fox|dog) jumps"))
    assert RAW.decode(automaton.forced()) == "the quick"


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (regex("(a"), "the regex cannot be used: unclosed group; mend it"),
        (lark("start: nobody"), 'the lark cannot be used: .*unknown name: "nobody"'),
        (json_schema({"type": "text"}), "the json schema cannot be used: Invalid type: text"),
        (json_schema({"type": "string", "minLength": 5, "maxLength": 2}), "minLength"),
    ],
)
def test_a_grammar_that_means_nothing_is_refused_in_a_sentence(grammar: Grammar, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        grammars().open(grammar)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: json_schema("{"), "the JSON schema is not JSON"),
        (lambda: json_schema("[1]"), "a JSON schema is an object, not list"),
        (lambda: regex(" "), "the regular expression is empty"),
        (lambda: lark(""), "the Lark grammar is empty"),
        (lambda: choice([]), "a choice is a list of texts"),
        (lambda: choice(["yes", ""]), "none of them empty"),
    ],
)
def test_what_is_no_grammar_is_refused_before_a_tokenizer_is_asked(make: object, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        make()  # type: ignore[operator]


def test_a_model_without_eos_can_have_no_grammar() -> None:
    with pytest.raises(ValueError, match="no grammar can end, for this model names no EOS token"):
        Grammars(Tokenizer(RAW, bos_id=None, eos_ids=[]), vocab_size=CONFIG.vocab_size, eos_ids=())


def test_compiling_is_begun_once_and_does_not_hold_up_who_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun, compile_it = threading.Event(), list[Grammar](), Grammars._compile

    def slow(found: Grammars, grammar: Grammar) -> Automaton:
        begun.append(grammar)
        assert gate.wait(60)
        return compile_it(found, grammar)

    monkeypatch.setattr(Grammars, "_compile", slow)
    found = Grammars(Tokenizer(RAW, bos_id=None, eos_ids=[EOS]), vocab_size=CONFIG.vocab_size, eos_ids=())
    first, again = found.start(SAMPLES["regex"]), found.start(SAMPLES["regex"])
    assert first is again
    assert not first.done()
    gate.set()
    assert may_come(found.open(SAMPLES["regex"])) == may_come(grammars().open(SAMPLES["regex"]))
    assert begun == [SAMPLES["regex"]]


def test_the_last_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.text.grammar.KEPT", 2)
    found = Grammars(Tokenizer(RAW, bos_id=None, eos_ids=[EOS]), vocab_size=CONFIG.vocab_size, eos_ids=())
    first = found.start(SAMPLES["regex"])
    found.start(SAMPLES["choice"])
    assert found.start(SAMPLES["regex"]) is first
    second = found.start(SAMPLES["lark"])
    assert found.start(SAMPLES["regex"]) is first
    assert found.start(SAMPLES["lark"]) is second
    found.start(SAMPLES["choice"])
    assert found.start(SAMPLES["regex"]) is not first


def test_each_who_opens_a_wrong_grammar_has_an_error_of_its_own() -> None:
    errors = []
    for _ in range(2):
        with pytest.raises(ValueError, match="the regex cannot be used") as raised:
            grammars().open(regex("("))
        errors.append(raised.value)
    assert errors[0] is not errors[1]


def test_a_choice_may_hold_quotes_and_any_letters() -> None:
    text = 'a "quoted" \\ \u4f60\n'
    automaton = grammars().open(choice([text]), spelled(text))
    assert automaton.ended
    assert not automaton.broken


def test_a_schema_keeps_its_letters() -> None:
    assert "\u4f60" in json.loads(json_schema({"enum": ["\u4f60"]}).text)["enum"][0]


def test_json_has_a_line_and_its_indent_between_its_parts_and_no_more() -> None:
    automaton = grammars().open(SAMPLES["schema"])
    assert all(automaton.push(token) for token in spelled("{\n" + 12 * " " + '"a": 17\n}'))
    assert automaton.ended
    automaton = grammars().open(SAMPLES["schema"])
    assert not all(automaton.push(token) for token in spelled("{\n\n"))


def test_a_message_of_many_lines_becomes_its_reason() -> None:
    assert reason_of("at 1(8): (in regex):\n   (a\n   ^\nerror: unclosed group\n") == "unclosed group"
    assert reason_of("") == "no reason was given"

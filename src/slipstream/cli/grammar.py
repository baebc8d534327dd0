"""What an answer must look like, from the command line."""

from collections.abc import Sequence
from pathlib import Path

from slipstream.config.grammar import Grammar, choice, json_schema, lark, regex


def chosen_grammar(
    *, schema: str | None, pattern: str | None, grammar: str | None, choices: Sequence[str] | None
) -> Grammar | None:
    """The grammar that was given, if any; a schema and a Lark grammar may stand in a file, named as @FILE.

    Raises:
        ValueError: more than one was given, a file cannot be read, or what was given is not of its kind.
    """
    given = {
        "--json-schema": None if schema is None else lambda: json_schema(_text_of(schema)),
        "--regex": None if pattern is None else lambda: regex(pattern),
        "--lark": None if grammar is None else lambda: lark(_text_of(grammar)),
        "--choice": None if not choices else lambda: choice(choices),
    }
    names = [name for name, make in given.items() if make is not None]
    if len(names) > 1:
        raise ValueError(f"{names[0]} and {names[1]} were both given; an answer follows one grammar, so give one")
    return next((make() for make in given.values() if make is not None), None)


def _text_of(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{given[1:]} cannot be read ({error}); give a text file's path after the @") from None

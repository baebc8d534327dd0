"""Options in groups: a verb takes a dataclass, and typer sees its fields as options of their own.

So a group that several verbs share, such as the model's, is written once.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

Verb = Callable[..., Any]


def spread(verb: Verb) -> Verb:
    """Put the fields of each dataclass parameter in its place, and gather them again when the verb is called."""
    hints = get_type_hints(verb, include_extras=True)
    names = list(inspect.signature(verb).parameters)
    groups = {name: hints[name] for name in names if is_dataclass(hints[name])}
    parameters = [each for name in names for each in _parameters(name, hints[name], verb)]

    @functools.wraps(verb)
    def flat(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return verb(**given)

    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    setattr(flat, "__signature__", inspect.Signature(parameters))  # noqa: B010 - functions do not declare it
    return flat


def _parameters(name: str, hint: Any, verb: Verb) -> list[inspect.Parameter]:
    if not is_dataclass(hint):
        default = inspect.signature(verb).parameters[name].default
        return [_keyword(name, hint, default)]
    hints = get_type_hints(hint, include_extras=True)
    defaults = {
        field.name: inspect.Parameter.empty if field.default is MISSING else field.default for field in fields(hint)
    }
    return [_keyword(field, hints[field], default) for field, default in defaults.items()]


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)

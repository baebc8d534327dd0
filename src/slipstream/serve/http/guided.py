"""What a body asks of an answer's form: response_format, structured_outputs and the guided_* fields of vLLM.

The one place that knows the engine's grammars; until it has them, the fields are refused by name.
"""

from typing import Any

from slipstream.serve.http.errors import bad_request
from slipstream.serve.http.protocol import SamplingBody

GUIDED = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def grammar_of(body: SamplingBody) -> dict[str, Any]:
    """The keyword arguments for SamplingParams that a body's fields come to.

    Raises:
        ApiError: a form that the engine cannot keep.
    """
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        raise _refusal("response_format")
    for name in GUIDED:
        if getattr(body, name) is not None:
            raise _refusal(name)
    return {}


def _refusal(name: str) -> Exception:
    return bad_request(f"{name} is not supported; leave it out", param=name, code="unsupported_parameter")

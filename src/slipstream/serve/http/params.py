"""From a body to sampling parameters. What cannot be honoured is refused by name, never ignored."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from slipstream.config.sampling import SamplingParams
from slipstream.serve.http.errors import bad_request
from slipstream.serve.http.guided import grammar_of
from slipstream.serve.http.protocol import ChatBody, CompletionBody, SamplingBody
from slipstream.serve.http.texts import check_text

COMPLETION_TOKENS = 16  # OpenAI's default
SEEDS = 2**63
BODY_NAMES = {"stop_ids": "stop_token_ids"}  # where a request's name of a parameter is another
LONGEST_ANSWER = 2**31 - 1  # the engine cuts it to the context

# Fields that change nothing about an answer.
SILENT = frozenset({"metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id"})
# Fields that may be sent at the value that asks for nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "include_reasoning": (True,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "documents": ([],),
    "functions": ([],),
    "function_call": ("none",),
    "include_obfuscation": (False,),
}


def refuse_unknown(body: BaseModel, *, within: str = "") -> None:
    """Raises ApiError for a field that this server does not know, or cannot honour."""
    for name, value in (body.model_extra or {}).items():
        if value is None or name in SILENT or any(_same(value, each) for each in NEUTRAL.get(name, ())):
            continue
        known = name in NEUTRAL
        message = f"{within}{name} is not supported" + (f" with the value {value!r}" if known else "")
        raise bad_request(f"{message}; leave it out", param=f"{within}{name}", code="unsupported_parameter")


def sampling_params(body: SamplingBody, *, longest: int | None) -> SamplingParams:
    """The engine's parameters; OpenAI's defaults where nothing is said, so a temperature of 1.

    longest: tokens of an answer where the body does not say.

    Raises:
        ApiError: a value is out of range, or something is asked for that cannot be.
    """
    refuse_unknown(body)
    if body.stream_options is not None:
        refuse_unknown(body.stream_options, within="stream_options.")
        if not body.stream:
            raise bad_request("stream_options is for streams; set stream, or leave it out", param="stream_options")
    longest = _first(_max_tokens(body), longest, LONGEST_ANSWER)
    if wants_prompt_alone(body):
        longest = 1  # the engine draws a token, and the answer leaves it out
        if body.min_tokens:
            raise bad_request(f"min_tokens {body.min_tokens} contradicts max_tokens 0", param="min_tokens")
    given: dict[str, Any] = {
        "max_tokens": longest,
        "temperature": _first(body.temperature, 1.0),
        "top_p": _first(body.top_p, 1.0),
        "top_k": 0 if body.top_k == -1 else _first(body.top_k, 0),
        "min_p": _first(body.min_p, 0.0),
        "seed": None if body.seed is None else body.seed % SEEDS,
        "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        "stop_ids": tuple(body.stop_token_ids or ()),
        "ignore_eos": bool(body.ignore_eos),
        "n": _first(body.n, 1),
        "min_tokens": _first(body.min_tokens, 0),
        "presence_penalty": _first(body.presence_penalty, 0.0),
        "frequency_penalty": _first(body.frequency_penalty, 0.0),
        "repetition_penalty": _first(body.repetition_penalty, 1.0),
        "logit_bias": _bias(body.logit_bias or {}),
        "bad_words": tuple(body.bad_words or ()),
        "logprobs": _logprobs(body),
        "prompt_logprobs": _logprobs(body) if echoes(body) else None,
        "grammar": grammar_of(body),
    }
    for name in ("stop", "bad_words"):
        for text in given[name]:
            check_text(text, param=name)
    try:
        return SamplingParams(**given)
    except ValueError as error:
        sentence = str(error)
        named = next((name for name in given if sentence.startswith(f"{name} ")), "")
        asked = BODY_NAMES.get(named, named)
        raise bad_request(asked + sentence.removeprefix(named), param=asked or None) from None


def echoes(body: SamplingBody) -> bool:
    """Whether answers begin with their prompts."""
    return isinstance(body, CompletionBody) and bool(body.echo)


def wants_prompt_alone(body: SamplingBody) -> bool:
    """Whether nothing is to follow the prompt that comes back."""
    return echoes(body) and body.max_tokens == 0


def _max_tokens(body: SamplingBody) -> int | None:
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    if None not in (newer, body.max_tokens) and newer != body.max_tokens:
        raise bad_request(
            f"max_completion_tokens {newer} contradicts max_tokens {body.max_tokens}; give one of them",
            param="max_tokens",
        )
    found = _first(newer, body.max_tokens)
    return None if found is None else min(found, LONGEST_ANSWER)


def _logprobs(body: SamplingBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    if isinstance(body, ChatBody):
        if body.top_logprobs is not None and not body.logprobs:
            raise bad_request("top_logprobs needs logprobs: true", param="top_logprobs")
        return _first(body.top_logprobs, 0) if body.logprobs else None
    return None


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token): value for token, value in given.items()}
    except ValueError:
        raise bad_request("logit_bias has a key that is no token id", param="logit_bias") from None


def _same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)

"""Prompts that stay cached at the Python door: run once, then kept until they are let go."""

from collections.abc import Sequence
from typing import cast

from slipstream.config.sampling import SamplingParams
from slipstream.engine.engine import Engine
from slipstream.serve.manner import Manner
from slipstream.serve.pending import Message, Pending, Requests
from slipstream.serve.running import run_to_end

Prompt = str | Sequence[Message] | Sequence[int]


def pin_prompt(engine: Engine, requests: Requests, prompt: Prompt) -> int:
    """Run a prompt and keep its full pages; how many tokens that is.

    Raises:
        ValueError: there is no budget for it, it fills no page, it cannot be run, or a stream is open.
    """
    page_size, num_pages = engine.config.page_size, engine.config.max_pinned_pages
    if not num_pages:
        raise ValueError("nothing may be pinned; load the model with pinned_tokens=..., a part of the cache")
    pending = _request(requests, prompt)
    length = len(pending.request.prompt)
    if length < page_size:
        raise ValueError(f"the prompt has {length} tokens but pages of {page_size} are kept; pin a longer one")
    if length // page_size > num_pages:
        raise ValueError(
            f"the prompt has {length} tokens but {num_pages * page_size} may be pinned; raise pinned_tokens"
        )
    run_to_end(engine, [pending], lambda place, completion: None)
    return engine.pages.pin(pending.request.prompt)


def ids_of(requests: Requests, prompt: Prompt) -> tuple[int, ...]:
    """A prompt's tokens."""
    return _request(requests, prompt).request.prompt


def keep_pins(before: Engine, engine: Engine, requests: Requests) -> None:
    """Pin again what an engine had pinned, in the one that took its place: its pools are new."""
    if engine is not before:
        for prompt in before.pages.pinned:
            pin_prompt(engine, requests, prompt)


def _request(requests: Requests, prompt: Prompt) -> Pending:
    """One that asks for as little as can be."""
    params, manner = SamplingParams(max_tokens=1, seed=0), Manner(steps=0)
    if isinstance(prompt, str) or all(isinstance(each, int) for each in prompt):
        (pending,) = requests.raw(cast("str | Sequence[int]", prompt), params, manner)
    else:
        (pending,) = requests.chat(cast("Sequence[Message]", prompt), params, manner)
    return pending

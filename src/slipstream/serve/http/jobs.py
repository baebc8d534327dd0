"""From a body to a job: names checked, text turned into ids."""

import secrets
from dataclasses import replace
from typing import Any

from slipstream.serve.http.choice import tool_choice
from slipstream.serve.http.conversation import plain_messages
from slipstream.serve.http.errors import ApiError, bad_request
from slipstream.serve.http.job import Job
from slipstream.serve.http.params import COMPLETION_TOKENS, sampling_params, wants_prompt_alone
from slipstream.serve.http.protocol import ChatBody, CompletionBody, SamplingBody
from slipstream.serve.http.reasoning import ThinkSplitter, opened, thinks
from slipstream.serve.http.reply import House, now
from slipstream.serve.http.tools import tool_style

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "documents", "bos_token", "eos_token"})


def check_model(house: House, name: str | None) -> str:
    """The name that the answer bears.

    Raises:
        ApiError: 404, another model was named.
    """
    names = house.settings.served_names
    if name is None or name == "":
        return names[0]
    if name not in names:
        raise ApiError(
            404, f"this server has no model {name!r}; it has {', '.join(names)}", code="model_not_found", param="model"
        )
    return name


async def completion_job(house: House, body: CompletionBody) -> Job:
    """Raw prompts to continue."""
    params = sampling_params(body, longest=COMPLETION_TOKENS)
    given = _several(body.prompt)
    if not given:
        raise bad_request("prompt is empty; give at least one token", param="prompt")
    if len(given) > house.limits.most:
        raise bad_request(f"{len(given)} prompts are more than the server takes at once", param="prompt")
    special = body.add_special_tokens is not False
    prompts: list[list[int]] = []
    for each in given:
        if isinstance(each, str):
            prompts.append(await house.texts.encode(each, add_special_tokens=special))
        else:
            prompts.append(house.texts.checked(each))
    echoes = ()
    if body.echo:
        echoes = tuple([each if isinstance(each, str) else await house.texts.decode(each) for each in given])
    alone = wants_prompt_alone(body)
    return Job(prompts=prompts, params=params, echoes=echoes, prompt_alone=alone, **_common(house, body, "cmpl"))


async def chat_job(house: House, body: ChatBody) -> Job:
    """A conversation to answer."""
    params = sampling_params(body, longest=None)
    choice = tool_choice(body, tool_style(house.settings.tools, house.texts.template_source))
    if choice.grammar is not None and params.grammar is not None:
        raise bad_request("tool_choice and response_format both say what the answer must be", param="tool_choice")
    params = replace(params, grammar=choice.grammar or params.grammar)
    kwargs = dict(body.chat_template_kwargs or {})
    for name in RESERVED & kwargs.keys():
        raise bad_request(f"chat_template_kwargs.{name} is not the client's to set", param="chat_template_kwargs")
    text = await house.texts.render(plain_messages(body.messages), tools=choice.shown, **kwargs)
    special = bool(body.add_special_tokens)
    ids = await house.texts.encode(text, add_special_tokens=special, param="messages")
    splits = thinks(house.settings.reasoning, house.texts.template_source) and body.separate_reasoning is not False
    splits = splits and params.grammar is None  # which leaves no place for a thought
    return Job(
        prompts=[ids],
        params=params,
        parser=choice.parser,
        named_call=choice.named,
        splitter=(lambda: ThinkSplitter(thinking=opened(text))) if splits else lambda: None,
        **_common(house, body, "chatcmpl"),
    )


def _common(house: House, body: SamplingBody, prefix: str) -> dict[str, Any]:
    control, options = body.speculation, body.stream_options
    wants = control.metrics if control is not None else None
    parts = bool(control and control.parts)
    if parts and not body.stream:
        raise bad_request("speculation.parts is for streams; set stream, or leave it out", param="speculation.parts")
    return {
        "id": f"{prefix}-{secrets.token_hex(16)}",
        "created": now(),
        "model": check_model(house, body.model),
        "steps": None if control is None else control.steps,
        "priority": body.priority or 0,
        "stream": bool(body.stream),
        "include_usage": bool(options and (options.include_usage or options.continuous_usage_stats)),
        "continuous_usage": bool(options and options.continuous_usage_stats),
        "speculation_metrics": house.settings.speculation_metrics if wants is None else wants,
        "parts": parts,
    }


def _several(prompt: Any) -> list[str | list[int]]:
    """One text, one list of ids, or several of either, as a list of prompts."""
    one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
    return [prompt] if one else list(prompt)

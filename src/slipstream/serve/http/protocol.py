"""Bodies of requests: OpenAI's fields, and those of vLLM's that the engine can honour.

A field that is not listed is refused by name (serve/http/params.py); null always means that it was left out.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = str
Ids = list[int]
Prompt = Text | Ids | list[Text] | list[Ids]


class StreamOptions(BaseModel):
    """What a stream brings besides text."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SpeculationControl(BaseModel):
    """How one request is drafted for."""

    model_config = ConfigDict(extra="forbid")

    steps: int | None = Field(
        default=None, ge=0, lt=2**31, description="The most draft steps of a cycle; 0 decodes plainly."
    )
    metrics: bool | None = Field(default=None, description="Whether the answer brings metrics.speculative_decoding.")
    parts: bool | None = Field(
        default=None,
        description=(
            "Whether the choice of each chunk brings speculation: {tokens, accepted, parts: [{text, drafted}]}, which"
            " says what of its text are accepted draft tokens and what are the target's own. For streams only."
        ),
    )


class SamplingBody(BaseModel):
    """What completions and chats have in common."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    response_format: dict[str, Any] | None = None
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    bad_words: list[str] | None = None
    add_special_tokens: bool | None = None
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # ours
    speculation: SpeculationControl | None = None


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    prompt: Prompt
    logprobs: int | None = None
    echo: bool | None = None


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: bool | None = None


class TokenizeBody(BaseModel):
    """POST /tokenize: a text, or a conversation through the chat template."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    tokens: list[int]

"""What a user asks for, in token ids."""

from dataclasses import dataclass

from slipstream.config.sampling import SamplingParams
from slipstream.flow.span import PageSpan

RequestId = int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to answer."""

    id: RequestId
    prompt: tuple[int, ...]  # filled by text
    params: SamplingParams
    seed: int  # the user's or a random one; keys the noise of every draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A request that enters the batch."""

    request: Request
    span: PageSpan  # granted by cache, for the whole answer

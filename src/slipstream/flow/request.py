"""What a user asks for, in token ids."""

from dataclasses import dataclass

from slipstream.config.sampling import SamplingParams

RequestId = int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to answer."""

    id: RequestId
    prompt: tuple[int, ...]  # filled by text
    params: SamplingParams
    seed: int  # the user's or a random one; keys the noise of every draw
    priority: int = 0  # lower runs first; among equals the one that came first
    stop_ids: tuple[int, ...] = ()  # filled by the engine: EOS among them, unless it is ignored
    steps: int | None = None  # the most draft steps of a cycle; None = the engine's, 0 = no speculation

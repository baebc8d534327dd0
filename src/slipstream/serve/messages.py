"""What the HTTP process and the engine's process say to each other: msgspec structs, written as msgpack.

A message is four bytes of length, most significant first, and so many bytes. Nothing is pickled.
"""

from typing import Any

import msgspec

from slipstream.config.draft import DraftWiring
from slipstream.config.sampling import SamplingParams

AnswerId = int  # given by the HTTP process; the n answers to one prompt have ids in a row


class Load(msgspec.Struct, frozen=True, tag=True):
    """The first message: what LLM is to be made with."""

    settings: dict[str, Any]
    draft_wiring: DraftWiring
    warm_up: bool
    profile_dir: str | None


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Answer a prompt params.n times."""

    answer: AnswerId  # of the first of them
    prompt: list[int]
    params: SamplingParams
    steps: int | None = None
    priority: int = 0


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for this answer any more."""

    answer: AnswerId


class StartProfile(msgspec.Struct, frozen=True, tag=True):
    """Record what runs from now on."""


class StopProfile(msgspec.Struct, frozen=True, tag=True):
    """Write what was recorded."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End in peace."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far the start is."""

    stage: str
    num_bytes: int = 0


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Requests can be answered; what came up."""

    info: dict[str, Any]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine has ended, in one sentence."""

    sentence: str
    bad_input: bool = False  # whether it is about what was asked for


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """A submission stands in line."""

    answer: AnswerId


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A submission can never run."""

    answer: AnswerId
    sentence: str


class Profiled(msgspec.Struct, frozen=True, tag=True):
    """What became of a profile: where it is, or why there is none."""

    path: str | None = None
    sentence: str | None = None


class Chance(msgspec.Struct, frozen=True, array_like=True):
    """One token's raw log-probability."""

    token: int
    logprob: float


class TokenChances(msgspec.Struct, frozen=True, array_like=True):
    """Of one emitted token, or of one of the prompt."""

    chosen: Chance
    top: list[Chance]


class End(msgspec.Struct, frozen=True, array_like=True):
    """How an answer ended, with its counts; names as in flow/output.py."""

    finish_reason: str
    num_prompt: int
    num_cached: int
    preemptions: int
    seed: int
    cycles: int
    proposed: int
    emitted: int
    histogram: list[int]
    prefill_s: float
    decode_s: float


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What one forward made certain of one answer."""

    answer: AnswerId
    tokens: list[int]
    accepted: int  # of the tokens, drafted ones
    chances: list[TokenChances] | None = None
    end: End | None = None
    prompt: list[TokenChances] | None = None  # of the prompt's tokens but the first, with an answer's first piece


class CycleTimes(msgspec.Struct, frozen=True, array_like=True):
    """One cycle of the whole batch, and what was done since the one before."""

    cycle: int  # counted from 1, at the start
    batch: int  # requests in it
    proposed: int
    emitted: int
    stage_s: dict[str, float]  # by the names of Report.stage_s; prefill and host are those since the cycle before


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine: gauges as they are, counters since its start."""

    running: int
    waiting: int
    kv_pages: int
    kv_pages_free: int  # not held by a request; the prefix cache's count as free
    prefix_asked: int  # tokens looked up in the prefix cache
    prefix_hits: int  # of them, found
    preemptions: int
    batches: int  # cycles of the whole batch
    cycles: int  # each request's share in a batch is a cycle
    proposed: int
    emitted: int
    not_drafted: int
    reached: list[int]
    passed: list[int]
    cycle_s: float
    stage_s: dict[str, float]
    drift: float | None  # recent over first accept length; None until both are known
    cycle_ratio: dict[int, float]  # R, by batch size rounded up to a power of two
    recent: list[CycleTimes]  # cycles since the report before, the last ones if there were many


class News(msgspec.Struct, frozen=True, tag=True):
    """What one step of the engine brought."""

    pieces: list[Piece]
    report: Report | None = None


ToEngine = Load | Submit | Abort | StartProfile | StopProfile | Stop
FromEngine = Loading | Ready | Failed | Accepted | Refused | Profiled | News

"""Who runs next, in how large chunks, and who has to make room: decisions over plain integers.

Pages are granted as a request grows. When they run out, the request that came last among the least important loses
its own and is recomputed later; the one that is most important never waits for another's.
"""

from collections.abc import Iterable, Sequence

from slipstream.config.engine import EngineConfig
from slipstream.flow.prefill import Chunk
from slipstream.flow.request import Request
from slipstream.schedule.line import Ticket

HEADROOM = 256  # entries granted beyond what is needed now, so that spans stay contiguous and grants are rare


def entries_for(num_tokens: int, config: EngineConfig) -> int:
    """KV entries that a cycle after `num_tokens` tokens may write: them, the root and the largest shape's tail."""
    return num_tokens + config.speculation.num_tail_entries + 1


def most_entries(request: Request, config: EngineConfig) -> int:
    """KV entries that a request may ever hold: its longest answer, and one cycle's tail beyond it."""
    return entries_for(min(len(request.prompt) + request.params.max_tokens, config.max_len), config)


def comfortable(needed: int, request: Request, config: EngineConfig) -> int:
    """What to ask for where there is plenty."""
    return max(needed, min(most_entries(request, config), needed + HEADROOM))


def check_request(request: Request, config: EngineConfig) -> None:
    """Refuse what could never run.

    Raises:
        ValueError: the prompt is empty or too long, or the answer does not fit into the cache beside what pinned
            prompts may keep: they are never evicted, so it could wait for ever.
    """
    length = len(request.prompt)
    if length == 0:
        raise ValueError("the prompt is empty: it has no tokens; give at least one")
    if length >= config.max_len:
        raise ValueError(
            f"the prompt has {length} tokens but the context holds {config.max_len} with at least one to answer;"
            " shorten it or raise max_len up to the model's context"
        )
    capacity = (config.num_pages - 1 - config.max_pinned_pages) * config.page_size
    if most_entries(request, config) > capacity:
        raise ValueError(
            f"prompt and answer need {most_entries(request, config)} KV entries but the cache holds {capacity}"
            f"{_beside(config)}; lower max_tokens or raise kv_gib"
        )
    if request.steps is not None and request.steps < 0:
        raise ValueError(f"steps must be 0 (no speculation) or more, not {request.steps}")


def _beside(config: EngineConfig) -> str:
    """What is not counted, where there is any."""
    kept = config.max_pinned_pages * config.page_size
    return f" beside the {kept} that pinned prompts may keep" if kept else ""


def next_chunks(entering: Iterable[tuple[int, int, int]], chunk: int) -> tuple[Chunk, ...]:
    """Chunks for one forward of about `chunk` tokens, from (request, positions done, positions in all) in line order.

    Chunks end on multiples of `chunk`, wherever they begin; the first always goes.
    """
    chosen: list[Chunk] = []
    room = chunk
    for request, done, total in entering:
        stop = min(total, (done // chunk + 1) * chunk)
        if chosen and stop - done > room:
            break
        chosen.append(Chunk(request=request, start=done, stop=stop))
        room -= stop - done
    return tuple(chosen)


def victim(tickets: Sequence[Ticket]) -> int:
    """The request that makes room: least important, then last to come."""
    return max(tickets)[2]

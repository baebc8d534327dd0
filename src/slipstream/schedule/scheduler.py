"""The line: first come, first served; the engine admits from it what the batch and the pages can hold.

Pages for a request's whole answer are granted when it enters, so nothing that runs can run out of memory.
"""

from collections import deque

from slipstream.config.engine import EngineConfig
from slipstream.flow.request import Request


def entries_needed(request: Request, config: EngineConfig) -> int:
    """KV entries that a request may ever write: its longest answer, and one cycle's tail beyond it."""
    longest = min(len(request.prompt) + request.params.max_tokens, config.max_len)
    return longest + config.speculation.num_tail_entries + 1


class Scheduler:
    """The waiting line."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Put a request at the end of the line.

        Raises:
            ValueError: it could never run.
        """
        config, length = self.config, len(request.prompt)
        if length == 0:
            raise ValueError("the prompt is empty: it has no tokens; give at least one")
        if length >= config.max_len:
            raise ValueError(
                f"the prompt has {length} tokens but the context holds {config.max_len} with at least one to answer;"
                " shorten it or raise max_len up to the model's context"
            )
        capacity = (config.num_pages - 1) * config.page_size
        if entries_needed(request, config) > capacity:
            raise ValueError(
                f"prompt and answer need {entries_needed(request, config)} KV entries but the cache holds {capacity};"
                " lower max_tokens or raise kv_gib"
            )
        self.waiting.append(request)

    def withdraw(self, request_id: int) -> bool:
        """Take a request out of the line; whether it was there."""
        kept = [request for request in self.waiting if request.id != request_id]
        found = len(kept) != len(self.waiting)
        self.waiting = deque(kept)
        return found

"""The waiting line: by priority, then by when a request first came. Plain integers."""

import heapq

Ticket = tuple[int, int, int]  # priority (lower runs first), arrival, request
MAX_GONE = 64  # more tickets of requests that left than this, and than half of the heap, are swept out


class Line:
    """Requests that wait; one that was preempted keeps its place by arrival."""

    def __init__(self) -> None:
        self._heap: list[Ticket] = []  # of those that wait, and of some that left
        self._waiting: dict[int, Ticket] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: int) -> bool:
        return request in self._waiting

    def join(self, ticket: Ticket) -> None:
        """Stand in line; O(log n)."""
        assert ticket[2] not in self._waiting, f"request {ticket[2]} stands in line already"
        self._waiting[ticket[2]] = ticket
        heapq.heappush(self._heap, ticket)

    def first(self) -> Ticket | None:
        """Who is next, still in line."""
        while self._heap and self._waiting.get(self._heap[0][2]) != self._heap[0]:
            heapq.heappop(self._heap)  # it left
        return self._heap[0] if self._heap else None

    def leave(self, request: int) -> bool:
        """Take a request out, wherever it stands; whether it was there."""
        found = self._waiting.pop(request, None) is not None
        if len(self._heap) > 2 * len(self._waiting) + MAX_GONE:
            self._heap = sorted(self._waiting.values())
        return found

"""The waiting line: by priority, then by when a request first came. Plain integers."""

import heapq

Ticket = tuple[int, int, int]  # priority (lower runs first), arrival, request


class Line:
    """Requests that wait; one that was preempted keeps its place by arrival."""

    def __init__(self) -> None:
        self._heap: list[Ticket] = []
        self._waiting: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: int) -> bool:
        return request in self._waiting

    def join(self, ticket: Ticket) -> None:
        """Stand in line; O(log n)."""
        heapq.heappush(self._heap, ticket)
        self._waiting.add(ticket[2])

    def first(self) -> Ticket | None:
        """Who is next, still in line."""
        while self._heap and self._heap[0][2] not in self._waiting:
            heapq.heappop(self._heap)  # it left
        return self._heap[0] if self._heap else None

    def leave(self, request: int) -> bool:
        """Take a request out, wherever it stands; whether it was there."""
        found = request in self._waiting
        self._waiting.discard(request)
        return found

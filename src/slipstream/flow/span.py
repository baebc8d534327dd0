"""The pages of one request: a noun that cache grants and the device reads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpan:
    """The pages of one request, in address order."""

    pages: tuple[int, ...]
    page_size: int

    @property
    def num_entries(self) -> int:
        """How many KV entries fit."""
        return len(self.pages) * self.page_size

    @property
    def contiguous(self) -> bool:
        """Whether the pages follow each other, so that the entries are one slice of the pool."""
        return all(after == before + 1 for before, after in zip(self.pages, self.pages[1:], strict=False))

"""Which request holds which pages: plain integers, no tensors.

Page 0 is scratch: padding rows and rows beyond a request's end are written there and never read.
"""

SCRATCH_PAGE = 0


class Pages:
    """Grants and takes back pages; the lowest free pages first, so that lone requests get contiguous spans."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self._free = set(range(1, num_pages))

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def pages_for(self, num_entries: int) -> int:
        """Pages that num_entries KV entries take."""
        return -(-num_entries // self.page_size)

    def grant(self, num_entries: int) -> tuple[int, ...] | None:
        """Pages for num_entries entries, or None when too few are free."""
        count = self.pages_for(num_entries)
        if count > len(self._free):
            return None
        chosen = self._run_of(count) or tuple(sorted(self._free)[:count])
        self._free.difference_update(chosen)
        return chosen

    def give_back(self, pages: tuple[int, ...]) -> None:
        """Free pages."""
        assert self._free.isdisjoint(pages), "a page was given back twice"
        self._free.update(pages)

    def _run_of(self, count: int) -> tuple[int, ...] | None:
        """The first run of `count` free pages that follow each other."""
        run: list[int] = []
        for page in sorted(self._free):
            if run and page != run[-1] + 1:
                run = []
            run.append(page)
            if len(run) == count:
                return tuple(run)
        return None

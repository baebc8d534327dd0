"""Which pages are free: plain integers, no tensors.

Page 0 is scratch: padding rows and rows beyond a request's end are written there and never read.
"""

from collections.abc import Iterator, Sequence

SCRATCH_PAGE = 0


class Pages:
    """Grants and takes back pages; the lowest free pages first, so that lone requests get contiguous spans.

    The free pages are the bits of one integer, so that a run of any length is found by a few shifts.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self._free = (1 << num_pages) - (1 << (SCRATCH_PAGE + 1))

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return self._free.bit_count()

    def free_pages(self) -> Iterator[int]:
        """The free pages, lowest first."""
        bits = f"{self._free:b}"[::-1]
        page = bits.find("1")
        while page >= 0:
            yield page
            page = bits.find("1", page + 1)

    def pages_for(self, num_entries: int) -> int:
        """Pages that num_entries KV entries take."""
        return -(-num_entries // self.page_size)

    def grant(self, num_entries: int) -> tuple[int, ...] | None:
        """Pages for num_entries entries, or None when too few are free."""
        return self.grant_pages(self.pages_for(num_entries))

    def grant_pages(self, count: int, *, after: int = SCRATCH_PAGE) -> tuple[int, ...] | None:
        """`count` pages, or None when too few are free: those that follow page `after`, else a run, else any."""
        if count > self.num_free:
            return None
        start = self._start_of_run(count, after)
        chosen = tuple(range(start, start + count)) if start else self._lowest(count)
        self._free &= ~self._bits(chosen)
        return chosen

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages."""
        bits = self._bits(pages)
        assert bits.bit_count() == len(pages), "a page was given back twice at once"
        assert not bits & self._free, "a page was given back twice"
        assert not bits >> SCRATCH_PAGE & 1, "the scratch page was given back: nobody may hold it"
        self._free |= bits

    def _start_of_run(self, count: int, after: int) -> int:
        """Where `count` free pages follow each other: right after page `after`, else the lowest; 0 is nowhere."""
        starts, run_len = self._free, 1
        while run_len < count:  # bit p of starts: pages p .. p + run_len - 1 are free
            more = min(run_len, count - run_len)
            starts &= starts >> more
            run_len += more
        if after != SCRATCH_PAGE and starts >> (after + 1) & 1:
            return after + 1
        return (starts & -starts).bit_length() - 1 if starts else SCRATCH_PAGE

    def _lowest(self, count: int) -> tuple[int, ...]:
        return tuple(page for page, _ in zip(self.free_pages(), range(count), strict=False))

    def _bits(self, pages: Sequence[int]) -> int:
        if len(pages) == 1:
            return 1 << pages[0]
        packed = bytearray(self.num_pages // 8 + 1)
        for page in pages:
            packed[page >> 3] |= 1 << (page & 7)
        return int.from_bytes(packed, "little")

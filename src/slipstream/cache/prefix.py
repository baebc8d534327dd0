"""Finding pages by the tokens that lead to them.

A published page is named by a chain: key of page i = digest(key of page i - 1, tokens of page i), and the first page's
key starts from a namespace. A key only finds a candidate: the page counts as found when its tokens and its parent are
the very ones asked for, so that two chains of the same key never exchange pages.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Digest = Callable[[bytes], bytes]


def blake2(data: bytes) -> bytes:
    """16 bytes that name the data."""
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Published:
    """A full page that is written and read-only. One object a publication: compared by identity."""

    page: int
    key: bytes
    tokens: tuple[int, ...]  # its own page_size tokens
    parent: "Published | None" = field(repr=False)  # the page before; None at a chain's start


class PrefixIndex:
    """The published pages: a forest whose branches share their beginnings."""

    def __init__(self, page_size: int, *, namespace: bytes = b"", digest: Digest = blake2) -> None:
        self.page_size, self.digest = page_size, digest
        self._root = digest(namespace)
        self._pack = struct.Struct(f"<{page_size}q").pack
        self._by_page: dict[int, Published] = {}
        self._by_key: dict[bytes, Published] = {}
        self._trail = Trail()

    def __len__(self) -> int:
        return len(self._by_page)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    def __iter__(self) -> Iterator[Published]:
        return iter(self._by_page.values())

    def get(self, page: int) -> Published | None:
        """What is published in a page."""
        return self._by_page.get(page)

    def chunk(self, tokens: Sequence[int], index: int) -> tuple[int, ...]:
        """The tokens of a chain's page `index`."""
        return tuple(tokens[index * self.page_size : (index + 1) * self.page_size])

    def find(self, parent: Published | None, chunk: tuple[int, ...]) -> Published | None:
        """The page that continues a chain with these tokens, if it is published."""
        found = self._by_key.get(self._key(parent, chunk))
        return found if found is not None and found.tokens == chunk and found.parent is parent else None

    def follow(self, tokens: Sequence[int], num_pages: int) -> tuple[int, ...]:
        """The longest run of published pages that hold the first tokens, at most num_pages.

        A tuple asked about again resumes where the last answer ended: a page outlives the pages that continue it, so
        if the last page found is still published, all before it are.
        """
        trail = self._trail if self._trail.tokens is tokens else Trail()
        while trail.last is not None and self._by_page.get(trail.last.page) is not trail.last:
            trail.pages.pop()
            trail.last = trail.last.parent
        while len(trail.pages) < num_pages:
            found = self.find(trail.last, self.chunk(tokens, len(trail.pages)))
            if found is None:
                break
            trail.pages.append(found.page)
            trail.last = found
        if isinstance(tokens, tuple):  # a list may change under us
            trail.tokens = tokens
            self._trail = trail
        return tuple(trail.pages[:num_pages])

    def put(self, page: int, *, parent: Published | None, chunk: tuple[int, ...]) -> Published | None:
        """Publish a page, unless its chain is: the page that holds it now; None if another chain has its key."""
        assert page not in self._by_page, f"page {page} is published already"
        key = self._key(parent, chunk)
        held = self._by_key.get(key)
        if held is not None:
            return held if held.tokens == chunk and held.parent is parent else None
        entry = Published(page=page, key=key, tokens=chunk, parent=parent)
        self._by_page[page] = self._by_key[key] = entry
        return entry

    def remove(self, page: int) -> None:
        """Forget a page that no published page continues."""
        del self._by_key[self._by_page.pop(page).key]

    def clear(self) -> None:
        """Forget every page."""
        self._by_page.clear()
        self._by_key.clear()
        self._trail = Trail()

    def check(self) -> None:
        """Assert that keys, pages and parents agree."""
        assert len(self._by_key) == len(self._by_page), "keys and pages differ in number"
        for page, entry in self._by_page.items():
            assert entry.page == page, f"page {page} is listed under the number of page {entry.page}"
            assert self._by_key.get(entry.key) is entry, f"page {page} is not found by its key"
            parent = entry.parent
            assert parent is None or self._by_page.get(parent.page) is parent, f"page {page} has lost its parent"

    def _key(self, parent: Published | None, chunk: tuple[int, ...]) -> bytes:
        return self.digest((self._root if parent is None else parent.key) + self._pack(*chunk))


@dataclass(slots=True, kw_only=True)
class Trail:
    """The pages found for the tokens asked about last."""

    tokens: Sequence[int] | None = None
    pages: list[int] = field(default_factory=list)
    last: Published | None = None  # the last of them

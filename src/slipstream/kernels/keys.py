"""Which entries the rows of a forward see, and where their own go: the arguments of every paged backend.

Shape letters: S sequences, R rows of each, E entries of a page table, D path length.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where the keys of S sequences live and which of them each row sees; all of it on the device.

    Row r of a sequence sees the positions [first, newest[r]], of them the last `window`. With paths, its positions
    from `committed` on are the entries of its path.
    """

    pages: Tensor  # integers [S, E]: position p lives in slot pages[p // page] * page + p % page
    page: int  # slots of a page; 1 for a plain list of slots
    newest: Tensor  # integers [S, R]: the last position that each row sees; -1 = none
    most: int  # no row's `newest` is this or more
    first: int = 0
    window: int | None = None
    committed: Tensor | None = None  # integers [S]: with paths
    paths: Tensor | None = None  # integers [S, R, D]: addresses, in the page table, of positions committed + d
    writes: Tensor | None = None  # integers [S, R]: where each row's own entry goes, if not to its newest

    def slots_at(self, addresses_SA: Tensor) -> Tensor:
        """Slots (int64) of some addresses of each sequence; those below 0 are slot 0's."""
        inside_SA = addresses_SA.clamp(min=0)
        pages_SA = self.pages.gather(1, inside_SA // self.page).long()
        return (pages_SA * self.page + inside_SA % self.page).masked_fill(addresses_SA < 0, 0)

"""Choose the draft's vocabulary from how often the target says what.

Shape letters: W target vocabulary, V draft vocabulary.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def choose_ids(counts_W: NDArray[np.int64], *, size: int, always: Iterable[int] = ()) -> NDArray[np.int64]:
    """Exactly `size` ids: `always`, then the most frequent, ties by id; sorted ascending.

    Raises:
        ValueError: more ids than the target has, or fewer than `always` needs.
    """
    forced = np.unique(np.asarray(list(always), dtype=np.int64))
    if not len(forced) <= size <= len(counts_W):
        raise ValueError(
            f"a draft vocabulary of {size} does not lie between {len(forced)} and the target's {len(counts_W)};"
            " change --draft-vocab"
        )
    order = np.lexsort((np.arange(len(counts_W)), -counts_W))
    others = order[~np.isin(order, forced)]
    return np.sort(np.concatenate((forced, others[: size - len(forced)]))).astype(np.int64)


def coverage(counts_W: NDArray[np.int64], ids_V: NDArray[np.int64]) -> float:
    """Share of the counted tokens that the draft can say."""
    return float(counts_W[ids_V].sum() / max(1, counts_W.sum()))

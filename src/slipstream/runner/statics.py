"""The tensors of one captured cycle: what it reads is loaded before each replay, what it leaves is read after.

Shape letters: S places, E pages of each, N rows of the tree, D depth + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from slipstream.attention.static import SCRATCH_PAGE
from slipstream.attention.tree import TokenTree, chain
from slipstream.config.speculation import Speculation
from slipstream.flow.batch import Batch, Row
from slipstream.kernels.keys import Keys
from slipstream.kernels.reference import KEY_BLOCK
from slipstream.runner.inputs import Resident
from slipstream.runner.landing import Landing
from slipstream.verify.accept import Accepted
from slipstream.verify.distribution import Sampling

SPARE = (0, 1, 1, 0, 0, 0, 0)  # a place that nobody has: reads and writes the scratch page, accepts nothing
NUM_FIELDS = len(SPARE) + 1  # and whose turn it is of the landing's two places
SPARE_DRAWS = (0.0, 1.0, 0.0, 0.0)  # greedy; the last is its top-k


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleShape:
    """What a capture depends on; the same on every rank, because it follows from the batch alone."""

    num_places: int
    num_keys: int
    speculation: Speculation
    sampled: bool  # some request draws
    filtered: bool  # some request cuts its distribution

    @property
    def steps(self) -> int:
        """Draft steps a cycle."""
        return self.speculation.steps

    @property
    def num_rows(self) -> int:
        """Rows a request, root included."""
        return self.speculation.num_rows

    def __str__(self) -> str:
        shape = self.speculation
        how = "filtered" if self.filtered else "sampled" if self.sampled else "greedy"
        return f"{self.num_places} x {shape.steps}x{shape.topk}x{shape.draft_tokens}, {self.num_keys} keys, {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What it took to capture a shape: its first cycle included, and memory beyond what was held before."""

    shape: CycleShape
    seconds: float
    num_bytes: int

    def told(self) -> tuple[str, float, int]:
        """The same in plain values."""
        return str(self.shape), self.seconds, self.num_bytes


def shape_of(batch: Batch, *, sizes: Sequence[int], growth: int = 2) -> CycleShape:
    """The smallest captured shape that holds a batch: places as in `sizes`, blocks of keys in powers of growth."""
    shape, params = batch.speculation, [row.params for row in batch.rows]
    num_keys = max(row.root_position for row in batch.rows) + 1 + shape.num_tail_entries
    blocks = 1
    while blocks * KEY_BLOCK < num_keys:
        blocks *= growth
    return CycleShape(
        num_places=next(size for size in sizes if size >= len(batch.rows)),
        num_keys=blocks * KEY_BLOCK,
        speculation=shape,
        sampled=not all(each.greedy for each in params),
        filtered=any(each.filtered for each in params),
    )


@dataclass(slots=True)
class Statics:
    """Static tensors of one shape."""

    shape: CycleShape
    page_size: int
    vocab_size: int
    device: torch.device
    direct: bool  # kernels write into the host's memory
    fields: Tensor = field(init=False)  # [NUM_FIELDS, S]
    after: Tensor = field(init=False)  # the fields of the cycle behind this one, or as loaded
    draws: Tensor = field(init=False)  # fp32 [4, S]: temperature, top-p, min-p, top-k
    pages_SE: Tensor = field(init=False)
    nodes: Tensor = field(init=False)  # [3, S, N]: tokens, parents and depths of the tree that is verified
    outcome: Tensor = field(init=False)  # [S, 1 + D + N]: how many were emitted, the tokens, the tree's depths
    landing: Landing = field(init=False)
    _chain: TokenTree = field(init=False)  # of zeros
    _owners: list[Resident] = field(default_factory=list)  # whose pages are loaded
    _num_pages: list[int] = field(default_factory=list)  # of each owner, when they were loaded

    def __post_init__(self) -> None:
        shape, integers = self.shape, {"dtype": torch.int64, "device": self.device}
        self.fields = torch.zeros(NUM_FIELDS, shape.num_places, **integers)
        self.after = torch.zeros_like(self.fields)
        self.draws = torch.tensor(SPARE_DRAWS, device=self.device)[:, None].repeat(1, shape.num_places)
        num_pages = -(-shape.num_keys // self.page_size)
        self.pages_SE = torch.full((shape.num_places, num_pages), SCRATCH_PAGE, dtype=torch.int32, device=self.device)
        self.nodes = torch.zeros(3, shape.num_places, shape.num_rows, **integers)
        self.outcome = torch.zeros(shape.num_places, 2 + shape.steps + shape.num_rows, **integers)
        self.landing = Landing(self.outcome, direct=self.direct)
        self._chain = chain(self.nodes[0])

    def load(self, rows: Sequence[Row], residents: Sequence[Resident], waiting: Sequence[int]) -> None:
        """Take a batch; waiting: positions that the draft has not seen, 1 where there is no draft."""
        values = [
            (row.root_token, row.root_position, count, row.depth_limit, row.seed, 1, row.room)
            for row, count in zip(rows, waiting, strict=True)
        ]
        values += [SPARE] * (self.shape.num_places - len(values))
        values = [(*fields, self.landing.next_turn) for fields in values]
        self._send(self.after, torch.tensor(list(zip(*values, strict=True))))
        if self.shape.sampled:
            draws = [(p.temperature, p.top_p, p.min_p, float(p.top_k or 0)) for p in (row.params for row in rows)]
            draws += [SPARE_DRAWS] * (self.shape.num_places - len(draws))
            self._send(self.draws, torch.tensor(list(zip(*draws, strict=True))))
        self.load_pages(residents)

    def _send(self, to: Tensor, values: Tensor) -> None:
        """Copy without waiting for the device."""
        to.copy_(values.pin_memory() if to.is_cuda else values, non_blocking=True)

    def leave(self, accepted: Accepted, tree: TokenTree, *, pdl: bool | None) -> None:
        """Leave the outcome, and note where every place's next cycle begins, if the batch stays."""
        emitted_SD, counts_S, drafted = accepted.tokens_SD, accepted.counts_S, bool(self.shape.steps)
        if pdl is not None:
            from slipstream.kernels.accept import advance  # noqa: PLC0415 - needs triton

            depths_SN = None if tree.is_chain else tree.depths_SN.contiguous()
            moved = (self.fields, self.after, emitted_SD.contiguous(), counts_S)
            advance(*moved, self.landing.places_2SC, drafted=drafted, depths_SN=depths_SN, pdl=pdl)
            return
        self.outcome.copy_(torch.cat((counts_S[:, None], emitted_SD, tree.depths_SN), dim=1))
        counts_S = counts_S * self.taken_S
        moved_S, room_S = counts_S > 0, self.fields[6] - counts_S
        last_S = emitted_SD.gather(1, (counts_S - 1).clamp(min=0)[:, None])[:, 0]
        self.after.copy_(self.fields)
        self.after[0] = torch.where(moved_S, last_S, self.roots_S)
        self.after[1] += counts_S
        self.after[2] = torch.where(moved_S, counts_S, self.waiting_S) if drafted else self.waiting_S + counts_S
        self.after[3] = self.limits_S.minimum((room_S - 1).clamp(min=0))
        self.after[6] = room_S

    def begin(self) -> None:
        """Begin a cycle where the one before ended, or as it was loaded."""
        self.fields.copy_(self.after)

    def load_pages(self, residents: Sequence[Resident]) -> None:
        """Take the pages of a batch's requests, unless they are here."""
        num_pages = [len(each.run.slots) for each in residents]
        same = len(self._owners) == len(residents) and all(a is b for a, b in zip(self._owners, residents, strict=True))
        if not same or num_pages != self._num_pages:
            self._write_pages(residents)
            self._num_pages = num_pages

    def _write_pages(self, residents: Sequence[Resident]) -> None:
        self.pages_SE.fill_(SCRATCH_PAGE)
        for place, resident in enumerate(residents):
            pages = resident.run.slots[:: self.page_size][: self.pages_SE.shape[1]] // self.page_size
            self.pages_SE[place, : len(pages)] = pages
        self._owners = list(residents)

    def keys(self, newest_SR: Tensor, *, first: int = 0) -> Keys:
        """Where entries live, for rows that see up to `newest_SR`."""
        return Keys(pages=self.pages_SE, page=self.page_size, newest=newest_SR, most=self.shape.num_keys, first=first)

    def sampling(self) -> Sampling | None:
        """The requests' parameters; None where all are greedy."""
        if not self.shape.sampled:
            return None
        temperatures_S, top_p_S, min_p_S, top_k_S = self.draws.unbind(0)
        top_k_S = top_k_S.long()
        return Sampling(
            sampled_R=temperatures_S > 0,
            temperatures_R=torch.where(temperatures_S > 0, temperatures_S, 1.0),
            top_k_R=torch.where(top_k_S > 0, top_k_S, self.vocab_size),
            top_p_R=top_p_S,
            min_p_R=min_p_S,
            seeds_R=self.seeds_S,
            filtered=self.shape.filtered,
        )

    def tree(self) -> TokenTree:
        """What is verified."""
        tokens_SN, parents_SN, depths_SN = self.nodes.unbind(0)
        if not self.shape.steps:
            return self.chain(self.roots_S[:, None])
        if self.shape.speculation.is_chain:
            return self.chain(tokens_SN)
        return TokenTree(
            tokens_SN=tokens_SN,
            parents_SN=parents_SN,
            depths_SN=depths_SN,
            max_depth=self.shape.steps,
            is_chain=False,
        )

    def chain(self, tokens_SN: Tensor) -> TokenTree:
        """Tokens that follow each other; what else a chain has was made outside the capture."""
        return replace(self._chain, tokens_SN=tokens_SN)

    def take(self, tree: TokenTree) -> None:
        """Keep a tree to verify; spare places hold zeros below the root, so that all ranks hold the same."""
        taken_S1 = self.taken_S[:, None]
        self.nodes[0].copy_(tree.tokens_SN * taken_S1)
        if not tree.is_chain:
            # a spare place's tree is a chain of the first rows, the same on all ranks
            depths_N = torch.arange(tree.num_rows, device=self.device).clamp(max=tree.max_depth)
            self.nodes[1].copy_(torch.where(taken_S1 > 0, tree.parents_SN, (depths_N - 1)[None]))
            self.nodes[2].copy_(torch.where(taken_S1 > 0, tree.depths_SN, depths_N[None]))

    @property
    def roots_S(self) -> Tensor:
        """Root tokens."""
        return self.fields[0]

    @property
    def positions_S(self) -> Tensor:
        """Where the roots stand."""
        return self.fields[1]

    @property
    def waiting_S(self) -> Tensor:
        """How many positions wait for the draft; they end just before the root."""
        return self.fields[2]

    @property
    def limits_S(self) -> Tensor:
        """How many drafted tokens may be accepted."""
        return self.fields[3]

    @property
    def seeds_S(self) -> Tensor:
        """Of each request's noise."""
        return self.fields[4]

    @property
    def taken_S(self) -> Tensor:
        """1 where a place is taken, 0 where it is spare."""
        return self.fields[5]

"""The shape of a cycle: steps, topk and draft tokens."""

from dataclasses import dataclass

MAX_STEPS = 16
MAX_DRAFT_TOKENS = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How many tokens a cycle drafts, and in which shape.

    steps: draft forwards a cycle = depth of the tree; 0 is plain decoding.
    topk: branches a node; 1 is a chain.
    draft_tokens: nodes verified a cycle without the root; a chain has exactly `steps`.
    """

    steps: int = 4
    topk: int = 1
    draft_tokens: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.steps <= MAX_STEPS:
            raise ValueError(f"steps must be between 0 (plain decoding) and {MAX_STEPS}, not {self.steps}")
        if not 1 <= self.topk <= MAX_DRAFT_TOKENS:
            raise ValueError(f"topk must be between 1 (a chain) and {MAX_DRAFT_TOKENS}, not {self.topk}")
        if self.topk == 1 and self.draft_tokens != self.steps:
            raise ValueError(
                f"a chain (topk 1) verifies exactly its steps: draft_tokens {self.draft_tokens} contradicts steps"
                f" {self.steps}; leave draft_tokens out or raise topk"
            )
        if self.topk > 1 and self.steps == 0:
            raise ValueError(f"topk {self.topk} needs at least one step; steps 0 is plain decoding")
        if self.topk > 1 and not self.steps <= self.draft_tokens <= self.num_candidates:
            raise ValueError(
                f"draft_tokens must be between steps ({self.steps}) and the {self.num_candidates} nodes that steps"
                f" {self.steps} and topk {self.topk} can grow, not {self.draft_tokens}"
            )
        if self.draft_tokens > MAX_DRAFT_TOKENS:
            raise ValueError(f"draft_tokens must be at most {MAX_DRAFT_TOKENS}, not {self.draft_tokens}")

    @property
    def num_candidates(self) -> int:
        """Nodes the draft can grow: topk at depth 1, topk children for topk nodes below."""
        return self.topk + (self.steps - 1) * self.topk * self.topk if self.steps else 0

    @property
    def is_chain(self) -> bool:
        """Whether every node has one child."""
        return self.topk == 1

    @property
    def num_rows(self) -> int:
        """Rows verified a cycle: the root and the draft tokens."""
        return self.draft_tokens + 1

    @property
    def num_tail_entries(self) -> int:
        """KV entries a cycle may write beyond the root, by target or draft."""
        return max(self.draft_tokens, (self.steps - 1) * self.topk if self.steps else 0)


def speculation(steps: int, topk: int = 1, draft_tokens: int | None = None) -> Speculation:
    """Settle a cycle's shape; a chain's draft tokens are its steps, a tree's default is 2 * topk * steps at most.

    Raises:
        ValueError: the three numbers contradict each other.
    """
    if draft_tokens is None and topk > 1 and steps > 0:
        candidates = topk + (steps - 1) * topk * topk
        draft_tokens = min(candidates, max(steps, 2 * topk * steps), MAX_DRAFT_TOKENS)
    return Speculation(steps=steps, topk=topk, draft_tokens=steps if draft_tokens is None else draft_tokens)


PLAIN = Speculation(steps=0, topk=1, draft_tokens=0)


def shrink(shape: Speculation, depth: int) -> Speculation:
    """The same shape cut to at most `depth` steps, for a batch whose requests are all close to their ends."""
    if depth >= shape.steps:
        return shape
    if depth <= 0:
        return PLAIN
    if shape.is_chain:
        return Speculation(steps=depth, topk=1, draft_tokens=depth)
    candidates = shape.topk + (depth - 1) * shape.topk * shape.topk
    return Speculation(steps=depth, topk=shape.topk, draft_tokens=min(shape.draft_tokens, candidates))

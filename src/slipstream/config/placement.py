"""Which ranks hold the draft, and over how many of them it is cut."""

from dataclasses import dataclass

REPLICATED = "replicated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The draft cut over the first `ranks` ranks of the target's, or whole on every one of them."""

    ranks: int = 1
    replicated: bool = False

    def holds(self, rank: int) -> bool:
        """Whether a rank holds a share of the draft."""
        return self.replicated or rank < self.ranks

    def holders(self, tp: int) -> int:
        """How many ranks hold a share."""
        return tp if self.replicated else self.ranks

    def __str__(self) -> str:
        return REPLICATED if self.replicated else f"tp {self.ranks}"


LEADER_ALONE = Placement()


def placements(tp: int) -> tuple[Placement, ...]:
    """Every placement beside a target of `tp` ranks, the smaller in weights first."""
    cut = tuple(Placement(ranks=ranks) for ranks in range(1, tp + 1) if tp % ranks == 0)
    return cut if tp == 1 else (*cut, Placement(ranks=1, replicated=True))


def placement(text: str, tp: int, *, option: str = "--draft-tp", words: str = f"auto, {REPLICATED}") -> Placement:
    """Read `--draft-tp`: a number of ranks, or `replicated`. option, words: for the sentence that refuses another.

    Raises:
        ValueError: neither, or a number that does not divide tp; the possible ones are named.
    """
    if text == REPLICATED:
        return Placement(ranks=1, replicated=True) if tp > 1 else LEADER_ALONE
    legal = [each.ranks for each in placements(tp) if not each.replicated]
    if not text.isdecimal() or int(text) not in legal:
        raise ValueError(
            f"{option} {text} is not possible beside a target cut over {tp};"
            f" use {words} or {', '.join(map(str, legal))}"
        )
    return Placement(ranks=int(text))

"""The shapes that tune chooses among, what they promise, and which of them are worth timing; pure functions.

A cycle costs no less with more steps, branches or nodes. So a shape that would be slower than the best so far even at
the cost of a smaller one needs no timing (branch and bound).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipstream.config.speculation import PLAIN, Speculation

COST_NOISE = 0.05  # a cost may have been measured so much too high


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What can be chosen for a batch size: a shape and where the draft is."""

    shape: Speculation
    placement: str  # `tp N` or `replicated`; empty for plain decoding


PLAIN_SETUP = Setup(shape=PLAIN, placement="")


def shapes(steps: Iterable[int], topks: Iterable[int], draft_tokens: Iterable[int]) -> tuple[Speculation, ...]:
    """Chains of all numbers of steps, and every tree that can be grown with the others; the cheap ones first."""
    depths, nodes = sorted({each for each in steps if each}), sorted(set(draft_tokens))
    found = [Speculation(steps=each, topk=1, draft_tokens=each) for each in depths]
    for topk in sorted({each for each in topks if each > 1}):
        for depth in depths:
            most = topk + (depth - 1) * topk * topk
            found += [Speculation(steps=depth, topk=topk, draft_tokens=each) for each in nodes if depth <= each <= most]
    return tuple(sorted(found, key=lambda each: (each.draft_tokens, each.steps, each.topk)))


def name_of(shape: Speculation) -> str:
    """`steps x topk x draft tokens`."""
    return f"{shape.steps}x{shape.topk}x{shape.draft_tokens}"


def shape_named(name: str) -> Speculation:
    """The shape of a name."""
    steps, topk, draft_tokens = map(int, name.split("x"))
    return Speculation(steps=steps, topk=topk, draft_tokens=draft_tokens)


def within(small: Speculation, large: Speculation) -> bool:
    """Whether a shape is no larger in any way, so that its cycle costs no more."""
    return small.steps <= large.steps and small.topk <= large.topk and small.draft_tokens <= large.draft_tokens


def cost_bound(shape: Speculation, costs: Mapping[Speculation, float]) -> float:
    """What a shape's cycle costs at least, by the smaller ones that were timed; 0 where none was."""
    return (1 - COST_NOISE) * max((cost for each, cost in costs.items() if within(each, shape)), default=0.0)


def worth_timing(
    shape: Speculation, accept_lengths: Mapping[Speculation, float], costs: Mapping[Speculation, float]
) -> bool:
    """Whether a shape could be faster than the fastest timed one; plain decoding stands among the costs."""
    bound = cost_bound(shape, costs)
    best = max((accept_lengths[each] / cost for each, cost in costs.items()), default=0.0)
    return bound == 0 or accept_lengths[shape] / bound > best


def best_setups(predicted: Mapping[Setup, float], count: int) -> list[Setup]:
    """The setups that promise most tokens a second, plain decoding aside."""
    drafting = [each for each in predicted if each.shape.steps]
    return sorted(drafting, key=lambda each: predicted[each], reverse=True)[:count]


def near_best(predicted: Mapping[Setup, float], count: int) -> list[Setup]:
    """At most so many of the most promising setups, none further below the best than a cost may be wrong."""
    best = best_setups(predicted, count)
    return [each for each in best if predicted[each] >= (1 - 2 * COST_NOISE) * predicted[best[0]]]

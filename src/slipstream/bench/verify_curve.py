"""What verifying n tokens costs beside decoding one, and which reading of it holds: pure functions.

A slow path for each further token and a fixed price of verifying anything look alike in one cycle, but not over n: the
first is a slope, the second a jump from n = 1 to n = 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

CURVE_TOKENS = (1, 2, 3, 4, 6, 8, 11)
FLAT = 0.15  # V(n) over V(1) less one, up to which the whole curve is flat
JUMP = 0.1  # of V(1), from which an excess at n = 2 is a fixed overhead
STRAYS = 0.15  # of V(1): points further than this from the line have another cause, or the machine was busy
SLOPE = 0.03  # of V(1) a token, from which further tokens are a slow path


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The curve in three numbers and a word."""

    word: str  # flat, fixed overhead, slow path, both, or unclear
    slope_ms: float  # a further token, least squares over n >= 2
    jump_ms: float  # the line through n >= 2, read at n = 1, less V(1): what verifying costs before it verifies more
    ratio: float  # of the last V(n) to V(1)
    sentence: str


def read_curve(curve: Mapping[int, float]) -> Reading:
    """Judge V(n), ms by tokens; it has n = 1, n = 2 and at least one more."""
    tokens = sorted(curve)
    one, most = curve[tokens[0]], tokens[-1]
    slope_ms, intercept_ms = line([(count, curve[count]) for count in tokens if count > 1])
    jump_ms, ratio = intercept_ms + slope_ms - one, curve[most] / one
    jumps = jump_ms > max(JUMP * one, 2 * abs(slope_ms)) or (jump_ms > JUMP * one and slope_ms < SLOPE * one)
    rises = slope_ms > SLOPE * one and ratio > 1 + FLAT
    numbers = (
        f"V(1) {one:.3f} ms, {slope_ms:+.3f} ms a further token ({slope_ms / one:+.1%} of V(1)), jump at n = 2 of"
        f" {jump_ms:+.3f} ms beyond that, V({most}) = {ratio:.2f} V(1)"
    )
    word = {(True, True): "both", (True, False): "fixed overhead", (False, True): "slow path"}.get(
        (jumps, rises), "flat"
    )
    stray_ms = max(abs(curve[count] - slope_ms * count - intercept_ms) for count in tokens if count > 1)
    if stray_ms > STRAYS * one:
        word, numbers = "unclear", f"{numbers}; a point strays {stray_ms:.3f} ms from the line"
    sentence = f"{_MEANINGS[word]}: {numbers}"
    return Reading(word=word, slope_ms=slope_ms, jump_ms=jump_ms, ratio=ratio, sentence=sentence)


_MEANINGS = {
    "flat": "V(n) is flat, verifying several tokens costs about what decoding one does",
    "fixed overhead": "V(n) jumps at n = 2, a fixed overhead of verifying (another kernel, another graph, a larger"
    " message): look at what changes between one row and two",
    "slow path": "V(n) rises with every token, a slow path (experts on a mixture, a kernel whose cost grows with its"
    " rows elsewhere): fewer draft tokens or a faster kernel help",
    "unclear": "V(n) is no line, INCONCLUSIVE: the machine does other work, or kernels change between these n",
    "both": "V(n) jumps at n = 2 and rises with every token after it: a fixed overhead and a slow path together",
}


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line; a single point is flat."""
    x, y = mean(point[0] for point in points), mean(point[1] for point in points)
    spread = sum((point[0] - x) ** 2 for point in points)
    slope = sum((point[0] - x) * (point[1] - y) for point in points) / spread if spread else 0.0
    return slope, y - slope * x

"""The noise of `noise.py` inside kernels: the same integers, the same roundings, so the same bits as torch on CUDA.

Shape letters: any; all arguments broadcast.
"""

# pyright: reportOperatorIssue=false

from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

from slipstream.kernels.launch import INTERPRETED
from slipstream.kernels.noise import GOLDEN, HIGHEST_UNIFORM, MIX_1, MIX_2

GOLDEN_STEP = tl.constexpr(GOLDEN)
FIRST_FACTOR = tl.constexpr(MIX_1)
SECOND_FACTOR = tl.constexpr(MIX_2)
MOST = tl.constexpr(HIGHEST_UNIFORM)
IN_DOUBLES = tl.constexpr(INTERPRETED)  # the interpreter has no libdevice


@triton.jit
def mixed(x: "Any") -> Any:
    """Scramble int64 values as `noise.mix` does."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST_FACTOR
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND_FACTOR
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def noise_keys(seeds: "Any", positions: "Any") -> Any:
    """What a row's noise depends on, from its int64 seed and position."""
    return mixed(mixed(seeds + GOLDEN_STEP) ^ (positions * FIRST_FACTOR))


@triton.jit
def noise_bits(keys: "Any", tokens: "Any") -> Any:
    """The high 32 bits of a draw's hash, as int64; tokens are int64 ids."""
    return (mixed(keys + tokens * GOLDEN_STEP) >> 32) & 0xFFFFFFFF


@triton.jit
def gumbel(keys: "Any", tokens: "Any") -> Any:
    """Standard Gumbel noise in fp32."""
    uniform = ((noise_bits(keys, tokens).to(tl.float64) + 0.5) * 2.3283064365386963e-10).to(tl.float32)
    uniform = tl.minimum(uniform, MOST)
    if IN_DOUBLES:
        return -tl.log(-tl.log(1.0 - uniform.to(tl.float64))).to(tl.float32)
    return -libdevice.log(-libdevice.log1p(-uniform))

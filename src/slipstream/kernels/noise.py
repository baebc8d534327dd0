"""Gumbel noise as a pure function of (seed, position, token id).

A 64-bit counter hash (the finalizer of SplitMix64, Steele et al. 2014) makes the bits, so a draw does not depend on
the order of draws, the batch, the tree or the device. Integer arithmetic wraps, in torch as in the kernels.

Shape letters: R rows, V token ids.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
HIGHEST_UNIFORM = 1 - 2.0**-24


def gumbel_noise(
    seeds_R: Int[Tensor, " r"], positions_R: Int[Tensor, " r"], tokens_V: Int[Tensor, " v"]
) -> Float[Tensor, "r v"]:
    """Standard Gumbel noise [R, V] in fp32 for drawing the token at `positions_R`.

    seeds_R, positions_R, tokens_V: int64. The large values, which decide an argmax, keep full precision:
    -log(-log1p(-v)) for v = (hash + 1/2) / 2^32.
    """
    keys_R = mix(mix(seeds_R + GOLDEN) ^ (positions_R * MIX_1))
    bits_RV = mix(keys_R[:, None] + tokens_V[None, :] * GOLDEN)
    high_RV = (bits_RV >> 32) & 0xFFFFFFFF
    uniform_RV = ((high_RV.to(torch.float64) + 0.5) * 2.0**-32).to(torch.float32).clamp(max=HIGHEST_UNIFORM)
    return -torch.log(-torch.log1p(-uniform_RV))


def mix(x: Tensor) -> Tensor:
    """Scramble int64 values; every input bit reaches every output bit."""
    x = (x ^ _shift_right(x, 30)) * MIX_1
    x = (x ^ _shift_right(x, 27)) * MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's >> on int64 keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)

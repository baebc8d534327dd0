"""Rotary position tables (Su et al. 2021) and their scalings: linear, dynamic NTK, YaRN (Peng et al. 2023), Llama 3.

Shape letters: P positions, T packed tokens, H heads, K head width, F = K / 2 frequencies.
"""

import math

import torch
from torch import Tensor, nn

from slipstream.config.model import RopeConfig, RopeKind

CPU = torch.device("cpu")  # tables are made on the host even while a model is built on the meta device


class Rope(nn.Module):
    """Cosine and sine tables for positions 0..max_position - 1, applied to the halves of a head."""

    cos_PF: Tensor
    sin_PF: Tensor

    def __init__(self, config: RopeConfig, *, head_dim: int, max_position: int, trained_position: int) -> None:
        super().__init__()
        frequencies_F, scale = inverse_frequencies(config, head_dim, max_position, trained_position)
        angles_PF = torch.outer(torch.arange(max_position, dtype=torch.float32, device=CPU), frequencies_F)
        self.register_buffer("cos_PF", angles_PF.cos() * scale, persistent=False)
        self.register_buffer("sin_PF", angles_PF.sin() * scale, persistent=False)

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [P, F] each."""
        return self.cos_PF, self.sin_PF

    def at(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the tables, shaped [T, 1, F] to meet heads; positions beyond the table read its last row."""
        rows_T = positions_T.clamp(max=self.cos_PF.shape[0] - 1)
        return self.cos_PF[rows_T].unsqueeze(1), self.sin_PF[rows_T].unsqueeze(1)


def inverse_frequencies(
    config: RopeConfig, head_dim: int, max_position: int, trained_position: int
) -> tuple[Tensor, float]:
    """Frequencies [F] in radians a position, and the factor on cos and sin.

    max_position: how far the tables reach; dynamic NTK fixes its base for that length, as vLLM does (a base that
    followed the length would invalidate cached keys). trained_position: the checkpoint's max_position_embeddings.
    """
    base_F = _frequencies(config.theta, head_dim)
    original = config.original_max_position or trained_position
    if config.kind is RopeKind.LINEAR:
        return base_F / config.factor, 1.0
    if config.kind is RopeKind.DYNAMIC and max_position > original:
        stretch = config.factor * max_position / original - (config.factor - 1)
        return _frequencies(config.theta * stretch ** (head_dim / (head_dim - 2)), head_dim), 1.0
    if config.kind is RopeKind.LLAMA3:
        return _llama3(config, base_F, original), 1.0
    if config.kind is RopeKind.YARN:
        return _yarn(config, base_F, head_dim, original), _yarn_scale(config)
    return base_F, 1.0


def _frequencies(theta: float, head_dim: int) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=CPU) / head_dim)


def _llama3(config: RopeConfig, base_F: Tensor, original: int) -> Tensor:
    wavelength_F = 2 * math.pi / base_F
    low, high = original / config.low_freq_factor, original / config.high_freq_factor
    blend_F = (original / wavelength_F - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    smooth_F = (1 - blend_F) * base_F / config.factor + blend_F * base_F
    scaled_F = torch.where(wavelength_F > low, base_F / config.factor, base_F)
    return torch.where((wavelength_F <= low) & (wavelength_F >= high), smooth_F, scaled_F)


def _yarn(config: RopeConfig, base_F: Tensor, head_dim: int, original: int) -> Tensor:
    def correction(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = correction(config.beta_fast), correction(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp_F = (torch.arange(head_dim // 2, dtype=torch.float32, device=CPU) - low) / max(high - low, 0.001)
    keep_F = 1 - ramp_F.clamp(0, 1)
    return base_F / config.factor * (1 - keep_F) + base_F * keep_F


def _yarn_scale(config: RopeConfig) -> float:
    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return magnitude(1.0)

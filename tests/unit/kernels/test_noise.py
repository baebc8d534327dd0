"""Noise is a function of (seed, position, token id), and it is Gumbel noise."""

import math

import torch

from slipstream.kernels.noise import gumbel_noise

EULER = 0.5772156649


def test_the_same_seed_position_and_token_give_the_same_noise_in_any_company() -> None:
    seeds, positions, tokens = torch.tensor([5, 9, 2**63 - 1]), torch.tensor([0, 7, 8191]), torch.arange(500)
    together = gumbel_noise(seeds, positions, tokens)
    for row in range(3):
        for token in (0, 3, 499):
            alone = gumbel_noise(seeds[row : row + 1], positions[row : row + 1], tokens[token : token + 1])
            assert alone.item() == together[row, token].item()


def test_the_noise_has_gumbels_mean_and_variance() -> None:
    noise = gumbel_noise(torch.arange(40), torch.arange(40), torch.arange(50_000)).double()
    assert torch.isfinite(noise).all()
    assert abs(noise.mean().item() - EULER) < 0.005
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.02


def test_noise_of_neighbouring_seeds_positions_and_tokens_is_uncorrelated() -> None:
    base = gumbel_noise(torch.tensor([3]), torch.tensor([11]), torch.arange(100_001))[0]
    others = {
        "seed": gumbel_noise(torch.tensor([4]), torch.tensor([11]), torch.arange(100_001))[0],
        "position": gumbel_noise(torch.tensor([3]), torch.tensor([12]), torch.arange(100_001))[0],
    }
    pairs = [(base[:-1], base[1:]), *((base, other) for other in others.values())]
    for left, right in pairs:
        assert abs(torch.corrcoef(torch.stack((left, right)))[0, 1].item()) < 0.015


def test_one_fixed_value_so_that_a_seed_keeps_its_meaning() -> None:
    noise = gumbel_noise(torch.tensor([1234]), torch.tensor([56]), torch.tensor([0, 789]))[0].tolist()
    assert [round(value, 5) for value in noise] == FIXED


FIXED = [3.12579, 0.04061]

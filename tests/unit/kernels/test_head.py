"""The fused head against its twin: on a CUDA device, elsewhere under Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from slipstream.kernels.draws import Draws
from slipstream.kernels.head import choose_tokens
from slipstream.kernels.plans import Plan
from slipstream.kernels.twins import choose_twin, linear_twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PLAN = Plan(block_out=32, block_in=64)


def draws_of(num_rows: int, first_id: int = 0) -> Draws:
    generator = torch.Generator().manual_seed(3)
    seeds = torch.randint(-(1 << 62), 1 << 62, (num_rows,), generator=generator)
    temperatures = torch.linspace(0.0, 2.0, num_rows)
    positions = torch.arange(num_rows) * 1009
    return Draws(
        temperatures=temperatures.to(DEVICE),
        seeds=seeds.to(DEVICE),
        positions=positions.to(DEVICE),
        first_id=first_id,
    )


def test_sampled_and_greedy_rows_choose_the_tokens_of_their_logits() -> None:
    x, w, draws = torch.randn(6, 64).to(DEVICE), torch.randn(200, 64).to(DEVICE) / 8, draws_of(6, first_id=77)
    logits = torch.full((6, 200), float("nan"), device=DEVICE)
    choice = choose_tokens(x, w, plan=PLAN, draws=draws, logits=logits)
    torch.testing.assert_close(logits, linear_twin(x, w), rtol=1e-4, atol=1e-4)
    scores = choose_twin(logits, draws.temperatures, draws.seeds, draws.positions, first_id=77)
    assert torch.equal(choice.ids, scores.argmax(-1))
    torch.testing.assert_close(choice.values, scores.amax(-1), rtol=1e-6, atol=1e-6)


def test_without_draws_all_rows_are_greedy_and_ids_go_by_their_names() -> None:
    x, w, names = torch.randn(3, 64).to(DEVICE), torch.randn(200, 64).to(DEVICE), 7 * torch.arange(200).to(DEVICE)
    wanted = linear_twin(x, w).argmax(-1)
    assert torch.equal(choose_tokens(x, w, plan=PLAN).ids, wanted)
    assert torch.equal(choose_tokens(x, w, plan=PLAN, names=names).ids, 7 * wanted)


def test_the_noise_of_a_name_is_that_of_the_token_it_stands_for() -> None:
    x, w, draws = torch.randn(6, 64).to(DEVICE), torch.randn(200, 64).to(DEVICE) / 8, draws_of(6)
    names = torch.arange(200).to(DEVICE) * 3 + 1
    spread = torch.full((6, 600), float("-inf"), device=DEVICE)
    spread[:, names] = linear_twin(x, w)
    scores = choose_twin(spread, draws.temperatures, draws.seeds, draws.positions)
    assert torch.equal(choose_tokens(x, w, plan=PLAN, draws=draws, names=names).ids, scores.argmax(-1))


def test_equal_scores_go_to_the_lowest_id() -> None:
    x, w = torch.ones(2, 64).to(DEVICE), torch.zeros(200, 64).to(DEVICE)
    w[[50, 51, 130]] = 1
    assert choose_tokens(x, w, plan=PLAN).ids.eq(50).all()

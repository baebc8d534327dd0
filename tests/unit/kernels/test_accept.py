"""The end of a cycle in kernels against `verify/accept.py`: on a CUDA device, elsewhere under Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from slipstream.attention.tree import chain
from slipstream.kernels.accept import accept_chains, advance
from slipstream.verify.accept import accept
from slipstream.verify.synthetic import decreed_counts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("num_rows", [1, 2, 4, 7])
def test_chains_accept_what_the_walk_down_a_tree_accepts(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    tokens, targets = (torch.randint(0, 2, (33, num_rows), generator=generator).to(DEVICE) for _ in "ab")
    limits = torch.randint(0, num_rows + 1, (33,), generator=generator).to(DEVICE)
    wanted = accept(chain(tokens), targets, limits)
    emitted, counts = accept_chains(tokens, targets, limits, seeds_S=limits, positions_S=limits)
    assert torch.equal(counts, wanted.counts_S)
    for place, count in enumerate(counts.tolist()):
        assert torch.equal(emitted[place, :count], wanted.tokens_SD[place, :count])
    for agreed in (True, False):
        flag = torch.tensor(agreed, device=DEVICE)
        _, marked = accept_chains(tokens, targets, limits, seeds_S=limits, positions_S=limits, agreed=flag)
        assert torch.equal(marked, wanted.counts_S * agreed)


def test_a_decreed_length_is_that_of_the_synthetic_counts_and_the_target_speaks_below_it() -> None:
    generator = torch.Generator().manual_seed(5)
    tokens, targets = torch.randint(0, 9, (40, 5)).to(DEVICE), torch.randint(10, 19, (40, 5)).to(DEVICE)
    seeds = torch.randint(-(1 << 62), 1 << 62, (40,), generator=generator).to(DEVICE)
    positions, limits = torch.arange(40).to(DEVICE), torch.full((40,), 4).to(DEVICE)
    emitted, counts = accept_chains(tokens, targets, limits, seeds_S=seeds, positions_S=positions, decreed=2.6)
    assert torch.equal(counts, decreed_counts(seeds, positions, 2.6) + 1)
    for place, count in enumerate(counts.tolist()):
        assert torch.equal(emitted[place, : count - 1], tokens[place, 1:count])
        assert emitted[place, count - 1] == targets[place, count - 1]


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("of_tree", [False, True])
@pytest.mark.parametrize("turn", [0, 1])
def test_fields_move_on_by_what_was_emitted_and_the_outcome_tells_all(turn: int, of_tree: bool, drafted: bool) -> None:
    fields = [[5, 6, 0], [40, 50, 1], [2, 3, 1], [3, 3, 0], [-7, 8, 0], [1, 1, 0], [3, 90, 0], [turn] * 3]
    fields = torch.tensor(fields).to(DEVICE)
    emitted, counts = torch.tensor([[11, 12, 13], [21, 22, 23], [1, 2, 3]]).to(DEVICE), torch.tensor([2, 0, 1])
    after = torch.zeros_like(fields)
    outcome = torch.full((2, 3, 8 if of_tree else 7), -9, pin_memory=DEVICE.type == "cuda")
    depths = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 2], [0, 1, 1, 1]]).to(DEVICE)
    kept = {"depths_SN": depths} if of_tree else {}
    advance(fields, after, emitted, counts.to(DEVICE), outcome, drafted=drafted, **kept)
    wanted = [[12, 6, 0], [42, 50, 1], [2, 3, 1], [0, 3, 0], [-7, 8, 0], [1, 1, 0], [1, 90, 0], [1 - turn] * 3]
    wanted[2] = wanted[2] if drafted else [4, 3, 1]  # a plain cycle's position waits beside those that did
    assert after.tolist() == wanted
    verified = depths if of_tree else torch.arange(3).expand(3, 3)
    assert torch.equal(outcome[turn], torch.cat((counts[:, None], emitted.cpu(), verified.cpu()), dim=1))
    assert (outcome[1 - turn] == -9).all(), "what the host may still be reading stays"

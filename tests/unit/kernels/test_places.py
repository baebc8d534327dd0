"""Where rows stand, and which features are kept: on a CUDA device, elsewhere under Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from slipstream.kernels.places import keep_page_ends, take_rows, waiting_rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_waiting_rows_end_just_before_the_root_and_spare_ones_stand_nowhere() -> None:
    roots, waiting = torch.tensor([9, 40, 1]).to(DEVICE), torch.tensor([3, 5, 1]).to(DEVICE)
    addresses, last = waiting_rows(roots, waiting, 5)
    assert addresses.tolist() == [[7, 8, 9, -1, -1], [36, 37, 38, 39, 40], [1, -1, -1, -1, -1]]
    assert last.tolist() == [2, 9, 10]


@pytest.mark.parametrize("width", [40, 1500])
def test_only_the_features_of_rows_that_end_a_page_are_kept(width: int) -> None:
    features = torch.randn(2, 4, width).to(DEVICE)
    roots, pages = torch.tensor([5, 14]).to(DEVICE), torch.tensor([[3, 1], [2, 5]], dtype=torch.int32).to(DEVICE)
    kept = torch.full((6, width), -1.0).to(DEVICE)
    keep_page_ends(features, roots, pages, kept, page=8)
    wanted = torch.full((6, width), -1.0).to(DEVICE)
    wanted[3], wanted[5] = features[0, 2], features[1, 1]  # positions 7 and 15
    assert torch.equal(kept, wanted)


def test_rows_of_two_tensors_are_taken_at_once() -> None:
    both, ids = torch.randn(2, 6, 40).to(DEVICE), torch.tensor([4, 0]).to(DEVICE)
    found = take_rows(both[0], both[1], ids)
    assert torch.equal(torch.stack(found), both[:, ids])

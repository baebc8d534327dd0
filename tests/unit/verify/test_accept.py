"""Acceptance: a node is kept exactly if it is the target's own token."""

import random

import torch

from slipstream.attention.tree import TokenTree, chain
from slipstream.verify.accept import accept


def test_a_chain_keeps_its_agreeing_prefix_and_adds_the_targets_token() -> None:
    tree = chain(torch.tensor([[9, 1, 2, 3], [9, 1, 2, 3], [9, 5, 2, 3]]))
    targets = torch.tensor([[1, 2, 7, 8], [1, 2, 3, 4], [1, 2, 3, 4]])
    accepted = accept(tree, targets, torch.tensor([3, 3, 3]))
    assert accepted.counts_S.tolist() == [3, 4, 1]
    runs = [row[:count] for row, count in zip(accepted.tokens_SD.tolist(), accepted.counts_S.tolist(), strict=True)]
    assert runs == [[1, 2, 7], [1, 2, 3, 4], [1]]


def test_a_depth_limit_cuts_what_could_be_accepted() -> None:
    tree = chain(torch.tensor([[9, 1, 2, 3]] * 3))
    accepted = accept(tree, torch.tensor([[1, 2, 3, 4]] * 3), torch.tensor([0, 1, 2]))
    assert accepted.counts_S.tolist() == [1, 2, 3]


def random_tree(rng: random.Random, num_rows: int, max_depth: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and depths; siblings differ and parents stand first."""
    tokens, parents, depths = [0], [-1], [0]
    while len(tokens) < num_rows:
        parent = rng.randrange(len(tokens))
        used = {tokens[row] for row in range(1, len(tokens)) if parents[row] == parent}
        free = [token for token in range(6) if token not in used]
        if depths[parent] == max_depth or not free:
            continue
        tokens.append(rng.choice(free))
        parents.append(parent)
        depths.append(depths[parent] + 1)
    order = sorted(range(num_rows), key=lambda row: depths[row])
    place = {row: index for index, row in enumerate(order)}
    return (
        [tokens[row] for row in order],
        [place[parents[row]] if row else -1 for row in order],
        [depths[row] for row in order],
    )


def walk(tokens: list[int], parents: list[int], targets: list[int], limit: int) -> tuple[list[int], list[int]]:
    """The same by hand: follow the child that is the target's token."""
    path, run = [0], [targets[0]]
    while len(path) <= limit:
        child = next((r for r in range(1, len(tokens)) if parents[r] == path[-1] and tokens[r] == run[-1]), None)
        if child is None:
            break
        path.append(child)
        run.append(targets[child])
    return path, run


def test_random_trees_are_accepted_as_a_walk_by_hand_does() -> None:
    rng = random.Random(4)
    for _ in range(60):
        made = [random_tree(rng, 14, 5) for _ in range(7)]
        targets = [[rng.randrange(6) for _ in range(14)] for _ in made]
        limits = [rng.randrange(6) for _ in made]
        tree = TokenTree(
            tokens_SN=torch.tensor([each[0] for each in made]),
            parents_SN=torch.tensor([each[1] for each in made]),
            depths_SN=torch.tensor([each[2] for each in made]),
            max_depth=5,
            is_chain=False,
        )
        accepted = accept(tree, torch.tensor(targets), torch.tensor(limits))
        for index, (tokens, parents, _) in enumerate(made):
            path, run = walk(tokens, parents, targets[index], limits[index])
            count = int(accepted.counts_S[index])
            assert accepted.rows_SD[index, :count].tolist() == path
            assert accepted.tokens_SD[index, :count].tolist() == run


def test_paths_name_every_rows_ancestors_root_first() -> None:
    tree = TokenTree(
        tokens_SN=torch.tensor([[0, 1, 2, 3, 4]]),
        parents_SN=torch.tensor([[-1, 0, 0, 2, 3]]),
        depths_SN=torch.tensor([[0, 1, 1, 2, 3]]),
        max_depth=3,
        is_chain=False,
    )
    assert tree.paths()[0].tolist() == [[0, -1, -1, -1], [0, 1, -1, -1], [0, 2, -1, -1], [0, 2, 3, -1], [0, 2, 3, 4]]

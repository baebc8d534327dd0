"""The tree that grows is the one EAGLE-2 describes: best children, best frontier, best nodes by path."""

import itertools
import math

import torch

from slipstream.config.sampling import SamplingParams
from slipstream.draft.grow import best_tree, candidate_scores, first_level, next_level
from slipstream.kernels.noise import gumbel_noise
from slipstream.verify.distribution import draw, sampling_rows
from slipstream.verify.shards import best_children

VOCAB, TOPK = 7, 3


def log_probabilities(path: tuple[int, ...]) -> torch.Tensor:
    """Scores after a path of draft ids, any fixed function of it."""
    generator = torch.Generator().manual_seed(1 + sum((token + 1) * 31**place for place, token in enumerate(path)))
    return (torch.randn(VOCAB, generator=generator) * 2).log_softmax(-1)


def expected_tree(steps: int, draft_tokens: int) -> set[tuple[int, ...]]:
    """Paths kept, by hand."""
    first = sorted(range(VOCAB), key=lambda token: -log_probabilities(())[token].item())[:TOPK]
    scores = {(token,): log_probabilities(())[token].item() for token in first}
    frontier = list(scores)
    for _ in range(1, steps):
        grown = {}
        for path in frontier:
            logs = log_probabilities(path)
            for token in sorted(range(VOCAB), key=lambda token: -logs[token].item())[:TOPK]:
                grown[(*path, token)] = scores[path] + logs[token].item()
        scores |= grown
        frontier = sorted(grown, key=lambda path: -grown[path])[:TOPK]
    return set(sorted(scores, key=lambda path: -scores[path])[:draft_tokens])


def grow(steps: int, draft_tokens: int) -> tuple[set[tuple[int, ...]], torch.Tensor]:
    grown, frontier = first_level(*best_children(log_probabilities(())[None], TOPK, None))
    paths = [(int(token),) for token in frontier.tokens_Sk[0]]
    for _ in range(1, steps):
        logs, tokens = best_children(torch.stack([log_probabilities(path) for path in paths]), TOPK, None)
        frontier = next_level(grown, frontier, logs[None], tokens[None])
        parents = [int(parent) for parent in frontier.parent_Sk[0]]
        paths = [(*paths[p], int(t)) for p, t in zip(parents, frontier.tokens_Sk[0], strict=True)]
    tree = best_tree(grown, torch.tensor([99]), draft_tokens=draft_tokens)
    tokens, parents = tree.tokens_SN[0].tolist(), tree.parents_SN[0].tolist()
    found: dict[int, tuple[int, ...]] = {0: ()}
    for row in range(1, len(tokens)):
        assert parents[row] < row, "parents stand before children"
        found[row] = (*found[parents[row]], tokens[row])
        assert tree.depths_SN[0, row] == len(found[row])
    assert tokens[0] == 99
    return set(found.values()) - {()}, tree.parents_SN


def test_the_kept_nodes_are_the_most_probable_paths() -> None:
    for steps, draft_tokens in itertools.product((1, 2, 3, 4), (3, 6, 9)):
        if draft_tokens <= TOPK + (steps - 1) * TOPK * TOPK:
            assert grow(steps, draft_tokens)[0] == expected_tree(steps, draft_tokens)


def test_certain_children_never_push_out_their_parents() -> None:
    """A probability of exactly 1 gives parent and child the same score."""
    sure = torch.full((VOCAB,), -math.inf)
    sure[2] = 0.0
    grown, frontier = first_level(*best_children(sure[None], 2, None))
    logs, tokens = best_children(torch.stack((sure, sure)), 2, None)
    frontier = next_level(grown, frontier, logs[None], tokens[None])
    tree = best_tree(grown, torch.tensor([0]), draft_tokens=2)
    assert tree.parents_SN[0].tolist() == [-1, 0, 1]
    assert tree.depths_SN[0].tolist() == [0, 1, 2]


def test_a_draft_with_the_targets_distribution_always_guesses_its_draw() -> None:
    """Gumbel coupling: the same scores and the same noise choose the same token."""
    torch.manual_seed(0)
    logits, positions = torch.randn(50, 40), torch.arange(50)
    sampling = sampling_rows(
        [SamplingParams(temperature=0.9)] * 50, list(range(50)), vocab_size=40, device=logits.device
    )
    scores = candidate_scores(logits, sampling, positions, torch.arange(40))
    assert torch.equal(scores.argmax(-1), draw(logits, sampling, positions))


def test_a_pruned_draft_uses_the_noise_of_target_ids() -> None:
    sampling = sampling_rows([SamplingParams(temperature=1.0)], [5], vocab_size=40, device=torch.device("cpu"))
    ids, position = torch.tensor([3, 17, 39]), torch.tensor([8])
    scores = candidate_scores(torch.zeros(1, 3), sampling, position, ids)
    assert torch.equal(scores, gumbel_noise(torch.tensor([5]), position, torch.arange(40))[:, ids])

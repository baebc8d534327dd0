"""Choices over a cut vocabulary are those over the whole one, on every rank, ties and all."""

import math

import pytest
import torch
from torch import Tensor

from slipstream.config.sampling import SamplingParams
from slipstream.parallel.cut import shard_of
from slipstream.verify.distribution import draw, sampling_rows
from slipstream.verify.shards import best_children, best_ids, sortable, whole_rows
from tests.together import together

SIZES = [1, 2, 3, 4]
VOCABULARIES = [64, 96, 120, 121, 67]  # several of them do not divide
INF = float("inf")


def random_scores(vocab_size: int, *, rows: int = 12, levels: int | None = None) -> Tensor:
    """Scores of both signs; levels: draw them from so few values that most rows have ties at the top."""
    generator = torch.Generator().manual_seed(vocab_size)
    if levels is None:
        return torch.randn(rows, vocab_size, generator=generator) * 5
    return torch.randint(-levels, 0, (rows, vocab_size), generator=generator).float()


def odd_scores(vocab_size: int) -> Tensor:
    """Rows that end in a corner: one value everywhere, infinities, zeros of both signs, the last id best."""
    scores = torch.full((7, vocab_size), -3.5)
    scores[1] = -INF
    scores[1, vocab_size // 2] = -1e30
    scores[2] = -INF
    scores[3] = -0.0
    scores[4] = -1e-45  # the smallest negative number
    scores[4, -2:] = 0.0
    scores[5, -1] = -3.4999
    scores[6, 3], scores[6, -1] = INF, INF
    return scores


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_the_best_id_is_the_lowest_of_the_best_scores(vocab_size: int, size: int) -> None:
    for scores in (random_scores(vocab_size), random_scores(vocab_size, levels=3), odd_scores(vocab_size)):
        lowest = (scores == scores.amax(-1, keepdim=True)).long().argmax(-1)
        found = together(size, lambda group, scores=scores: best_ids(own(scores, group), shard_of(vocab_size, group)))
        for each in found:
            assert torch.equal(each, lowest)


def test_a_positive_zero_does_not_beat_a_negative_one_of_a_lower_id() -> None:
    scores = torch.full((1, 64), -1.0)
    scores[0, 5], scores[0, 40] = -0.0, 0.0
    assert best_ids(scores, None).tolist() == [5]
    assert [int(each) for each in together(2, lambda group: best_ids(own(scores, group), shard_of(64, group)))] == [
        5,
        5,
    ]


def test_sortable_integers_are_ordered_as_the_numbers_are() -> None:
    ascending = [-INF, -1e30, -2.0, -1.0, -1e-45, 0.0, 1e-45, 0.5, 1.0, 3e38, INF]
    keys = sortable(torch.tensor(ascending)).tolist()
    assert keys == sorted(set(keys))
    assert all(-(2**31) <= key < 2**31 for key in keys)
    assert len(set(sortable(torch.tensor([0.0, -0.0])).tolist())) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("topk", [1, 4, 40])
def test_the_best_children_are_those_of_the_whole_vocabulary(vocab_size: int, size: int, topk: int) -> None:
    """40 are more than a shard of four has: what it lacks is padding, and never chosen."""
    scores = random_scores(vocab_size)
    wanted_logs, wanted_ids = scores.log_softmax(-1).topk(topk, dim=-1)
    found = together(size, lambda group: best_children(own(scores, group), topk, shard_of(vocab_size, group)))
    for logs, ids in found:
        assert torch.equal(ids, wanted_ids)
        assert torch.allclose(logs, wanted_logs, atol=1e-5)
        assert torch.equal(logs, found[0][0]), "the ranks hold the same bits"


@pytest.mark.parametrize("size", [2, 4])
def test_children_with_equal_scores_are_the_same_on_every_rank_and_none_comes_twice(size: int) -> None:
    scores = random_scores(121, levels=2)
    found = together(size, lambda group: best_children(own(scores, group), 8, shard_of(121, group)))
    for logs, ids in found:
        assert torch.equal(ids, found[0][1])
        assert all(len(set(row)) == 8 for row in ids.tolist())
        assert torch.equal(scores.gather(1, ids), scores.topk(8).values)
        assert torch.allclose(logs, scores.log_softmax(-1).gather(1, ids), atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_whole_rows_are_the_uncut_rows_bit_for_bit(vocab_size: int, size: int) -> None:
    scores = odd_scores(vocab_size)
    for each in together(size, lambda group: whole_rows(own(scores, group), shard_of(vocab_size, group))):
        assert torch.equal(each, scores)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=0.7, top_k=5, min_p=0.01),
    ],
    ids=["greedy", "t07", "topp", "topk-minp"],
)
def test_a_draw_over_shards_is_the_draw_over_all(params: SamplingParams, size: int) -> None:
    logits, rows = random_scores(121, rows=40), 40
    positions = torch.arange(rows)
    mixed = [params if row % 3 else SamplingParams() for row in range(rows)]
    sampling = sampling_rows(mixed, range(rows), vocab_size=121, device=torch.device("cpu"))
    wanted = draw(logits, sampling, positions)
    for each in together(size, lambda group: draw(own(logits, group), sampling, positions, shard_of(121, group))):
        assert torch.equal(each, wanted)
    assert math.isfinite(float(logits.sum()))


def own(scores: Tensor, group: object) -> Tensor:
    """A rank's columns."""
    span = shard_of(scores.shape[1], group).span  # type: ignore[arg-type]
    return scores[:, span.start : span.stop]

"""Decreed acceptance: the drafted tokens are emitted, at the mean that was asked for, and the caches stay true."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from slipstream.attention.dense import DenseAttend
from slipstream.attention.tree import TokenTree
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.flow.batch import Batch
from slipstream.flow.output import Run
from slipstream.models.decoder import Decoder
from slipstream.runner.worker import Worker
from slipstream.verify.accept import accept
from slipstream.verify.synthetic import decreed_counts, decreed_targets
from tests.tiny_engine import CPU, run_all, some_prompts, tiny_engine, tiny_target

PROMPTS = some_prompts(3, longest=40)
SHAPES = {"chain": speculation(4), "tree": speculation(3, 3, 8), "thin tree": speculation(4, 3, 4)}


@pytest.mark.parametrize("wanted", [1.0, 1.25, 2.0, 2.9, 4.0])
def test_decreed_counts_are_the_accept_length_less_one_on_average(wanted: float) -> None:
    seeds = torch.arange(100).repeat_interleave(400)
    positions = torch.arange(400).repeat(100)
    counts = decreed_counts(seeds, positions, wanted)
    assert float(counts.double().mean()) == pytest.approx(wanted - 1, abs=0.01)
    assert set(counts.tolist()) <= {int(wanted) - 1, int(wanted)}
    assert torch.equal(counts, decreed_counts(seeds, positions, wanted)), "the same on every rank"
    by_seed = counts.double().view(100, 400).mean(1)
    assert float((by_seed - wanted + 1).abs().max()) < 0.12, "no request is favoured"


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle was asked, verified and emitted."""

    batch: Batch
    tree: TokenTree
    runs: tuple[Run, ...]


class Spy:
    """The worker of a tiny engine whose acceptance is decreed, with all its cycles written down."""

    def __init__(self, shape: Speculation, wanted: float) -> None:
        self.engine, self.cycles = tiny_engine(shape), list[Cycle]()
        self.worker = self.engine.executor
        assert isinstance(self.worker, Worker)
        cycle, self._step, self._propose = self.worker.cycle, self.worker.step, self.worker.cycle.propose
        cycle.synthetic_accept_length = wanted
        cycle.propose, self.worker.step = self.propose, self.step  # type: ignore[method-assign]

    def propose(self, *arguments: Any) -> TokenTree:
        self._tree = self._propose(*arguments)
        return self._tree

    def step(self, batch: Batch) -> tuple[Run, ...]:
        runs = self._step(batch)
        self.cycles.append(Cycle(batch, self._tree, runs))
        return runs


def paths(tree: TokenTree, index: int) -> list[tuple[int, ...]]:
    """The tokens from below the root to each row."""
    found: list[tuple[int, ...]] = [()]
    for row in range(1, tree.num_rows):
        found.append((*found[int(tree.parents_SN[index, row])], int(tree.tokens_SN[index, row])))
    return found


@pytest.mark.parametrize("wanted", [1.0, 2.5, 4.0])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_drafted_tokens_are_emitted_as_many_as_decreed_and_the_targets_own_follows(
    shape: Speculation, wanted: float
) -> None:
    """That own token is one of a forward over all that was emitted, so the caches hold just that."""
    spy, target = Spy(shape, wanted), tiny_target()
    answers = run_all(spy.engine, PROMPTS, SamplingParams(max_tokens=40))
    texts = [[*prompt, answer.tokens[0]] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    for cycle in spy.cycles:
        for index, (row, run) in enumerate(zip(cycle.batch.rows, cycle.runs, strict=True)):
            text, seed, position = texts[row.request], torch.tensor([row.seed]), torch.tensor([row.root_position])
            assert row.root_position == len(text) - 1
            below = paths(cycle.tree, index)
            count = min(int(decreed_counts(seed, position, wanted)), row.depth_limit, max(map(len, below)))
            assert len(run.tokens) == count + 1
            assert run.tokens[:-1] in below
            text += run.tokens[:-1]
            assert run.tokens[-1] == greedy(target, text)
            text.append(run.tokens[-1])
    assert [text[len(prompt) :] for text, prompt in zip(texts, PROMPTS, strict=True)] == [
        list(answer.tokens) for answer in answers
    ]


def test_of_several_paths_the_deepest_is_walked() -> None:
    """The root's first child has none; its second leads two further down."""
    tree = TokenTree(
        tokens_SN=torch.tensor([[9, 11, 12, 13, 14, 15]]),
        parents_SN=torch.tensor([[-1, 0, 0, 2, 2, 4]]),
        depths_SN=torch.tensor([[0, 1, 1, 2, 2, 3]]),
        max_depth=3,
        is_chain=False,
    )
    targets = decreed_targets(tree, torch.full((1, 6), 77))
    assert targets.tolist() == [[12, 77, 14, 77, 15, 77]]
    accepted = accept(tree, targets, torch.tensor([3]))
    assert accepted.tokens_SD[0, : int(accepted.counts_S)].tolist() == [12, 14, 15, 77]


@torch.inference_mode()
def greedy(target: Decoder, tokens: list[int]) -> int:
    hidden = target(torch.tensor(tokens), DenseAttend(1, len(tokens), device=CPU))
    return int(target.logits(hidden.final_TD[-1:]).argmax())

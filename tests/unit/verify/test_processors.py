"""Scores are changed as transformers changes them, row by row of a tree, by each row's own path."""

import pytest
import torch
from torch import Tensor

from slipstream.attention.tree import TokenTree, chain
from slipstream.config.sampling import SamplingParams
from slipstream.parallel.cut import Shard, shard_of
from slipstream.parallel.group import Group, SoloGroup
from slipstream.verify.history import History, open_history
from slipstream.verify.processors import process
from tests.reference_sampler import changed
from tests.together import together

CPU = torch.device("cpu")
VOCABULARY = 23
STOPS = (4, 7)
WORDS = ((5,), (3, 8), (2, 2, 9), (1, 6, 3, 8))
ALL = SamplingParams(
    repetition_penalty=1.7,
    frequency_penalty=0.3,
    presence_penalty=-0.4,
    logit_bias={4: 5.0, 11: -3.0, 22: 1.5},
    bad_word_ids=WORDS,
    min_tokens=8,
)
CASES = {
    "repetition": SamplingParams(repetition_penalty=0.6),
    "frequency": SamplingParams(frequency_penalty=-1.1),
    "presence": SamplingParams(presence_penalty=2.0),
    "bias": SamplingParams(logit_bias={0: -100, 22: 3.25}),
    "words": SamplingParams(bad_word_ids=WORDS),
    "min_tokens": SamplingParams(min_tokens=7),
    "all": ALL,
}
MIXED = [*CASES.values(), SamplingParams(), SamplingParams(logprobs=2)]


def random_tree(num_requests: int, generator: torch.Generator) -> TokenTree:
    """Seven rows, four levels, of few tokens, so that they repeat."""
    parents = torch.tensor([-1, 0, 0, 1, 1, 3, 5])
    tokens = torch.randint(0, 10, (num_requests, 7), generator=generator)
    depths = torch.tensor([0, 1, 1, 2, 2, 3, 4])
    return TokenTree(
        tokens_SN=tokens,
        parents_SN=parents.expand(num_requests, -1),
        depths_SN=depths.expand(num_requests, -1),
        max_depth=4,
        is_chain=False,
    )


def contexts(num: int, generator: torch.Generator) -> tuple[list[list[int]], list[list[int]]]:
    lengths = torch.randint(1, 7, (num, 2), generator=generator).tolist()
    lists = [[torch.randint(0, 10, (size,), generator=generator).tolist() for size in both] for both in lengths]
    return [each[0] for each in lists], [each[1] for each in lists]


def opened(params: SamplingParams, prompt: list[int], answer: list[int], shard: Shard) -> History | None:
    """A history that has seen part of the answer before a preemption, and the rest since."""
    known = len(answer) // 2
    found = open_history(params, prompt=prompt, answered=answer[:known], stop_ids=STOPS, shard=shard, device=CPU)
    if found is not None:
        found.push(torch.tensor(answer[known:], dtype=torch.int64))
    return found


def processed(group: Group, batch: list[SamplingParams], tree: TokenTree, logits: Tensor, seed: int) -> Tensor:
    shard = shard_of(VOCABULARY, group)
    prompts, answers = contexts(len(batch), torch.Generator().manual_seed(seed))
    own = logits[:, shard.span.start : shard.span.stop].clone()
    for answer, roots in zip(answers, tree.tokens_SN[:, 0].tolist(), strict=True):
        answer[-1] = roots
    histories = [opened(*each, shard) for each in zip(batch, prompts, answers, strict=True)]
    process(own, histories, tree)
    return own


def check(batch: list[SamplingParams], tree: TokenTree, seed: int, found: Tensor, logits: Tensor) -> None:
    prompts, answers = contexts(len(batch), torch.Generator().manual_seed(seed))
    rows = found.view(*tree.tokens_SN.shape, VOCABULARY)
    paths = tree.paths()
    for place, params in enumerate(batch):
        for row in range(tree.num_rows):
            path = [int(tree.tokens_SN[place, each]) for each in paths[place, row].tolist() if each >= 0]
            answer = answers[place][:-1] + path  # the root is the answer's last token
            wanted = changed(params, prompts[place], answer, logits.view_as(rows)[place, row], STOPS)
            assert torch.equal(torch.isinf(rows[place, row]), torch.isinf(wanted)), (params, row)
            assert torch.allclose(rows[place, row], wanted, atol=1e-5), (params, row)


@pytest.mark.parametrize("seed", range(6))
def test_every_row_of_a_tree_is_changed_as_its_own_path_asks(seed: int) -> None:
    for batch in [[params] for params in CASES.values()] + [MIXED, MIXED[::-1]]:
        generator = torch.Generator().manual_seed(100 + seed)
        tree = random_tree(len(batch), generator)
        logits = torch.randn(len(batch) * 7, VOCABULARY, generator=generator) * 4
        found = processed(SoloGroup(), batch, tree, logits, seed)
        check(batch, tree, seed, found, logits)


def test_a_root_alone_is_a_tree() -> None:
    generator = torch.Generator().manual_seed(1)
    tree = chain(torch.randint(0, 10, (len(MIXED), 1), generator=generator))
    logits = torch.randn(len(MIXED), VOCABULARY, generator=generator)
    check(MIXED, tree, 1, processed(SoloGroup(), MIXED, tree, logits, 1), logits)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_change_their_own_part_as_one_rank_changes_all(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    tree = random_tree(len(MIXED), generator)
    logits = torch.randn(len(MIXED) * 7, VOCABULARY, generator=generator)
    alone = processed(SoloGroup(), MIXED, tree, logits, 9)
    parts = together(size, lambda group: processed(group, MIXED, tree, logits, 9))
    assert torch.equal(torch.cat(parts, dim=1), alone)


def test_a_request_that_asks_for_nothing_keeps_no_history() -> None:
    shard = shard_of(VOCABULARY, SoloGroup())
    for params in (SamplingParams(temperature=0.5, top_p=0.5, stop=("x",)), SamplingParams(n=3, seed=1)):
        assert open_history(params, prompt=[1], answered=[], stop_ids=STOPS, shard=shard, device=CPU) is None

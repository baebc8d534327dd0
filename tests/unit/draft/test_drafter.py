"""Extend and the further steps compute what a draft run token by token from scratch computes."""

from itertools import pairwise

import torch
from torch import Tensor

from slipstream.attention.dense import DenseAttend
from slipstream.attention.pool import KVPool, slot_run
from slipstream.config.speculation import speculation
from slipstream.draft.drafter import Drafter, Pending
from slipstream.flow.span import PageSpan
from slipstream.layers.linear import pack_linears
from tests.tiny_engine import CPU, TINY, tiny_draft, tiny_target

TARGET = tiny_target()
DRAFT = tiny_draft(TARGET, num_layers=2)
pack_linears(DRAFT.model)  # rows then do not depend on their number, so entries can be compared bit for bit


def drafter() -> Drafter:
    body = DRAFT.model.config.body
    pool = KVPool(
        num_layers=body.num_layers,
        num_pages=12,
        page_size=16,
        num_kv_heads=body.num_kv_heads,
        head_dim=body.head_dim,
        dtype=torch.float32,
        device=CPU,
    )
    return Drafter(DRAFT, pool)


def features(tokens: Tensor) -> Tensor:
    TARGET.capture(DRAFT.model.config.captures)
    found = TARGET(tokens, DenseAttend(1, len(tokens), device=CPU)).features_TF
    assert found is not None
    return found


def naive_chain(tokens: Tensor, steps: int) -> list[int]:
    """Draft ids after `tokens`: the whole sequence again for every step, dense attention, no cache.

    Slot p holds (token p + 1, hidden p); drafted slots hold the draft's own hidden states.
    """
    model = DRAFT.model
    next_tokens, hidden = tokens[1:], model.fuse(features(tokens[:-1]))
    drafted: list[int] = []
    for _ in range(steps):
        out = model(next_tokens, hidden, DenseAttend(1, len(next_tokens), device=CPU))
        drafted.append(int(DRAFT.target_ids[model.logits(out.normed_TD)[-1].argmax()]))
        next_tokens = torch.cat((next_tokens, torch.tensor(drafted[-1:])))
        hidden = torch.cat((hidden, out.next_TD[-1:]))
    return drafted


@torch.inference_mode()
def test_a_proposed_chain_equals_a_naive_draft_decode_however_the_extend_was_cut() -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, TINY.vocab_size, (40,), generator=generator)
    expected = naive_chain(tokens, 5)
    run, true = slot_run(PageSpan(pages=(3, 4, 7, 9), page_size=16), CPU), features(tokens)
    for cuts in ([0, 39], [0, 1, 39], [0, 17, 33, 38, 39]):
        under_test = drafter()
        for start, stop in pairwise(cuts):
            pending = Pending(start=start, tokens=tokens[start + 1 : stop + 1], features=true[start:stop])
            opening = under_test.extend([pending], [run])
        tree = under_test.propose(opening, [run], [(int(tokens[-1]), 39)], speculation(5), None)
        assert tree.tokens_SN[0].tolist() == [int(tokens[-1]), *expected]


@torch.inference_mode()
def test_drafted_entries_do_not_outlive_their_cycle() -> None:
    """A second extend over true features overwrites what drafting left."""
    tokens = torch.arange(30)
    run, true = slot_run(PageSpan(pages=(1, 2, 3), page_size=16), CPU), features(tokens)
    once, twice = drafter(), drafter()
    whole = Pending(start=0, tokens=tokens[1:], features=true[:-1])
    once.extend([whole], [run])
    first = Pending(start=0, tokens=tokens[1:21], features=true[:20])
    opening = twice.extend([first], [run])
    twice.propose(opening, [run], [(20, 20)], speculation(6), None)
    twice.extend([Pending(start=20, tokens=tokens[21:], features=true[20:-1])], [run])
    assert torch.equal(once.pool.keys[:, 17:46], twice.pool.keys[:, 17:46])


@torch.inference_mode()
def test_a_tree_contains_the_chain_of_best_choices() -> None:
    tokens = torch.arange(3, 28)
    run, true = slot_run(PageSpan(pages=(1, 2, 3, 4), page_size=16), CPU), features(tokens)
    under_test = drafter()
    opening = under_test.extend([Pending(start=0, tokens=tokens[1:], features=true[:-1])], [run])
    tree = under_test.propose(opening, [run], [(27, 24)], speculation(4, 3, 20), None)
    children = {(int(tree.parents_SN[0, row]), int(tree.tokens_SN[0, row])): row for row in range(1, tree.num_rows)}
    row = 0
    for token in naive_chain(tokens, 2):
        row = children[row, token]

"""A cycle's collectives, counted by hand."""

import pytest

from slipstream.doctor.collectives import CollectiveRow, DraftPlacement, DraftShape, Placing, collectives_of_cycle
from slipstream.doctor.shapes import named_shape

LLAMA = named_shape("llama-3.1-8b")
DRAFT = DraftShape(hidden_size=4096)
REPLICATED = Placing(kind=DraftPlacement.REPLICATED, ranks=1)


def cut_over(ranks: int) -> Placing:
    return Placing(kind=DraftPlacement.SHARDED, ranks=ranks)


def counts(rows: tuple[CollectiveRow, ...], role: str) -> dict[str, int]:
    return {row.name: row.count for row in rows if row.role == role}


def test_one_rank_sends_nothing():
    assert collectives_of_cycle(LLAMA, DRAFT, REPLICATED, 3, 1) == ()


def test_a_plain_step_sums_twice_a_layer_and_once_for_the_embedding():
    rows = collectives_of_cycle(LLAMA, DRAFT, REPLICATED, 0, 2)
    assert counts(rows, "target") == {"embedding": 1, "attention": 32, "mlp": 32, "best token": 1}
    assert counts(rows, "draft") == {}
    assert {row.num_bytes for row in rows if row.op == "all_reduce"} == {8192}


def test_a_verify_sends_as_often_as_a_plain_step_but_more():
    rows = collectives_of_cycle(LLAMA, DRAFT, REPLICATED, 3, 2)
    assert counts(rows, "target") == {"embedding": 1, "attention": 32, "mlp": 32, "best token": 1}
    assert {row.num_bytes for row in rows if row.stage == "verify" and row.op == "all_reduce"} == {4 * 8192}


def test_a_replicated_draft_sends_nothing():
    assert counts(collectives_of_cycle(LLAMA, DRAFT, REPLICATED, 5, 8), "draft") == {}


def test_a_draft_over_all_ranks_sends_every_step_and_no_tree():
    rows = collectives_of_cycle(LLAMA, DRAFT, cut_over(8), 5, 8)
    assert counts(rows, "draft") == {"embedding": 5, "attention": 5, "mlp": 5, "best token": 5}
    assert {row.ranks for row in rows} == {8}


def test_a_draft_with_a_table_of_its_own_sends_none_for_it():
    own = DraftShape(hidden_size=4096, shares_embedding=False)
    found = counts(collectives_of_cycle(LLAMA, own, cut_over(8), 5, 8), "draft")
    assert found == {"attention": 5, "mlp": 5, "best token": 5}


def test_a_draft_over_fewer_ranks_sends_the_others_its_tree():
    rows = collectives_of_cycle(LLAMA, DRAFT, cut_over(2), 5, 8)
    assert counts(rows, "draft") == {"attention": 5, "mlp": 5, "best token": 5, "tree": 1}
    assert {row.ranks for row in rows if row.name in ("attention", "best token") and row.role == "draft"} == {2}


def test_a_draft_on_one_rank_sends_only_its_tree():
    assert counts(collectives_of_cycle(LLAMA, DRAFT, cut_over(1), 3, 2), "draft") == {"tree": 1}


def test_a_trees_candidates_and_rows_are_counted():
    tree = DraftShape(hidden_size=4096, topk=4, draft_tokens=12)
    rows = collectives_of_cycle(LLAMA, tree, cut_over(2), 3, 2)
    assert counts(rows, "draft") == {"embedding": 3, "attention": 3, "mlp": 3, "best children": 3}
    assert {row.num_bytes for row in rows if row.stage == "verify" and row.op == "all_reduce"} == {13 * 8192}


def test_a_shape_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="llama"):
        named_shape("gpt-2")

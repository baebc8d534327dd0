"""What a cycle says it proposed."""

from slipstream.config.sampling import SamplingParams
from slipstream.flow.batch import Row
from slipstream.runner.cycle import run_of


def row(depth_limit: int) -> Row:
    return Row(request=0, root_token=1, root_position=5, depth_limit=depth_limit, params=SamplingParams(), seed=0)


def test_a_chain_proposes_its_steps_up_to_the_rows_limit() -> None:
    found = [run_of(row(limit), [7], range(5)) for limit in (0, 3, 9)]
    assert [(each.proposed, each.depth) for each in found] == [(0, 0), (3, 3), (4, 4)]


def test_a_tree_is_as_deep_as_its_deepest_node_and_not_as_its_steps() -> None:
    """Of a tree grown for 3 steps, the best nodes may all lie at depths 1 and 2."""
    depths = [0, 1, 1, 2, 2]
    found = run_of(row(3), [7], depths)
    assert (found.proposed, found.depth) == (4, 2)
    cut = run_of(row(1), [7], depths)
    assert (cut.proposed, cut.depth) == (2, 1)

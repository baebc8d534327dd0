"""What a cycle says it proposed."""

import torch

from slipstream.attention.tree import TokenTree, chain
from slipstream.config.sampling import SamplingParams
from slipstream.flow.batch import Row
from slipstream.runner.cycle import _run


def row(depth_limit: int) -> Row:
    return Row(request=0, root_token=1, root_position=5, depth_limit=depth_limit, params=SamplingParams(), seed=0)


def tree(*depths: int, max_depth: int) -> TokenTree:
    depths_SN = torch.tensor([depths])
    return TokenTree(
        tokens_SN=depths_SN, parents_SN=depths_SN - 1, depths_SN=depths_SN, max_depth=max_depth, is_chain=False
    )


def test_a_chain_proposes_its_steps_up_to_the_rows_limit() -> None:
    drafted = chain(torch.arange(5)[None])
    assert [(found.proposed, found.depth) for found in (_run(row(k), [7], drafted, None) for k in (0, 3, 9))] == [
        (0, 0),
        (3, 3),
        (4, 4),
    ]


def test_a_tree_is_as_deep_as_its_deepest_node_and_not_as_its_steps() -> None:
    """Of a tree grown for 3 steps, the best nodes may all lie at depths 1 and 2."""
    drafted = tree(0, 1, 1, 2, 2, max_depth=3)
    found = _run(row(3), [7], drafted, drafted.depths_SN[0].tolist())
    assert (found.proposed, found.depth) == (4, 2)
    cut = _run(row(1), [7], drafted, drafted.depths_SN[0].tolist())
    assert (cut.proposed, cut.depth) == (2, 1)

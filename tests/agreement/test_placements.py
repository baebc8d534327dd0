"""What ranks hold is what was asked for; what cannot be is refused, and the draft that was there goes on."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from slipstream import LLM, SamplingParams
from slipstream.flow.orders import RankShare
from tests.tensor_parallel import Pair, write_pair

HIDDEN, HEAD_DIM, INTERMEDIATE, VOCABULARY, DRAFT_VOCABULARY = 32, 8, 64, 120, 90
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)
PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Under:
    """An engine over two ranks and what one rank says and holds."""

    llm: LLM
    pair: Pair
    alone: RankShare
    tokens: list[tuple[int, ...]]


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [each.token_ids for each in llm.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"), draft_vocab_size=DRAFT_VOCABULARY)


@pytest.fixture(scope="module")
def under(pair: Pair) -> Iterator[Under]:
    alone = LLM(str(pair.model), draft=str(pair.draft), steps=3)
    llm = LLM(str(pair.model), draft=str(pair.draft), steps=3, tp=2, draft_tp=2)
    yield Under(llm=llm, pair=pair, alone=alone.shares()[0], tokens=answers(alone))
    llm.close()


def shards(ranks: int, *, whole_table: bool) -> dict[str, tuple[int, ...]]:
    """What one of `ranks` that share the draft holds of it; the embedding is cut only with the target's."""
    heads, kv_heads = 4 // ranks, 2 // ranks
    return {
        "attention.qkv": ((heads + 2 * kv_heads) * HEAD_DIM, 2 * HIDDEN),
        "attention.output": (HIDDEN, heads * HEAD_DIM),
        "mlp.gate_up": (2 * INTERMEDIATE // ranks, HIDDEN),
        "mlp.down": (HIDDEN, INTERMEDIATE // ranks),
        "head": (DRAFT_VOCABULARY // ranks, HIDDEN),
        "embedding": (VOCABULARY if whole_table else VOCABULARY // 2, HIDDEN),
    }


def num_bytes(shapes: dict[str, tuple[int, ...]], *, num_captures: int, own_table: bool) -> int:
    """Of a draft in fp32: its shards, the fusion and norms that are never cut, and the map of its vocabulary."""
    elements = sum(rows * columns for name, (rows, columns) in shapes.items() if own_table or name != "embedding")
    return 4 * (elements + HIDDEN * num_captures * HIDDEN + 4 * HIDDEN) + 8 * DRAFT_VOCABULARY


PLACED = {"1": [1, 0], "2": [2, 2], "replicated": [1, 1]}


@pytest.mark.parametrize(("draft_tp", "groups"), PLACED.items(), ids=PLACED)
def test_shares_are_the_ones_that_were_asked_for(under: Under, draft_tp: str, groups: list[int]) -> None:
    under.llm.reconfigure(draft_tp=draft_tp)
    shares = under.llm.shares()
    assert [share.rank for share in shares] == [0, 1]
    assert [share.draft_group for share in shares] == groups
    for share in shares:
        whole = draft_tp != "2"
        expected = shards(share.draft_group, whole_table=whole) if share.draft_group else {}
        assert dict(share.shards) == expected
        wanted = num_bytes(expected, num_captures=3, own_table=whole) if expected else 0
        assert share.draft_bytes == wanted
        assert share.shares_embedding == (draft_tp == "2"), "one tensor only where both are cut alike"
        assert share.target_bytes <= 0.55 * under.alone.target_bytes
        assert share.kv_bytes > 0
    assert answers(under.llm) == under.tokens


def test_ranks_without_a_draft_cache_for_the_target_alone(under: Under) -> None:
    under.llm.reconfigure(draft_tp=1)
    holder, other = under.llm.shares()
    feature = 3 * HIDDEN * 4 // 16  # one a page
    assert holder.entry_bytes == other.entry_bytes + 2 * 2 * HEAD_DIM * 4 + feature  # the draft's layer, whole
    assert holder.kv_bytes > other.kv_bytes


def break_config(draft: Path) -> None:
    file = draft / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "target_hidden_size": HIDDEN * 2}))


def lose_tensor(draft: Path) -> None:
    file = draft / "model.safetensors"
    tensors = load_file(file)
    del tensors["midlayer.mlp.down_proj.weight"]
    save_file(tensors, file)


def cut_short(draft: Path) -> None:
    file = draft / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def empty(draft: Path) -> None:
    for file in draft.iterdir():
        file.unlink()


DAMAGES = [
    (break_config, "made for a target of hidden size 64 but this target's is 32"),
    (lose_tensor, "lacks tensor 'midlayer.mlp.down_proj.weight'"),
    (cut_short, "is damaged or cut short"),
    (empty, "has no config.json"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
@pytest.mark.parametrize("draft_tp", [None, "replicated"])
def test_a_draft_that_does_not_load_leaves_the_earlier_one_at_work(
    under: Under, tmp_path: Path, damage: Callable[[Path], None], reason: str, draft_tp: str | None
) -> None:
    under.llm.reconfigure(draft_tp=1, steps=3)
    before = [(share.draft_group, share.shards, share.draft_bytes) for share in under.llm.shares()]
    bad = Path(shutil.copytree(under.pair.draft, tmp_path / "bad"))
    damage(bad)
    with pytest.raises(ValueError, match=reason):
        under.llm.reconfigure(draft=str(bad), draft_tp=draft_tp, steps=2)
    assert [(share.draft_group, share.shards, share.draft_bytes) for share in under.llm.shares()] == before
    assert under.llm.speculation.steps == 3
    assert under.llm.draft_path == under.pair.draft
    assert answers(under.llm) == under.tokens


def test_a_foreign_draft_and_an_impossible_place_are_refused_and_change_nothing(under: Under, tmp_path: Path) -> None:
    foreign = write_pair(tmp_path, hidden_size=64)
    for options, reason in [
        ({"draft": str(foreign.draft)}, "64"),
        ({"draft": str(tmp_path / "nowhere")}, "nowhere"),
        ({"draft_tp": "3"}, r"use auto, replicated or 1, 2$"),
        ({"draft_tp": "1", "steps": 99}, "steps must be between"),
    ]:
        with pytest.raises(ValueError, match=reason):
            under.llm.reconfigure(**options)
        assert answers(under.llm) == under.tokens


def test_another_draft_takes_the_earlier_ones_place(under: Under, tmp_path: Path) -> None:
    under.llm.reconfigure(draft_tp="replicated")
    other = Path(shutil.copytree(under.pair.draft, tmp_path / "other"))
    file = other / "model.safetensors"
    save_file(
        {name: each.flip(-1).contiguous() if "mlp" in name else each for name, each in load_file(file).items()}, file
    )
    under.llm.reconfigure(draft=str(other))
    assert [share.draft_group for share in under.llm.shares()] == [1, 1]
    assert answers(under.llm) == under.tokens
    under.llm.reconfigure(draft=str(under.pair.draft))


REFUSED = [
    ({"tp": 3}, r"the target has 4 heads and 2 KV heads, which cannot be cut over 3 ranks; use 1, 2, 4$"),
    ({"tp": 4, "draft_tp": 3}, r"--draft-tp 3 is not possible beside a target cut over 4; .* 1, 2, 4$"),
    ({"tp": 0}, "--tp must be 1 or more"),
    ({"kv_gib": 1.0, "memory_fraction": 0.5}, "--memory-fraction and --kv-gib both size the KV pools"),
    ({"memory_fraction": 1.5}, "between 0 and 1"),
    (
        {"memory_fraction": 1e-6},
        r"memory fraction 1e-06 leaves 0.00 GiB .* on rank 0 .*; raise --memory-fraction to 0\.",
    ),
    ({"inject_allreduce_us": 5.0}, "one rank has none"),
    ({"draft": None, "tp": 2, "draft_tp": 2}, "places a draft, and there is none"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[str(options) for options, _ in REFUSED])
def test_what_cannot_be_is_refused_with_what_can(pair: Pair, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LLM(str(pair.model), **{"draft": str(pair.draft), **options})

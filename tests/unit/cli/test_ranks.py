"""What a terminal shows of a group that has come up."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

import slipstream
from slipstream.cli.ranks import shares_table, show_start
from slipstream.flow.orders import RankShare

SHARDS = (("attention.qkv", (960, 1152)), ("attention.output", (576, 576)), ("mlp.gate_up", (5120, 576)))


def share(rank: int, **told: Any) -> RankShare:
    given: dict[str, Any] = {
        "host": "a",
        "device": f"cuda:{rank}",
        "target_bytes": 8 << 30,
        "draft_bytes": 1 << 30,
        "kv_bytes": 60 << 30,
        "draft_group": 1,
        "shards": SHARDS,
        "free_bytes": 1 << 30,
        "total_bytes": 80 << 30,
        "entry_bytes": 1024,
        "shares_embedding": False,
    }
    return RankShare(rank=rank, **{**given, **told})


def lines_of(*shares: RankShare) -> list[str]:
    terminal = io.StringIO()
    Console(file=terminal, width=100).print(shares_table(shares))
    return terminal.getvalue().splitlines()


def test_shards_that_are_alike_are_listed_once_and_the_table_fits_100_columns():
    lines = lines_of(*(share(rank) for rank in range(8)))
    assert sum("attention.qkv 960x1152" in line for line in lines) == 1
    assert sum("as rank 0" in line for line in lines) == 7
    assert max(map(len, lines)) <= 100


def test_a_rank_without_a_draft_lists_none():
    lines = lines_of(share(0), *(share(rank, draft_group=0, shards=(), draft_bytes=0) for rank in (1, 2)))
    assert [line.rstrip().endswith("none") for line in lines[-2:]] == [True, True]


def test_another_cut_is_listed_of_its_own():
    odd = (("attention.qkv", (320, 1152)),)
    lines = lines_of(share(0), share(1), share(2, shards=odd), share(3, shards=odd))
    assert any("attention.qkv 320x1152" in line for line in lines)
    assert "as rank 2" in lines[-1]


def test_how_long_several_ranks_took_is_said(capsys: pytest.CaptureFixture[str]):
    show_start(started_from("model"))
    said = capsys.readouterr().err
    assert "2 ranks were up after 8.2 s" in said
    assert "random" not in said


def test_random_weights_are_said_to_be_random(capsys: pytest.CaptureFixture[str]):
    show_start(started_from(None))
    assert "dummy weights: the models are random, and the answers mean nothing" in capsys.readouterr().err


def started_from(path: str | None) -> "slipstream.LLM":
    """Two ranks whose target's weights are at a path, or random."""
    wanted = SimpleNamespace(target=SimpleNamespace(path=path))
    started = SimpleNamespace(warning=None, choice=None, wanted=wanted)
    told = {"started": started, "synthetic_accept_length": None, "load_s": 8.25, "shares": lambda: (share(0), share(1))}
    return cast("slipstream.LLM", SimpleNamespace(tp=2, **told))

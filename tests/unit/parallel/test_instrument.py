"""What a wire writes down, and how it slows a group."""

import time

import pytest
import torch

from slipstream.parallel.group import SoloGroup
from slipstream.parallel.instrument import InstrumentedGroup, Ledger, LedgerRow, open_wire

CPU = torch.device("cpu")


def row(stage: str, op: str, name: str, count: int, num_bytes: int) -> LedgerRow:
    return LedgerRow(stage=stage, role="target", op=op, name=name, count=count, num_bytes=num_bytes)


def test_a_ledger_counts_by_stage_operation_and_name():
    stage, ledger = ["draft"], Ledger()
    group = InstrumentedGroup(SoloGroup(), open_wire(CPU, ledger=ledger, stage=lambda: stage[0]), "target")
    for _ in range(3):
        group.all_reduce(torch.zeros(4), "mlp")
    stage[0] = "verify"
    group.all_reduce(torch.zeros(2), "mlp")
    group.all_gather(torch.zeros(5, dtype=torch.int64), "tokens")
    group.broadcast(torch.zeros(1, dtype=torch.bool), "tree")
    assert ledger.rows() == (
        row("draft", "all_reduce", "mlp", 3, 48),
        row("verify", "all_reduce", "mlp", 1, 8),
        row("verify", "all_gather", "tokens", 1, 40),
        row("verify", "broadcast", "tree", 1, 1),
    )
    ledger.clear()
    assert ledger.rows() == ()


def test_nothing_is_written_down_without_a_ledger():
    wire, ledger = open_wire(CPU), Ledger()
    group = InstrumentedGroup(SoloGroup(), wire, "draft")
    group.all_reduce(torch.zeros(1), "unseen")
    wire.ledger = ledger
    group.all_reduce(torch.zeros(1), "seen")
    assert [each.name for each in ledger.rows()] == ["seen"]


def test_what_the_inner_group_returns_comes_through():
    group, x = InstrumentedGroup(SoloGroup(), open_wire(CPU), "draft"), torch.arange(3)
    assert (group.rank, group.size) == (0, 1)
    assert group.all_reduce(x, "a") is x
    assert group.all_gather(x, "b").shape == (1, 3)
    assert group.broadcast(x, "c") is x


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "broadcast"])
def test_every_collective_takes_the_delay_that_the_wire_has_now(op: str):
    wire = open_wire(CPU)
    call = getattr(InstrumentedGroup(SoloGroup(), wire, "target"), op)
    wire.delay_us = 2000.0
    began = time.perf_counter()
    for _ in range(5):
        call(torch.zeros(1), "slow")
    assert time.perf_counter() - began >= 5 * 2000e-6


def test_a_watch_is_told_where_each_collective_begins_and_ends():
    class Told:
        def __init__(self) -> None:
            self.events: list[tuple[object, ...]] = []

        def collective_begins(self) -> None:
            self.events.append(("begins",))

        def collective_ends(self, *, role: str, op: str, name: str, num_bytes: int) -> None:
            self.events.append((role, op, name, num_bytes))

    wire, told = open_wire(CPU), Told()
    group = InstrumentedGroup(SoloGroup(), wire, "draft")
    wire.watch = told
    group.all_reduce(torch.zeros(4), "mlp")
    wire.watch = None
    group.broadcast(torch.zeros(4), "unheard")
    assert told.events == [("begins",), ("draft", "all_reduce", "mlp", 16)]

"""How a skinny product is cut: one plan a weight shape, the same at every row count.

A row's bits depend on the order in which its products are added. That order follows from `split` (over how many
programs the inputs are cut), `block_in` and the kind of matrix instruction, so a plan is chosen per weight shape and
never per row count: 1 and 64 rows give a row the same bits.

Shape letters: O outputs, D inputs.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

NARROWEST = 64  # outputs of a program with 4 warps that Hopper's warpgroup instruction takes, whatever the row count
MOST_ROWS = 64  # of one tile at most speed of reading; more rows take the wide tiles
SHARED_BYTES = 220 << 10  # that programs of one multiprocessor may take together
WIDE_ROWS, WIDE_OUT, WIDE_IN, WIDE_WARPS, WIDE_STAGES = 128, 128, 64, 8, 4  # of tiles whose time is arithmetic
SMALL_BYTES = 8 << 20  # of a weight that is asked for as a whole
FEW_AHEAD = 128  # inputs of a larger one: 512 and more come at the cost of what the kernel in front still reads
WARP, WARP_OUT = 32, 16  # threads; outputs of a warp's part of a matrix instruction
FEW_ROWS, KEPT_A_THREAD = 16, 256  # rows of a tile that keeps weights in registers, and how many each thread keeps
WORKSPACE_FLOATS = 1 << 23
MOST_TILES = 1 << 14


PlanKey = tuple[int, int, bool]  # a weight's outputs and inputs, and whether it is gated


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one weight shape [O, D] is multiplied."""

    block_out: int  # outputs of a program: a power of two; narrower than NARROWEST, a fused norm's bits follow the rows
    block_in: int  # inputs of a step
    split: int = 1  # programs that share an output tile, each with its own part of the inputs
    warps: int = 4
    stages: int = 4
    tma: bool = False  # weights through the tensor memory accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How one launch is cut: its plan's way for few rows, wide for many; a row's bits are the same."""

    rows: int
    plan: Plan


@lru_cache(maxsize=4096)
def tile_for(
    plan: Plan, num_rows: int, num_in: int, *, shared: int, gated: bool = False, keep_outs: bool = False
) -> Tile:
    """The tile for a number of rows. keep_outs: the plan's outputs a program stay: something is summed by them.

    shared: bytes of shared memory that a program may take on this device.
    """
    if num_rows <= MOST_ROWS:
        rows = max(16, 1 << (num_rows - 1).bit_length())
        stages = _stages(plan, rows, min(SHARED_BYTES // 2, shared), gated=gated)
        return Tile(rows=rows, plan=replace(plan, stages=stages))
    block_in = WIDE_IN if num_in % (plan.block_in * plan.split) == 0 and plan.block_in % WIDE_IN == 0 else plan.block_in
    wide = replace(plan, block_in=block_in, stages=WIDE_STAGES if block_in == WIDE_IN else 2)
    if not keep_outs:
        wide = replace(wide, block_out=WIDE_OUT, warps=WIDE_WARPS)
    return Tile(rows=WIDE_ROWS, plan=replace(wide, stages=_stages(wide, WIDE_ROWS, shared, gated=gated)))


def _stages(plan: Plan, rows: int, most_bytes: int, *, gated: bool) -> int:
    """As deep as the plan says and shared memory allows; half of a Hopper's at few rows, so that two programs fit on a
    multiprocessor and their waits hide each other's.
    """
    num_bytes = (plan.block_out * (2 if gated else 1) + rows) * plan.block_in * 2
    return max(2, min(plan.stages, most_bytes // num_bytes))


def asked_ahead(tile: Tile, num_in: int, *, num_bytes: int) -> int:
    """How many inputs of its part a program asks the L2 for before it may begin. num_bytes: of the whole weight."""
    plan = tile.plan
    if tile.rows == WIDE_ROWS or num_in % (plan.block_in * plan.split) != 0:
        return 0
    part = num_in // plan.split
    return part if num_bytes <= SMALL_BYTES else min(part, FEW_AHEAD)


def kept_inputs(tile: Tile, num_in: int, *, item_bytes: int, gated: bool) -> int:
    """How many of its last inputs' weights a program loads into registers before it may begin: a power of two.

    Few rows leave the registers. A program that takes half of a multiprocessor's, or of its shared memory, comes when
    one in front ends, and loads while the last of those are added up. Gated products have two tiles of sums and were
    slower so.
    """
    plan = tile.plan
    part = num_in // plan.split
    if tile.rows > FEW_ROWS or gated or item_bytes != 2 or num_in % (plan.block_in * plan.split) != 0:
        return 0
    warps = min(plan.warps, plan.block_out // WARP_OUT)  # further ones share out the rows, and keep the same weights
    kept = 1 << (min(part, KEPT_A_THREAD * WARP * warps // plan.block_out).bit_length() - 1)
    while kept * (plan.block_out + tile.rows) * item_bytes > SHARED_BYTES // 2:  # they pass through it in the end
        kept //= 2
    return kept if kept % plan.block_in == 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What split products share: partial sums, and how many of each tile have arrived (zero between kernels).

    One workspace serves one stream: kernels that use it must not run side by side.
    """

    partials: Tensor  # fp32 [WORKSPACE_FLOATS]
    counts: Tensor  # int32 [MOST_TILES]


def workspace(device: torch.device, *, num_floats: int = WORKSPACE_FLOATS) -> Workspace:
    """A workspace for every product of a device."""
    return Workspace(
        partials=torch.empty(num_floats, device=device, dtype=torch.float32),
        counts=torch.zeros(MOST_TILES, device=device, dtype=torch.int32),
    )


def default_plan(num_out: int, num_in: int) -> Plan:
    """A plan that is never bad: enough programs for a large GPU, whole steps where the inputs allow."""
    block_in = 128 if num_in % 128 == 0 else 64
    tiles, steps, split = -(-num_out // NARROWEST), -(-num_in // block_in), 1
    while tiles * split < 192 and steps % (split * 2) == 0 and steps // (split * 2) >= 4:
        split *= 2
    return Plan(block_out=NARROWEST, block_in=block_in, split=split)

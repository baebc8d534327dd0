"""Programmatic dependent launch: a kernel may start before the one in front of it has ended.

Every kernel that is launched so waits before it touches what others write, so each sees all that came before it. Two
things are read before: weights, which nobody writes, and what stood before the forward began. A forward begins with a
kernel that waits first and lets the next one start only then (`before_next`), so what was written before it is there.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from typing import Any

import triton
import triton.language as tl

from slipstream.kernels.launch import INTERPRETED

COMPILED = tl.constexpr(not INTERPRETED)  # the interpreter has no instructions of its own


@triton.jit
def after_previous(PDL: tl.constexpr) -> None:
    """Let the next kernel start, then wait until the one before has ended and its writes are seen."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def before_next(PDL: tl.constexpr) -> None:
    """The other way round: whatever starts from here on sees all that came before this kernel."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def held(tile: "Any") -> Any:
    """The same tile, to the compiler another one: what follows does not decide how, or where, it lay before."""
    if not COMPILED:
        return tile
    pack: tl.constexpr = 32 // tile.dtype.primitive_bitwidth
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], tile.dtype, is_pure=False, pack=pack)

"""Programmatic dependent launch: a kernel may start before the one in front of it has ended.

Every kernel that is launched so waits before it touches what others write, so each sees all that came before it. Two
things are read before: weights, which nobody writes, and what stood before the forward began. A forward begins with a
kernel that waits first and lets the next one start only then (`before_next`), so what was written before it is there.
"""

# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl


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

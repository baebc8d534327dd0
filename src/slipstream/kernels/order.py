"""Programmatic dependent launch: a kernel may start before the one in front of it has ended.

Every kernel that is launched so waits before it touches what others write, so each sees all that came before it.
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

"""Compile every kernel for a GPU that is not here: the interpreter runs kernels, but not what is only for a GPU.

`python -m tests.compile_kernels` calls what launches kernels, as a cycle and its neighbours do; a stand-in for the
driver takes the compiled code and runs nothing.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from slipstream.kernels.accept import accept_chains, advance
from slipstream.kernels.draws import Draws
from slipstream.kernels.exchange import best_of_ranks, words_of_first
from slipstream.kernels.head import choose_tokens
from slipstream.kernels.keys import Keys
from slipstream.kernels.launch import HOPPER, HOPPER_SHARED_BYTES
from slipstream.kernels.lookup import shard_rows
from slipstream.kernels.mail import Mail
from slipstream.kernels.norms import add_norm, add_squares, pair_norms
from slipstream.kernels.paged import FEW_PARTS, PART, paged_attention
from slipstream.kernels.places import keep_page_ends, take_rows, waiting_rows
from slipstream.kernels.plans import WARP, Plan, workspace
from slipstream.kernels.push import push_add_squares, push_sum
from slipstream.kernels.qkv import rotate_and_store
from slipstream.kernels.skinny import Ready, Rms, skinny_linear

CAPABILITY, PAGE, WIDTH = 10 * HOPPER, 16, 576
Call = tuple[str, Callable[[], object]]


class Utils:
    """What a driver knows of its device."""

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Nothing is loaded: module, function, registers, spills, most threads."""
        return 1, 1, 0, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Of an H200."""
        return {"max_shared_mem": HOPPER_SHARED_BYTES, "multiprocessor_count": 132, "warpSize": WARP}


class StandIn:
    """A driver whose kernels do nothing."""

    utils = Utils()

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return GPUTarget("cuda", CAPABILITY, WARP)

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Of no kernel."""
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """A launch that does nothing."""
        return lambda *args: None


def rows(count: int, width: int = WIDTH) -> Tensor:
    """Of no matter."""
    return torch.zeros(count, width, dtype=torch.bfloat16)


def whole(*values: int) -> Tensor:
    """int64."""
    return torch.tensor(values)


def without_warpgroups(call: Callable[..., object], *args: Any, **options: Any) -> object:
    """As on a device whose matrix instructions are a warp's."""
    with patch("slipstream.kernels.skinny.has_warpgroups", lambda device: False):
        return call(*args, **options)


def products() -> Iterator[Call]:
    """Fused and gated, whole and split, for tiles that read at speed and wide ones."""
    space = workspace(torch.device("cpu"), num_floats=1 << 18)
    w, weight = rows(WIDTH), rows(1)[0]
    plans = {"whole": Plan(block_out=64, block_in=64), "tma": Plan(block_out=64, block_in=64, tma=True)}
    plans["split"] = Plan(block_out=64, block_in=64, split=3)
    for name, count in (("whole", 1), ("whole", 200), ("tma", 2), ("tma", 64), ("split", 17)):
        settings, x = {"space": space, "plan": plans[name], "pdl": True}, rows(count)
        rms = Rms(squares=torch.zeros(count, 9), eps=1e-5)
        ready = Ready(weight=weight, squares=torch.zeros(count, 9), scaled=rows(count))
        fused = {"residual": x, "ready": ready, **settings}
        yield f"product, fused, {name}, {count} rows", lambda x=x, fused=fused: skinny_linear(x, w, **fused)
        gated = {"rms": rms, "gated": True, **settings}
        yield f"product, gated, {name}, {count} rows", lambda x=x, gated=gated: skinny_linear(x, w, **gated)
    x, ready = rows(17), Ready(weight=weight, squares=torch.zeros(17, 9), scaled=rows(17))
    for name in ("whole", "split"):
        fused = {"residual": x, "ready": ready, "space": space, "plan": plans[name], "pdl": True}
        yield f"product, residual late, {name}", lambda fused=fused: without_warpgroups(skinny_linear, x, w, **fused)
    whole_part = Plan(block_out=64, block_in=64, split=9)  # of 64 inputs, which are kept: nothing is left for a loop
    yield "product, kept whole", lambda: skinny_linear(rows(1), w, space=space, plan=whole_part, pdl=True)
    yield "product with a bias", lambda: skinny_linear(rows(1), w, bias=weight, space=space, pdl=True)


def heads() -> Iterator[Call]:
    """Greedy and drawn."""
    draws = Draws(temperatures=torch.zeros(1), seeds=whole(1), positions=whole(1), first_id=0)
    drawn = {"draws": draws, "logits": rows(1, 256), "names": whole(*range(256)), "pdl": True}
    yield "head, greedy", lambda: choose_tokens(rows(1), rows(256), pdl=True)
    yield "head, drawn", lambda: choose_tokens(rows(1), rows(256), **drawn)


def norms() -> Iterator[Call]:
    """Each form that a model uses."""
    x, weight, ids = rows(4), rows(1)[0], whole(0, 1)
    yield "norm", lambda: add_norm(x, None, weight, eps=1e-5, pdl=True)
    yield "norm of a sum", lambda: add_norm(x, x, weight, eps=1e-5, pdl=True)
    yield "squares", lambda: add_squares(x, weight, x, pdl=True)
    yield "squares of a lookup", lambda: add_squares(x, weight, ids_T=ids, pdl=True)
    yield "pair", lambda: pair_norms(x, rows(2), (weight, weight), eps=(1e-5, 1e-5), ids_T=ids, pdl=True)


def attention() -> Iterator[Call]:
    """Chains and trees by heads of every width, and many parts."""
    arrivals = torch.zeros(4096, dtype=torch.int32)
    few = [(*heads, tree, 1) for heads in ((4, 8, 128), (3, 3, 64), (2, 4, 256)) for tree in (False, True)]
    for group, kv_heads, width, tree, parts in (*few, (4, 8, 128, False, FEW_PARTS + 1)):
        tables, num_heads = (torch.zeros(64, width // 2), torch.zeros(64, width // 2)), group * kv_heads
        pool = torch.zeros(32, kv_heads, width, dtype=torch.bfloat16)
        keys = Keys(
            pages=torch.zeros(1, 2, dtype=torch.int32), page=PAGE, newest=whole(0, 1, 1, 2)[None], most=parts * PART,
            committed=whole(0) if tree else None, paths=torch.zeros(1, 4, 3, dtype=torch.int64) if tree else None,
            writes=whole(0, 1, 2, 3)[None] if tree else None,
        )  # fmt: skip
        given = (rows(4, (num_heads + 2 * kv_heads) * width), pool, pool, keys)
        asked = {"tables_PF": tables, "arrivals": arrivals, "pdl": True}
        name = f"attention, width {width}, {'tree' if tree else 'chain'}, {parts} parts"
        yield name, lambda given=given, asked=asked: paged_attention(*given, **asked)
    pool, tables = torch.zeros(32, 3, 64, dtype=torch.bfloat16), (torch.zeros(64, 32), torch.zeros(64, 32))
    keys = Keys(pages=torch.zeros(1, 2, dtype=torch.int32), page=PAGE, newest=whole(0, 1)[None], most=9)
    turned = {"num_heads": 9, "norms_K": (rows(1, 64)[0], rows(1, 64)[0]), "eps": 1e-5, "pdl": True}
    yield "RoPE", lambda: rotate_and_store(rows(2, 15 * 64), keys, tables, (pool, pool), **turned)
    prompt = Keys(pages=torch.zeros(1, 40, dtype=torch.int32), page=1, newest=whole(*range(40))[None], most=40)
    for group, width in ((4, 128), (3, 64)):
        wide = torch.zeros(40, 8, width, dtype=torch.bfloat16)
        q = rows(40, 8 * group * width).view(40, -1, width)
        given = (q, wide, wide, prompt)
        name = f"attention of a prompt, width {width}"
        yield name, lambda given=given: paged_attention(*given, arrivals=arrivals, pdl=True)
    yield "attention, turned before", lambda: paged_attention(rows(2).view(2, 9, 64), pool, pool, keys, pdl=True)


def ends() -> Iterator[Call]:
    """What surrounds the forwards of a cycle."""
    two, chain = whole(1, 1), whole(1, 2, 3, 4).view(2, 2)
    fields, outcome = torch.zeros(8, 2, dtype=torch.int64), torch.zeros(2, 2, 5, dtype=torch.int64)
    asked = {"seeds_S": two, "positions_S": two, "pdl": True}
    yield "accept", lambda: accept_chains(chain, chain, two, agreed=torch.tensor(True), **asked)
    yield "accept as decreed", lambda: accept_chains(chain, chain, two, decreed=1.5, **asked)
    yield "advance", lambda: advance(fields, fields, chain, two, outcome, drafted=True, pdl=True)
    yield (
        "advance a tree",
        lambda: advance(fields, fields, chain, two, outcome, drafted=False, depths_SN=chain, pdl=True),
    )
    yield "waiting", lambda: waiting_rows(two, two, 4, pdl=True)
    pages = torch.zeros(2, 2, dtype=torch.int32)
    yield "page ends", lambda: keep_page_ends(rows(4).view(2, 2, -1), two, pages, rows(4), page=PAGE, pdl=True)
    yield "taken rows", lambda: take_rows(rows(4), rows(4), two, pdl=True)


def ranks() -> Iterator[Call]:
    """What ranks send each other."""
    yield "a shard's rows", lambda: shard_rows(rows(4), whole(0, 1), first=0)
    for dtype in (torch.bfloat16, torch.float32):
        mail = Mail(
            boxes=whole(0, 0), state=torch.zeros(2, dtype=torch.int32), rank=1, size=2, slot=1 << 14, dtype=dtype
        )
        x = rows(2).to(dtype)
        yield f"push, {dtype}", lambda x=x, mail=mail: push_sum(x, mail, pdl=True)
        yield f"push and add, {dtype}", lambda x=x, mail=mail: push_add_squares(x, x, x[0], mail, pdl=True)
        yield f"best of ranks, {dtype}", lambda mail=mail: best_of_ranks(torch.zeros(4), whole(1, 2, 3, 4), mail)
        yield f"words, {dtype}", lambda mail=mail: words_of_first(whole(*range(40)), mail)


def main() -> int:
    """Compile all, and say what cannot be."""
    driver.set_active(StandIn())
    failed, count = 0, 0
    for kind in (products, heads, norms, attention, ends, ranks):
        for name, call in kind():
            count += 1
            try:
                call()
            except Exception as error:  # each is told, and the others are tried
                failed += 1
                print(f"{name}: {error}", file=sys.stderr)
    print(f"{count - failed} of {count} compiled for compute capability {CAPABILITY / 10}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

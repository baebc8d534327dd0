"""In which layout a product sums a tile's squares, for every tile of rows: `python -m tests.reduction_layouts`.

A reduction adds in the order of its layout, which the compiler chooses; a row's bits hang on its being one layout.
"""

import re
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from slipstream.kernels.launch import HOPPER, WARPGROUPS
from slipstream.kernels.plans import WARP, Plan, Tile, kept_inputs
from slipstream.kernels.skinny import skinny_kernel

ROWS = (16, 32, 64, 128)
CAPABILITIES = (80, 89, 90)
POINTERS = {"partials": "*fp32", "counts": "*i32", "ready_squares": "*fp32", "num_rows": "i32", "eps": "fp32"}
MISSING = ("w_tiles", "bias", "squares")


def constants(capability: int, block_rows: int) -> dict[str, Any]:
    """Of SmolLM2-135M's output projection."""
    early, pdl = capability // 10 in WARPGROUPS, capability >= 90
    given = {"NUM_OUT": 576, "NUM_IN": 576, "BLOCK_T": block_rows, "BLOCK_O": 64, "BLOCK_D": 64, "SPLIT": 1}
    given |= {"NUM_SQUARES": 0, "GATED": False, "TMA": False, "AHEAD": 0, "EARLY": early, "PDL": pdl}
    tile = Tile(rows=block_rows, plan=Plan(block_out=given["BLOCK_O"], block_in=given["BLOCK_D"]))
    kept = kept_inputs(tile, given["NUM_IN"], item_bytes=2, gated=False)
    given["KEPT"] = kept if capability // 10 == HOPPER else 0
    return given | dict.fromkeys(MISSING)


def layout(capability: int, block_rows: int) -> str:
    """All of it but how many rows an instruction takes, which are no part of a sum."""
    names, given = skinny_kernel.arg_names, constants(capability, block_rows)
    signature = {name: "constexpr" if name in given else POINTERS.get(name, "*bf16") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(
        skinny_kernel, signature, {(names.index(name),): value for name, value in given.items()}, aligned
    )
    made = compile(source, target=GPUTarget("cuda", capability, WARP), options={"num_warps": 4, "num_stages": 2})
    text = made.asm["ttgir"]
    name = re.findall(r"\}\) : \(tensor<\d+x\d+xf32, (#\w+)>\) -> tensor", text)[-1]
    told = re.search(rf"^{name} = #ttg\.(.*)$", text, re.MULTILINE)
    assert told is not None, "the text names each layout once"
    return re.sub(r", instrShape = \[.*?\]", "", told[1])


def main() -> int:
    """Say each, and fail where they differ by the number of rows."""
    differing = 0
    for capability in CAPABILITIES:
        found = {rows: layout(capability, rows) for rows in ROWS}
        differing += len(set(found.values())) > 1
        print(f"compute capability {capability / 10}: {found}")
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())

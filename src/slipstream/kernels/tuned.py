"""Plans that were measured: by kind of device and weight shape (`python -m slipstream.bench.kernels`).

A plan decides a row's bits, so a table is part of the release: the same shape on the same kind of device gives the same
bits on every machine. Shapes that are not here take `default_plan`.
"""

from collections.abc import Mapping

from slipstream.kernels.plans import Plan, PlanKey

H200: Mapping[PlanKey, Plan] = {
    (6144, 4096, False): Plan(block_out=64, block_in=64, split=2, stages=6, tma=True),  # Llama-3.1-8B: qkv
    (4096, 4096, False): Plan(block_out=64, block_in=128, split=4, stages=4),  # o
    (28672, 4096, True): Plan(block_out=64, block_in=64, stages=7),  # gate and up
    (4096, 14336, False): Plan(block_out=64, block_in=128, split=4, stages=4, tma=True),  # down
    (128256, 4096, False): Plan(block_out=64, block_in=128, stages=3, tma=True),  # head
}
TABLES = {"H200": H200, "H100": H200}


def tuned_plans(device_name: str) -> Mapping[PlanKey, Plan]:
    """The table of a kind of device; empty for others."""
    return next((table for name, table in TABLES.items() if name in device_name), {})

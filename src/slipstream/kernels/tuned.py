"""Plans that were measured: by kind of device and weight shape (`python -m slipstream.bench.kernels`).

A plan decides a row's bits, so a table is part of the release: the same shape on the same kind of device gives the same
bits on every machine. Shapes that are not here take `default_plan`.
"""

from collections.abc import Mapping

from slipstream.kernels.plans import Plan, PlanKey

H200: Mapping[PlanKey, Plan] = {
    (6144, 4096, False): Plan(block_out=64, block_in=64, split=2, stages=6, tma=True),  # Llama-3.1-8B: qkv
    (4096, 4096, False): Plan(block_out=64, block_in=128, split=4, stages=4),  # o
    (28672, 4096, True): Plan(block_out=64, block_in=128, stages=3, tma=True),  # gate and up
    (4096, 14336, False): Plan(block_out=64, block_in=128, split=4, stages=4, tma=True),  # down
    (128256, 4096, False): Plan(block_out=64, block_in=128, stages=3, tma=True),  # head
    (960, 576, False): Plan(block_out=64, block_in=64, stages=7),  # SmolLM2-135M: qkv
    (576, 576, False): Plan(block_out=64, block_in=64, stages=4),  # o
    (3072, 576, True): Plan(block_out=64, block_in=64, stages=6),  # gate and up
    (576, 1536, False): Plan(block_out=64, block_in=128, split=6, stages=6),  # down
    (49152, 576, False): Plan(block_out=128, block_in=128, stages=2),  # head
    (960, 1152, False): Plan(block_out=64, block_in=128, split=3, stages=6),  # its draft: qkv
    (5120, 576, True): Plan(block_out=64, block_in=64, stages=7),  # gate and up
    (576, 2560, False): Plan(block_out=64, block_in=128, split=4, stages=6),  # down
    (576, 1728, False): Plan(block_out=64, block_in=64, split=3, stages=7),  # fc
    (13312, 576, False): Plan(block_out=64, block_in=128, stages=4),  # head
}
TABLES = {"H200": H200, "H100": H200}


def tuned_plans(device_name: str) -> Mapping[PlanKey, Plan]:
    """The table of a kind of device; empty for others."""
    return next((table for name, table in TABLES.items() if name in device_name), {})

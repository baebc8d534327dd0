"""How much memory a rank's device has, and has left, in bytes."""

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
KIB = 1024


def device_memory(device: torch.device) -> tuple[int, int]:
    """Free and total bytes of a GPU, or of the host's memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps in reserve is free to us
        return torch.cuda.mem_get_info(device)
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines() if ":" in line)
    free, total = (int(fields[name].split()[0]) * KIB for name in ("MemAvailable", "MemTotal"))
    return free, total

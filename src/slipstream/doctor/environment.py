"""What this machine is, and whether anything in it stands in the way."""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.doctor.finding import Finding, healthy, warning
from slipstream.doctor.links import LinkKind, read_links, slowest_kind
from slipstream.runner.memory import device_memory
from slipstream.serve.budget import GIB, IMBALANCE

CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = ("amx_bf16", "avx512_bf16")
SEEN_FLAGS = ("avx2", "avx512f", *BF16_FLAGS)
SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as torch sees it."""

    index: int
    name: str
    capability: str
    free_gib: float
    total_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine."""

    device: str  # cuda or cpu
    python: str
    torch: str
    cuda: str | None  # torch's
    driver: str | None
    cpu: str
    cores: int  # that this process may use
    threads: int  # of torch
    memory_gib: float  # of the host
    cpu_flags: tuple[str, ...]  # of SEEN_FLAGS
    onednn: bool
    gpus: tuple[Gpu, ...]
    topology: str | None  # the slowest link among the GPUs
    findings: tuple[Finding, ...]


def look_around(device: torch.device) -> Environment:
    """Describe the machine; device: where the models are to run."""
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.is_file() else ""
    flags, gpus = _flags(text), _gpus() if device.type == "cuda" else ()
    cores, threads, onednn = num_cores(), torch.get_num_threads(), torch.backends.mkldnn.is_available()
    links = read_links() if len(gpus) > 1 else ()
    slowest = slowest_kind(links, range(len(gpus))) if links else None
    on_cpu = device.type == "cpu"
    found = cpu_findings(cores, threads, flags, onednn=onednn) if on_cpu else gpu_findings(gpus, slowest, pairs_cut())
    return Environment(
        device=device.type,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=_driver() if gpus else None,
        cpu=_cpu_name(text),
        cores=cores,
        threads=threads,
        memory_gib=device_memory(torch.device("cpu"))[1] / GIB,
        cpu_flags=flags,
        onednn=onednn,
        gpus=gpus,
        topology=None if slowest is None else slowest.value,
        findings=tuple(found),
    )


def cpu_findings(cores: int, threads: int, flags: tuple[str, ...], *, onednn: bool) -> list[Finding]:
    """What a CPU is good for."""
    wide = next((flag for flag in BF16_FLAGS if flag in flags), None)
    arithmetic = f"bf16 products by {wide}" if wide else "no bf16 products; fp32 is used"
    found = [healthy("device", f"no GPU is used: the CPU, {cores} cores, {arithmetic}")]
    if threads > cores:
        says = f"torch runs {threads} threads on {cores} cores"
        found.append(warning("threads", says, f"set OMP_NUM_THREADS={cores}"))
    if onednn:
        found.append(healthy("oneDNN", "weights can be packed, so a verify of a few rows costs little more than one"))
    else:
        says = "this torch has no oneDNN, so verifying a few rows costs nearly twice as much as one"
        found.append(warning("oneDNN", says, "install torch's own wheel for this CPU"))
    return found


def gpu_findings(gpus: tuple[Gpu, ...], slowest: LinkKind | None, cut: list[tuple[int, int]]) -> list[Finding]:
    """GPUs, links, P2P and the balance of memory."""
    names = sorted({gpu.name for gpu in gpus})
    found = [healthy("device", f"{len(gpus)} x {', '.join(names)}")]
    if len(names) > 1:
        says = f"the GPUs differ ({', '.join(names)}), and all wait for the slowest"
        found.append(warning("GPUs", says, "choose like ones with CUDA_VISIBLE_DEVICES"))
    if len(gpus) < 2:
        return found
    if slowest is not None:
        found.append(healthy("topology", f"the slowest link is {slowest.value}; `slipstream doctor nccl` measures it"))
    if cut:
        pairs = ", ".join(f"{one}-{other}" for one, other in cut)
        says = f"no peer-to-peer access between GPUs {pairs}, so messages take the host's memory"
        found.append(warning("P2P", says, "look for ACS or IOMMU settings, and run `slipstream doctor nccl`"))
    else:
        found.append(healthy("P2P", "every pair of GPUs reaches the other's memory"))
    freest, fullest = (choose(gpus, key=lambda gpu: gpu.free_gib) for choose in (max, min))
    if freest.free_gib - fullest.free_gib > IMBALANCE * freest.free_gib:
        says = f"GPU {fullest.index} has {fullest.free_gib:.1f} GiB free but GPU {freest.index} has"
        remedy = "look for another process on it, since the fullest decides how much all can cache"
        found.append(warning("memory balance", f"{says} {freest.free_gib:.1f}", remedy))
    else:
        found.append(healthy("memory balance", f"{fullest.free_gib:.1f} GiB or more are free on every GPU"))
    return found


def pairs_cut() -> list[tuple[int, int]]:
    """Pairs of GPUs of which one cannot reach the other's memory."""
    count = torch.cuda.device_count()
    pairs = [(one, other) for one in range(count) for other in range(one + 1, count)]
    return [
        pair
        for pair in pairs
        if not (torch.cuda.can_device_access_peer(*pair) and torch.cuda.can_device_access_peer(*pair[::-1]))
    ]


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> tuple[Gpu, ...]:
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            Gpu(
                index=index,
                name=properties.name,
                capability=f"{properties.major}.{properties.minor}",
                free_gib=free / GIB,
                total_gib=total / GIB,
            )
        )
    return tuple(found)


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(answer.stdout.split()), None)


def _flags(cpuinfo: str) -> tuple[str, ...]:
    line = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, flags=re.MULTILINE)
    present = line[1].split() if line else []
    return tuple(flag for flag in SEEN_FLAGS if flag in present)


def _cpu_name(cpuinfo: str) -> str:
    line = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, flags=re.MULTILINE)
    return line[1] if line else platform.processor() or platform.machine()

"""The machine is described as it is, and what stands in the way is named."""

import torch

from slipstream.doctor.environment import Gpu, cpu_findings, gpu_findings, look_around
from slipstream.doctor.finding import Grade, worst
from slipstream.doctor.links import LinkKind


def gpu(index: int, *, name: str = "NVIDIA H200", free: float = 130.0) -> Gpu:
    return Gpu(index=index, name=name, capability="9.0", free_gib=free, total_gib=140.0)


def ill(findings) -> dict[str, str]:
    return {each.name: each.remedy for each in findings if each.grade is not Grade.HEALTHY}


def test_a_cpu_is_described_and_healthy():
    found = look_around(torch.device("cpu"))
    assert found.device == "cpu"
    assert found.cores >= 1
    assert found.memory_gib > 0
    assert found.gpus == ()
    assert "no GPU is used" in found.findings[0].says


def test_a_cpu_says_what_it_can_multiply():
    (first, _) = cpu_findings(8, 8, ("avx2", "amx_bf16"), onednn=True)
    assert "bf16 products by amx_bf16" in first.says
    (first, _) = cpu_findings(8, 8, ("avx2",), onednn=True)
    assert "no bf16 products" in first.says


def test_more_threads_than_cores_and_a_torch_without_onednn_are_warnings():
    found = cpu_findings(2, 16, (), onednn=False)
    assert ill(found)["threads"] == "set OMP_NUM_THREADS=2"
    assert "oneDNN" in ill(found)


def test_like_gpus_that_reach_each_other_are_healthy():
    found = gpu_findings((gpu(0), gpu(1)), LinkKind.NVLINK, [])
    assert worst(each.grade for each in found) is Grade.HEALTHY
    assert {each.name for each in found} == {"device", "topology", "P2P", "memory balance"}


def test_a_cut_pair_a_full_gpu_and_an_odd_one_are_warnings():
    found = gpu_findings((gpu(0), gpu(1, free=20.0), gpu(2, name="NVIDIA L40S")), LinkKind.PCIE, [(0, 1)])
    assert set(ill(found)) == {"GPUs", "P2P", "memory balance"}
    assert any("0-1" in each.says for each in found)
    assert any("GPU 1 has 20.0 GiB free" in each.says for each in found)


def test_one_gpu_has_no_links_to_speak_of():
    assert [each.name for each in gpu_findings((gpu(0),), None, [])] == ["device"]

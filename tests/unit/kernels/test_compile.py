"""The interpreter runs kernels but for what is only for a GPU: that they compile for one is seen here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def run(module: str, cache: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run([sys.executable, "-m", module], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    assert "compiled for compute capability 9.0" in run("tests.compile_kernels", tmp_path)


@pytest.mark.timeout(300)
def test_squares_are_summed_in_one_layout_whatever_the_number_of_rows(tmp_path: Path) -> None:
    assert "compute capability 8.0" in run("tests.reduction_layouts", tmp_path)

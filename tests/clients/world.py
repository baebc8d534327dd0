"""Where the clients are installed (`make test-clients` does it), and how they are run."""

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = "SLIPSTREAM_CLIENTS"


def client(name: str) -> str:
    """A client's program, in a virtual environment of its own; the test is skipped without it."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        pytest.skip(f"{FOLDER} names no folder of installed clients; run make test-clients")
    path = Path(folder) / name.replace("_", "-") / "bin" / name
    assert path.is_file(), f"{path} is missing; run make test-clients again"
    return str(path)


def run(*command: str, folder: Path, offline: bool = True) -> str:
    """Run a client without the hub; what it printed."""
    variables = {**os.environ, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr

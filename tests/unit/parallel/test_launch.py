"""What a spawned rank runs."""

import os
import subprocess
from pathlib import Path

from slipstream.parallel.launch import follower_command


def test_a_spawned_rank_does_not_import_what_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')")
    environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    done = subprocess.run(
        follower_command(), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert "is started by slipstream itself" in done.stderr

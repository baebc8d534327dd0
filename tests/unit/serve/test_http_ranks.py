"""The HTTP door before several ranks: the engine's process leads them, and all of them end together."""

import os
import signal
from pathlib import Path

import pytest

from tests.patience import patience
from tests.served import Server, model_arguments, serving
from tests.unit.cli.world import World

TEXT = {"prompt": "the quick brown fox", "max_tokens": 12, "temperature": 0}
FORM = {**TEXT, "guided_regex": "[a-f]{3}-[0-9]{2}"}
SCORED = {**TEXT, "echo": True, "logprobs": 3}


def follower_of(pid: int) -> int:
    """The only child of an engine's process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.slow
def test_two_ranks_answer_as_one_and_a_lost_one_ends_the_server(http_world: World, server: Server) -> None:
    expected = server.post("/v1/completions", TEXT).json()["choices"]
    expected_form = server.post("/v1/completions", FORM).json()["choices"]
    expected_scores = server.post("/v1/completions", SCORED).json()["choices"][0]["logprobs"]["token_logprobs"]
    arguments = model_arguments(http_world.model, http_world.draft, "--steps", "3", "--tp", "2", "--draft-tp", "1")
    with serving(*arguments) as found:
        assert found.post("/v1/completions", TEXT).json()["choices"] == expected
        assert found.post("/v1/completions", FORM).json()["choices"] == expected_form
        scores = found.post("/v1/completions", SCORED).json()["choices"][0]["logprobs"]["token_logprobs"]
        assert scores[1:] == pytest.approx(expected_scores[1:], abs=1e-4)
        assert len(found.get("/server_info").json()["ranks"]) == 2
        os.kill(follower_of(found.engine_pid), signal.SIGKILL)
        assert found.process.wait(patience(60)) == 1
        found.wait_until(lambda: "error: " in found.lines[-1])
        assert any(line.startswith("error: ") and "rank 1" in line for line in found.lines)

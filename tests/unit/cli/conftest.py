"""One tiny world for all tests of the command line."""

import pytest

from tests.unit.cli.world import Cli, Outcome, World, make_world, run


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run the command line: cli("generate", "--prompt", ...)."""
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*arguments: str) -> Outcome:
        return run(capsys, *arguments)

    return call

"""One tiny world for all tests of the benchmarks."""

import pytest

from tests.unit.cli.world import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))

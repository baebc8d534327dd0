"""One tiny world, and one server over it, for all tests of the HTTP door."""

from collections.abc import Iterator

import pytest

from tests.served import Server, model_arguments, serving
from tests.unit.cli.world import World, make_world


@pytest.fixture(scope="session")
def http_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("http"))


@pytest.fixture(scope="session")
def server(http_world: World) -> Iterator[Server]:
    arguments = model_arguments(http_world.model, http_world.draft, "--steps", "3", "--served-model-name", "tiny")
    with serving(*arguments, "--max-requests", "64", "--max-body-mib", "0.5", "--metrics-compat", "vllm") as found:
        yield found

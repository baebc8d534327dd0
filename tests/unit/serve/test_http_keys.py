"""A key is wanted everywhere but at /health and /ready."""

from collections.abc import Iterator

import httpx
import pytest

from slipstream.cli.door import api_keys
from tests.served import Server, model_arguments, serving
from tests.unit.cli.world import World


@pytest.fixture(scope="module")
def locked(http_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("second\n\nthird\n")
    arguments = model_arguments(http_world.model, None, "--served-model-name", "tiny", "--api-key", "first")
    with serving(
        *arguments, "--api-key-file", str(path), key="first", environment={"SLIPSTREAM_API_KEY": "fourth"}
    ) as found:
        yield found


def test_every_path_but_two_wants_a_key(locked: Server) -> None:
    paths = httpx.get(f"{locked.url}/openapi.json", headers={"authorization": "Bearer first"}).json()["paths"]
    for path in [*paths, "/", "/docs", "/openapi.json", "/nowhere", "/HEALTH", "//health", "/health/"]:
        for method in ("GET", "POST", "OPTIONS"):
            status = httpx.request(method, locked.url + path, json={}).status_code
            assert (status == 401) == (path not in ("/health", "/ready")), (method, path, status)


@pytest.mark.parametrize("key", ["first", "second", "third", "fourth"])
def test_keys_come_from_options_files_and_the_environment(locked: Server, key: str) -> None:
    for scheme in ("Bearer", "bearer"):
        response = httpx.get(f"{locked.url}/v1/models", headers={"authorization": f"{scheme} {key}"})
        assert response.status_code == 200


@pytest.mark.parametrize("value", ["", "first", "Basic first", "Bearer", "Bearer firs", "Bearer first2", "Bearer \xff"])
def test_what_is_no_key_is_refused(locked: Server, value: str) -> None:
    response = httpx.get(f"{locked.url}/v1/models", headers={"authorization": value.encode("latin-1")})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "first" not in response.text


def test_no_key_is_ever_logged(locked: Server) -> None:
    assert not [line for line in locked.lines if "first" in line or "fourth" in line]


def test_a_file_without_keys_is_refused(tmp_path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("\n \n")
    with pytest.raises(ValueError, match="holds no key"):
        api_keys((), empty, None)
    with pytest.raises(ValueError, match="cannot be read"):
        api_keys((), tmp_path / "none", None)
    assert api_keys((), None, None) == ()

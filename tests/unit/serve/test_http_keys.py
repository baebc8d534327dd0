"""A key is wanted everywhere but at /health and /ready."""

import base64
from collections.abc import Iterator

import httpx
import pytest

from slipstream.cli.door import api_keys
from slipstream.serve.http.front import FILES
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
    for path in [*paths, *FILES, "/docs", "/openapi.json", "/nowhere", "/HEALTH", "//health", "/health/"]:
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


def signed_in(user: str, password: str) -> dict[str, str]:
    """What a browser sends after its dialog."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize("path", FILES)
def test_the_pages_files_take_a_key_as_the_password_of_any_user(locked: Server, path: str) -> None:
    refused = httpx.get(locked.url + path)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert "password" in refused.json()["error"]["message"]
    for user, password, status in (("", "first", 200), ("x", "third", 200), ("first", "", 401), ("x", "firs", 401)):
        assert httpx.get(locked.url + path, headers=signed_in(user, password)).status_code == status


def test_a_password_is_taken_elsewhere_only_from_the_page_itself(locked: Server) -> None:
    url, page = f"{locked.url}/v1/models", {"x-slipstream-page": "1"}
    other_site = httpx.get(url, headers=signed_in("x", "first"))  # a browser adds the password for any site that asks
    assert other_site.status_code == 401
    assert "www-authenticate" not in other_site.headers
    assert httpx.get(url, headers=signed_in("x", "first") | page).status_code == 200
    assert httpx.get(url, headers=signed_in("x", "none") | page).status_code == 401
    assert httpx.get(url, headers=page).status_code == 401
    asked = {"origin": "http://elsewhere", "access-control-request-headers": "x-slipstream-page"}
    preflight = httpx.options(url, headers={**asked, "access-control-request-method": "GET"})
    assert not [name for name in preflight.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("value", ["Basic", "Basic !", "Basic Zmlyc3Q=", "Basic Zmlyc3Q", "Basic \xff", "Basic Og=="])
def test_what_is_no_password_is_refused(locked: Server, value: str) -> None:
    assert httpx.get(f"{locked.url}/", headers={"authorization": value.encode("latin-1")}).status_code == 401


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

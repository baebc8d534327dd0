"""The page's files as they come over the wire: what they may load, where they are, and that nothing else is."""

import re
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

import slipstream.serve.http
from slipstream.serve.http.front import FILES
from tests.served import Server

FOLDER = Path(slipstream.serve.http.__path__[0]) / "page"
KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8"}
KINDS |= {"js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


def policy(server: Server) -> dict[str, str]:
    rules = server.get("/").headers["content-security-policy"].split(";")
    return {name: value for name, _, value in (rule.strip().partition(" ") for rule in rules)}


@pytest.mark.parametrize("path", FILES)
def test_every_file_is_served_with_its_kind_and_under_a_strict_policy(server: Server, path: str) -> None:
    response = server.get(path)
    assert response.status_code == 200
    name, kind = FILES[path]
    assert response.content == (FOLDER / name).read_bytes()
    assert response.headers["content-type"] == kind == KINDS[name.rsplit(".")[-1]]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == server.get("/").headers["content-security-policy"]


def test_the_policy_lets_a_browser_load_from_this_server_only(server: Server) -> None:
    found = policy(server)
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert found.pop(name) == "'self'"
    for name in ("default-src", "base-uri", "form-action", "frame-ancestors"):
        assert found.pop(name) == "'none'"
    assert found == {}


def test_no_file_is_left_out_and_what_they_ask_for_is_there() -> None:
    assert sorted(name for name, _ in FILES.values()) == sorted(path.name for path in FOLDER.iterdir())
    index = (FOLDER / "index.html").read_text()
    asked = set(re.findall(r'(?:src|href)="([^"]+)"', index))
    for script in FOLDER.glob("*.js"):
        asked |= {f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', script.read_text())}
    assert {f"/{name}" for name in asked} == set(FILES) - {"/"}


def test_no_file_names_another_place_or_makes_markup_of_text() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="ascii").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w+\.\w", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\bstyle=|\son\w+=", text
        ), path


@pytest.mark.parametrize(
    "path",
    [
        "/page", "/page/", "/page/index.html", "/index.html", "/page/app.py", "/page//page.js", "//",
        "/page/../app.py", "/page/..%2fapp.py", "/page/%2e%2e/%2e%2e/app.py", "/page/..%5capp.py", "/page/page.js%00",
        "/page//etc/passwd", "/page/PAGE.JS",
    ],
)  # fmt: skip
def test_no_other_name_leads_anywhere(server: Server, path: str) -> None:
    with closing(HTTPConnection(server.url.removeprefix("http://"))) as connection:
        connection.putrequest("GET", path)  # as it stands: httpx would tidy it up
        connection.endheaders()
        assert connection.getresponse().status == 404

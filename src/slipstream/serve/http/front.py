"""The page at /: files of serve/http/page, read once, each under a fixed name, so that no path leads elsewhere."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI
from starlette.responses import Response

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/server.js": ("server.js", "text/javascript; charset=utf-8"),
    "/page/numbers.js": ("numbers.js", "text/javascript; charset=utf-8"),
    "/page/strip.js": ("strip.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
# A browser loads nothing from elsewhere, runs nothing that an answer might say, and shows the page in nobody's frame.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Serve every file at its path."""
    folder = files("slipstream.serve.http") / "page"
    for path, (name, kind) in FILES.items():
        app.get(path, include_in_schema=False)(_file((folder / name).read_bytes(), kind))


def _file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return file

"""What stands before every endpoint: the key and the size of the body. Pure ASGI, so that streams are not touched."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.serve.http import front
from slipstream.serve.http.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready"})
PAGE_HEADER = b"x-slipstream-page"
SIGN_IN = 'Basic realm="slipstream: any user name, an API key as the password", charset="UTF-8"'


class ApiKeys:
    """Lets in who brings a key, and everybody to the open paths.

    Digests are compared in constant time, all of them for every request.

    A browser may bring the key as the password of its sign-in dialog: for the page's own files, and for what the page
    itself asks for, which bears a header that no other site's page can send.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(scope):
            await self._app(scope, receive, send)
            return
        sentence = "this server wants an API key: Authorization: Bearer KEY"
        if scope["path"] in front.FILES:
            sentence += "; a browser asks for it as a password, with any user name"
        response = ApiError(401, sentence, code="invalid_api_key").response
        if scope["path"] in front.FILES:
            response.headers["www-authenticate"] = SIGN_IN
        await response(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        scheme, _, given = _header(scope, b"authorization").partition(b" ")
        by_browser = scheme.lower() == b"basic" and _of_page(scope)
        digest = _digest(_password(given) if by_browser else given.strip())
        matches = [hmac.compare_digest(digest, each) for each in self._digests]
        return (scheme.lower() == b"bearer" or by_browser) and any(matches)


class BodyLimit:
    """Refuses bodies beyond a size, before they are read if they say how long they are."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._error.response(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:  # as an exception that FastAPI lets through while it reads the body
                raise HTTPException(413, self._error.message)
            return message

        await self._app(scope, counted, send)

    @property
    def _error(self) -> ApiError:
        message = f"the body is larger than {self._max_bytes} bytes; shorten it, or raise --max-body-mib"
        return ApiError(413, message, code="body_too_large")


def _of_page(scope: Scope) -> bool:
    """Whether the page is asked for, or asks."""
    return scope["path"] in front.FILES or bool(_header(scope, PAGE_HEADER))


def _password(given: bytes) -> bytes:
    """Of a browser's sign-in dialog; its user may have any name."""
    try:
        return base64.b64decode(given.strip(), validate=True).partition(b":")[2].strip()
    except binascii.Error:
        return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _header(scope: Scope, name: bytes) -> bytes:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next((value for found, value in headers if found.lower() == name), b"")


def wrap(app: Any, *, keys: Sequence[str], max_body_bytes: int) -> Any:
    """Put both before an application."""
    app = BodyLimit(app, max_bytes=max_body_bytes)
    return ApiKeys(app, keys=keys) if keys else app

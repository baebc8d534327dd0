"""Errors as OpenAI's clients expect them: an object with message, type, param and code, the code a string."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

RETRY_S = 1
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


class ApiError(Exception):
    """A refusal that the client is told."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        return error_body(self.status, self.message, code=self.code, param=self.param)

    @property
    def headers(self) -> dict[str, str]:
        """When to try again, where that may help."""
        return {"retry-after": str(RETRY_S)} if self.status in (429, 503) else {}

    @property
    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """What was asked for cannot be."""
    return ApiError(400, message, code=code, param=param)


def unavailable(message: str, *, code: str) -> ApiError:
    """Nothing can be answered now."""
    return ApiError(503, message, code=code)


def error_body(status: int, message: str, *, code: str, param: str | None = None) -> dict[str, Any]:
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def on_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError), "registered for nothing else"
    return error.response


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException), "registered for nothing else"
    code = CODES.get(error.status_code, "error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = error_body(error.status_code, message, code=code)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def on_invalid(request: Request, error: Exception) -> JSONResponse:
    """A body that is no JSON, or not of the right shape; FastAPI's 422 is OpenAI's 400."""
    assert isinstance(error, RequestValidationError), "registered for nothing else"
    first = _deepest(error.errors())
    place = [str(part) for part in first["loc"][1:]]  # after body, query or path
    param = place[0] if place and first["type"] != "json_invalid" else None
    message = first["msg"] if param is None else f"{param}: {first['msg']}"
    return bad_request(_writable(message), param=None if param is None else _writable(param)).response


async def on_bug(request: Request, error: Exception) -> JSONResponse:
    """Whatever else went wrong here: the log has it, the client does not."""
    return JSONResponse(error_body(500, "internal error", code="internal_error"), status_code=500)


def _deepest(errors: Any) -> Mapping[str, Any]:
    """Of several ways in which a union fails, the one that got furthest says most."""
    return max(errors, key=lambda each: len(each["loc"]))


def _writable(text: str) -> str:
    """Half a surrogate pair can come in, but not go out."""
    return text.encode("utf-8", errors="replace").decode("utf-8")

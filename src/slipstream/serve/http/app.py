"""The application: every path, and what stands before it."""

from typing import Annotated, Any

from fastapi import Body, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

import slipstream
from slipstream.serve.http import errors
from slipstream.serve.http.client import Phase
from slipstream.serve.http.conversation import plain_messages
from slipstream.serve.http.errors import ApiError, bad_request
from slipstream.serve.http.front import add_page
from slipstream.serve.http.jobs import chat_job, check_model, completion_job
from slipstream.serve.http.metrics import CONTENT_TYPE
from slipstream.serve.http.middleware import wrap
from slipstream.serve.http.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from slipstream.serve.http.reply import House, Reply
from slipstream.serve.http.shapes import ChatShape, CompletionShape
from slipstream.serve.messages import StartProfile, StopProfile

ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"description": "An error object.", "content": {"application/json": {"schema": {"type": "object"}}}}
    for code in (400, 401, 404, 413, 429, 503, 504)
}


def make_app(house: House) -> Any:
    """An ASGI application."""
    app = FastAPI(
        title="slipstream",
        version=slipstream.__version__,
        description="EAGLE-3 speculative decoding behind OpenAI's interface.",
        responses={code: ERRORS[code] for code in (400, 401, 413)},
        redoc_url=None,
    )
    app.add_exception_handler(ApiError, errors.on_api_error)
    app.add_exception_handler(HTTPException, errors.on_http_error)
    app.add_exception_handler(RequestValidationError, errors.on_invalid)
    app.add_exception_handler(Exception, errors.on_bug)
    _answers(app, house)
    _models(app, house)
    _texts(app, house)
    _states(app, house)
    _cycles(app, house)
    _profiles(app, house)
    add_page(app)
    return wrap(app, keys=house.settings.api_keys, max_body_bytes=house.settings.max_body_bytes)


def _answers(app: FastAPI, house: House) -> None:
    @app.post("/v1/completions", responses=ERRORS)
    async def completions(body: CompletionBody) -> Response:
        return Reply(house, CompletionShape(house.texts), lambda: completion_job(house, body))

    @app.post("/v1/chat/completions", responses=ERRORS)
    async def chat_completions(body: ChatBody) -> Response:
        return Reply(house, ChatShape(house.texts), lambda: chat_job(house, body))


def _models(app: FastAPI, house: House) -> None:
    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": house.started,
            "owned_by": "slipstream",
            "root": house.settings.served_names[0],
            "max_model_len": house.client.info.get("max_len"),
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in house.settings.served_names]}

    @app.get("/v1/models/{name:path}", responses={404: ERRORS[404]})
    async def model(name: str) -> dict[str, Any]:
        return card(check_model(house, name))


def _texts(app: FastAPI, house: House) -> None:
    texts = house.texts

    @app.post("/tokenize", responses={404: ERRORS[404]})
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        check_model(house, body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("give either prompt or messages", param="prompt")
        text, special = body.prompt or "", body.add_special_tokens is not False
        if body.messages is not None:
            kwargs = body.chat_template_kwargs or {}
            text = await texts.render(plain_messages(body.messages), tools=body.tools, **kwargs)
            special = bool(body.add_special_tokens)
        ids = await texts.encode(text, add_special_tokens=special)
        found = {"count": len(ids), "max_model_len": house.client.info.get("max_len"), "tokens": ids}
        return {**found, "token_strs": [texts.token_text(each) for each in ids]} if body.return_token_strs else found

    @app.post("/detokenize", responses={404: ERRORS[404]})
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        check_model(house, body.model)
        return {"prompt": await texts.decode(texts.checked(body.tokens, param="tokens"))}


def _states(app: FastAPI, house: House) -> None:
    client = house.client

    @app.get("/health", responses={503: ERRORS[503]})
    async def health() -> Response:
        """Whether the process lives; it does while the model is still being loaded."""
        if client.phase is Phase.FAILED:
            client.check_ready()
        return JSONResponse({"status": "ok"})

    @app.get("/ready", responses={503: ERRORS[503]})
    async def ready() -> Response:
        """Whether requests are answered, and how far the start is until they are."""
        phase = "draining" if house.limits.draining else client.phase.value
        found: dict[str, Any] = {"status": phase}
        if client.phase is Phase.LOADING:
            found |= {"stage": client.loading.stage, "loaded_bytes": client.loading.num_bytes}
        if client.failure is not None:
            found["reason"] = client.failure.sentence
        return JSONResponse(found, status_code=200 if phase == Phase.READY.value else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(house.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/server_info", responses={503: ERRORS[503]})
    async def server_info() -> dict[str, Any]:
        client.check_ready()
        report = client.report
        length = report.emitted / report.cycles if report is not None and report.cycles else None
        return {
            "version": slipstream.__version__,
            "models": list(house.settings.served_names),
            **client.info,
            "cost": {} if report is None else {"cycle_ratio": report.cycle_ratio, "stage_seconds": report.stage_s},
            "accept_length": length,
            "limits": {
                "max_requests": house.settings.max_requests,
                "max_body_bytes": house.settings.max_body_bytes,
                "request_timeout_s": house.settings.request_timeout_s,
            },
            "internal_states": [{"avg_spec_accept_length": length}],
        }


def _cycles(app: FastAPI, house: House) -> None:
    @app.get("/cycles")
    async def cycles(after: Annotated[int, Query(ge=0, description="Leave out those up to this one.")] = 0) -> Any:
        """The last cycles of the whole batch, oldest first, each with its seconds by stage."""
        return {
            "cycles": [
                {
                    "cycle": each.cycle,
                    "batch": each.batch,
                    "proposed_tokens": each.proposed,
                    "emitted_tokens": each.emitted,
                    "stage_seconds": each.stage_s,
                }
                for each in house.client.cycles
                if each.cycle > after
            ]
        }


def _profiles(app: FastAPI, house: House) -> None:
    @app.post("/start_profile", responses={503: ERRORS[503]})
    async def start_profile(body: Annotated[dict[str, Any] | None, Body()] = None) -> dict[str, Any]:
        """Record what the engine's process does, until /stop_profile."""
        for name in body or {}:
            raise bad_request(f"{name} is not supported; leave it out", param=name, code="unsupported_parameter")
        told = await house.client.profile(StartProfile())
        if told.sentence is not None:
            raise bad_request(told.sentence)
        return {"status": "recording"}

    @app.post("/stop_profile", responses={503: ERRORS[503]})
    async def stop_profile() -> dict[str, Any]:
        told = await house.client.profile(StopProfile())
        if told.sentence is not None:
            raise bad_request(told.sentence)
        return {"status": "written", "path": told.path}

"""The application: routes, and what happens when it starts and stops."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from braid import __version__
from braid.errors import BraidError, InputError, NotFoundError
from braid.server import operations, playground
from braid.server.errors import depth_of, error_body, headers_of, param_of, status_of
from braid.server.live import Hub
from braid.server.live import router as live_router
from braid.server.middleware import Door
from braid.server.openai.routes import router as openai_router
from braid.server.service import Service

if TYPE_CHECKING:
    from braid.engine.backend import ModelCard
    from braid.server.settings import ServerSettings
    from braid.sessions.session import Engine

__all__ = ["build_app"]


def build_app(engine: Engine, settings: ServerSettings, model: ModelCard | None = None) -> FastAPI:
    """Put an engine on the network.

    Args:
        engine: It is shut down with the application.
        settings: How.
        model: Of an engine that has none itself.
    """
    service = Service(engine, settings, model)
    hub = Hub(service)

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncGenerator[None]:
        try:
            async with hub:  # its sessions leave the engine first: their ends here are not to be stored
                service.is_ready = True
                service.log.info("started", model=service.model.name, host=settings.host, port=settings.port)
                try:
                    yield
                finally:
                    service.is_ready = False
        finally:
            dropped = await engine.aclose(timeout_s=settings.drain_s)
            service.log.info("stopped", dropped=len(dropped))

    app = FastAPI(
        title="Braid",
        version=__version__,
        summary="A language model that reads, thinks and answers at the same time.",
        lifespan=life,
        docs_url=None,  # its page takes its scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    app.state.hub = hub
    app.include_router(operations.router)
    app.include_router(openai_router)
    app.include_router(live_router)
    if settings.playground:
        app.include_router(playground.router)
    app.add_exception_handler(BraidError, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(Door, service=service)
    return app


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BraidError)
    return JSONResponse(error_body(error), status_of(error), headers_of(error))


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Of the forms that a field may have, the one that was meant is the one that went wrong deepest inside.
    first = max(error.errors(), key=lambda each: depth_of(param_of(each["loc"], error.body)))
    told = first.get("ctx", {}).get("error")
    if isinstance(told, BraidError):  # what a check of ours has raised is the most exact word there is
        return JSONResponse(error_body(told), status_of(told))
    param = param_of(first["loc"], error.body)
    what = "there is no such field here; leave it out" if first["type"] == "extra_forbidden" else first["msg"]
    return JSONResponse(error_body(InputError(f"{param}: {what}"), param), 400)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, BraidError):  # raised while the body was read
        return await _told(request, error.__cause__)
    if error.status_code == 404:
        told: BraidError = NotFoundError(f"there is nothing at {request.url.path}")
    elif error.status_code == 405:
        told = InputError(f"{request.url.path} takes no {request.method}")
    else:
        told = InputError(str(error.detail))
    return JSONResponse(error_body(told), error.status_code, error.headers)

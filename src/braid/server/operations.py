"""Routes for whoever runs the server: is it alive, does it take requests, how does it do."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from braid import __version__
from braid.server.service import service_of

__all__ = ["router"]

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health() -> dict[str, Any]:
    """The process is alive."""
    return {"status": "ok", "version": __version__}


@router.get("/ready", responses={503: {"description": "Not yet, or no longer."}})
async def ready(request: Request) -> Response:
    """Requests are taken."""
    is_ready = service_of(request).is_ready
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters and histograms of the server and its engine, for Prometheus."""
    service = service_of(request)
    text = generate_latest(service.registry)
    if service.engine.metrics is not None:
        text += generate_latest(service.engine.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)

"""`GET /v1/models`: the one model that is served, under its name."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from braid.server.openai.documented import ERRORS
from braid.server.openai.replies import ModelEntry, ModelList
from braid.server.service import Service, service_of

__all__ = ["router"]

router = APIRouter(tags=["openai"])


@router.get("/v1/models", response_model=ModelList, responses=ERRORS)
async def list_models(request: Request) -> dict[str, Any]:
    """The models that are served."""
    return {"object": "list", "data": [_entry(service_of(request))]}


@router.get("/v1/models/{model:path}", response_model=ModelEntry, responses=ERRORS)
async def retrieve_model(model: str, request: Request) -> dict[str, Any]:
    """One model, if it is served."""
    service = service_of(request)
    service.require_model(model)
    return _entry(service)


def _entry(service: Service) -> dict[str, Any]:
    return {"id": service.model.name, "object": "model", "created": service.began, "owned_by": "braid"}

"""All routes of OpenAI's API."""

from __future__ import annotations

from fastapi import APIRouter

from braid.server.openai import chat, completions, models, realtime, responses

__all__ = ["router"]

router = APIRouter()
for part in (models, chat, completions, responses, realtime):
    router.include_router(part.router)

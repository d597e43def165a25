"""Loads the model, builds the application, and listens."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, cast

import typer
import uvicorn

from braid.engine.admission import EngineLimits
from braid.engine.scheduler import SchedulerPolicy
from braid.errors import InputError
from braid.model.loading import load, models_home
from braid.server.app import build_app
from braid.server.log import set_up
from braid.server.settings import ServerSettings, is_loopback
from braid.sessions.session import Engine

if TYPE_CHECKING:
    from fastapi import FastAPI

    from braid.model.model import Model

__all__ = ["Server", "build_engine", "listener_of", "run"]

FRAME_ROOM = 4
"""Frames that are too large by less than this factor are answered; larger ones end the connection."""


class Server(uvicorn.Server):
    """Tells connected clients that it stops before it cuts their connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        application = cast("FastAPI", self.config.app)
        await application.state.hub.say_goodbye()
        await super().shutdown(sockets)


def build_engine(settings: ServerSettings) -> Engine:
    """Load the model and make the engine that the settings ask for."""
    model = _load(settings.model, settings)
    drafter = None if settings.drafter is None else _load(settings.drafter, settings)
    limits = EngineLimits(
        max_sessions=settings.max_sessions,
        max_waiting=settings.max_waiting,
        admission_timeout_s=settings.admission_timeout_s,
        max_events=settings.max_unread,
        evict_idle_after_s=settings.evict_idle_after_s,
    )
    return Engine(
        model,
        kv_tokens=settings.kv_tokens,
        limits=limits,
        policy=SchedulerPolicy(draft_share=settings.draft_share),
        drafter=drafter,
        check_share=settings.check_share,
    )


def _load(name: str, settings: ServerSettings) -> Model:
    return load(
        name,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        cache_dir=models_home(),
    )


def run(settings: ServerSettings) -> None:
    """Serve until a signal says stop.

    Raises:
        InputError: It cannot listen there.
        ModelError: The model cannot be loaded.
    """
    set_up(settings.log_level)
    listening = _listen(settings)
    host, port = listening.getsockname()[:2]
    if not settings.keys and not is_loopback(settings.host):
        typer.secho(
            f"Anybody who can reach {settings.host} can use this server: set keys, or listen on 127.0.0.1.",
            err=True,
            fg="yellow",
        )
    app = build_app(build_engine(settings), settings)
    shown = f"[{host}]" if ":" in host else host
    typer.secho(f"Braid serves {settings.model} at http://{shown}:{port}", err=True, bold=True)
    Server(listener_of(app, settings)).run(sockets=[listening])


def listener_of(app: FastAPI, settings: ServerSettings, **others: Any) -> uvicorn.Config:
    """How uvicorn serves the application.

    Args:
        app: From `build_app`.
        settings: Of the server.
        others: Further settings of uvicorn's.
    """
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=FRAME_ROOM * settings.max_frame_bytes,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=max(1, int(settings.drain_s)),
        server_header=False,
        **others,
    )


def _listen(settings: ServerSettings) -> socket.socket:
    """Before the model is loaded, so that a port that is taken is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port, or 0 for any"
        ) from error
    listening.listen(1024)
    return listening

"""The routes of live sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import StreamingResponse
from starlette.websockets import WebSocket

from braid.client.protocol import protocol_schema
from braid.server.live.hub import Hub
from braid.server.live.socket import Connection
from braid.server.service import caller_of, service_of
from braid.streams.entries import LifeEvent, Row
from braid.streams.transcript import Transcript

__all__ = ["router"]

router = APIRouter(tags=["live"])
SUBPROTOCOL = "braid"
"""Browsers offer it beside their key; the server has to choose one that is no secret."""


class SessionSummary(BaseModel):
    """A session, as its owner's list has it."""

    name: str
    model: str
    opened: float
    active: float
    closed: float | None
    is_connected: bool
    last: int


class SessionList(BaseModel):
    """Somebody's sessions, the newest first."""

    object: str = "list"
    data: list[SessionSummary]


class Deleted(BaseModel):
    """A session that is forgotten."""

    name: str
    deleted: bool = True


_UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such session."}}


def hub_of(connection: HTTPConnection) -> Hub:
    """The sessions of the server that a request has come to."""
    return connection.app.state.hub


@router.websocket("/v1/live")
async def live(socket: WebSocket) -> None:
    """Hold a session, in the messages of `/v1/live/schema`."""
    offered = socket.scope.get("subprotocols", ())
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    connections = service_of(socket).connections.labels("/v1/live")
    connections.inc()
    try:
        await Connection(socket, hub_of(socket), caller_of(socket)).serve()
    finally:
        connections.dec()


@router.get("/v1/live/schema")
async def schema() -> dict[str, Any]:
    """JSON schemas of what client and server say on `/v1/live`."""
    return protocol_schema()


@router.get("/v1/sessions")
async def sessions(request: Request) -> SessionList:
    """The caller's sessions, the newest hundred."""
    hub = hub_of(request)
    found = await hub.sessions_of(caller_of(request))
    return SessionList(
        data=[
            SessionSummary(
                name=record.name,
                model=record.model,
                opened=record.opened,
                active=record.active,
                closed=record.closed,
                is_connected=hub.is_connected(record.name),
                last=record.last_id,
            )
            for record in found
        ]
    )


@router.get(
    "/v1/sessions/{name}/transcript",
    response_class=StreamingResponse,
    responses={**_UNKNOWN, 409: {"description": "It cannot be read here."}},
)
async def transcript(request: Request, name: str) -> StreamingResponse:
    """A session's transcript so far, as a transcript file; without the streams that its client may not see."""
    record, lanes = await hub_of(request).transcript(caller_of(request), name)
    return StreamingResponse(iter(list(shown_lines(record, lanes))), media_type="application/x-ndjson")


@router.delete("/v1/sessions/{name}", responses=_UNKNOWN)
async def forget(request: Request, name: str) -> Deleted:
    """Close a session, and forget it."""
    await hub_of(request).delete(caller_of(request), name)
    return Deleted(name=name)


def shown_lines(record: Transcript, lanes: Sequence[str]) -> Iterator[bytes]:
    """The lines of a transcript's file, without lanes that may not be seen."""
    hidden = {lane.label for lane in record.lanes.lanes}.difference(lanes)
    if not hidden:
        yield from record.lines_of_file()
        return
    shown = Transcript(
        record.topology, record.model, record.copies, record.meta, _without(record.entries, hidden)
    )
    yield from shown.lines_of_file()


def _without(entries: Iterable[Row | LifeEvent], hidden: set[str]) -> Iterator[Row | LifeEvent]:
    for entry in entries:
        if isinstance(entry, LifeEvent):
            if entry.lane is None or entry.lane.removeprefix("closer:") not in hidden:
                yield entry
            continue
        cells = {label: cell for label, cell in entry.cells.items() if label not in hidden}
        if cells:
            yield Row(entry.t, cells)

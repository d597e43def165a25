"""A live session without an engine, for the browser's tests: it speaks the wire protocol, and its rows come in real
time, at a pace and with words that a test knows.

    typed words ─▶ one a row     the thought starts after three of them     the output after the end of input
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from braid.client import protocol as wire
from braid.errors import InputError
from braid.streams.events import CellData, Reuse
from braid.streams.presets import topology as preset
from braid.streams.topology import Topology
from tests.server.serving import Serving, null_engine

__all__ = ["ANSWER", "NOTES", "Scripted", "serve_scripted"]

NOTES = " They ask about apples . Three at first , one given away ."
ANSWER = " Sally has two apples left . She had three and gave one to Tom , so two remain ."
WAIT_K = 3


def tokens_of(text: str) -> list[str]:
    """Words with the space before them, as tokenizers cut; the last space stays with nothing."""
    return re.findall(r"\s*\S+|\s+$", text)


@dataclass
class Scripted:
    """All sessions of a server, and what they say.

    Args:
        row_s: Seconds that a row takes.
        answer: What the output says to a question.
        refuses: Topologies that this model cannot run, by their `decoding`.
        reuse: What is told of a turn that was committed.
    """

    row_s: float = 0.02
    answer: Callable[[str], str] = lambda _question: ANSWER
    refuses: tuple[str, ...] = ("rows",)
    reuse: Reuse = field(
        default_factory=lambda: Reuse(read=4, reused=3, kept=2, accepted=5, computed=20, wasted=6)
    )
    sessions: dict[str, _Session] = field(default_factory=dict[str, "_Session"])
    commands: list[wire.Command] = field(default_factory=list[wire.Command])
    num_connections: int = 0
    loop: asyncio.AbstractEventLoop | None = None
    sockets: set[WebSocket] = field(default_factory=set[WebSocket])
    is_down: bool = False
    """Whether new connections are turned away, as by a server that restarts."""

    @property
    def newest(self) -> _Session:
        """The session that was opened last."""
        return list(self.sessions.values())[-1]

    def drop(self) -> None:
        """Cut every connection, without a word."""
        assert self.loop is not None
        for socket in list(self.sockets):
            asyncio.run_coroutine_threadsafe(socket.close(1012), self.loop).result(5)

    async def serve(self, socket: WebSocket) -> None:
        """One connection."""
        self.loop = asyncio.get_running_loop()
        if self.is_down:
            await socket.close()
            return
        await socket.accept()
        self.num_connections += 1
        self.sockets.add(socket)
        session: _Session | None = None
        try:
            while True:
                command = wire.parse_command(await socket.receive_text())
                self.commands.append(command)
                if isinstance(command, (wire.Open, wire.Resume)):
                    session = await self._begin(command, socket)
                elif isinstance(command, wire.Ping):
                    await socket.send_text(wire.Pong(re=command.id).model_dump_json())
                elif session is not None:
                    session.do(command)
        except InputError as error:
            await socket.send_text(wire.Problem(code=error.code, message=str(error)).model_dump_json())
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.sockets.discard(socket)
            if session is not None and session.socket is socket:
                session.socket = None

    async def _begin(self, command: wire.Open | wire.Resume, socket: WebSocket) -> _Session | None:
        if isinstance(command, wire.Resume):
            session = self.sessions.get(command.session)
            if session is None:
                gone = wire.Problem(
                    re=command.id, code="server.not_found", message="there is no such session here"
                )
                await socket.send_text(gone.model_dump_json())
                return None
            resumed = wire.Resumed(re=command.id, session=session.name, last=len(session.told))
            await socket.send_text(resumed.model_dump_json())
            for message in session.told[command.after :]:
                await socket.send_text(message)
            session.socket = socket
            return session
        topology = (
            preset(command.topology)
            if isinstance(command.topology, str)
            else Topology.from_dict(command.topology)
        )
        if topology.decoding in self.refuses:
            what = f"the model was not trained on streams, which {topology.name or 'this topology'} needs"
            problem = wire.Problem(
                re=command.id,
                code="model.unsupported",
                message=f"{what}; use `decoding: views`, such as think-aloud",
            )
            await socket.send_text(problem.model_dump_json())
            return None
        session = _Session(self, f"s_{len(self.sessions)}", topology, command)
        self.sessions[session.name] = session
        session.socket = socket
        session.begin()
        return session


class _Session:
    """One session: its queue of input, what it has told, and the task that makes its rows."""

    def __init__(self, server: Scripted, name: str, topology: Topology, opened: wire.Open) -> None:
        self.server = server
        self.name = name
        self.topology = topology
        self.opened = opened
        self.socket: WebSocket | None = None
        self.told: list[str] = []
        self.done: set[str] = set()
        self.began = time.perf_counter()
        self.t = 0
        self.turn = 0
        self.draft = ""
        self._begin_turn()

    def _begin_turn(self) -> None:
        self.question = ""
        self.held: dict[str, str] = {}
        self.queue: dict[str, deque[str]] = {name: deque() for name in self.topology.input_names}
        self.num_read = 0
        self.has_ended = False
        self.ended_at = 0.0
        self.last_read = self.t
        self.left: dict[str, deque[str]] = {}
        self.first: dict[str, tuple[int, float]] = {}
        self.rows_of_turn = 0
        self.tokens: dict[str, int] = {}
        self.is_interrupted = self.is_committed = False

    def begin(self) -> None:
        """Say that it is there, and start its clock."""
        lanes = [lane.label for lane in self.topology.lanes().lanes]
        self.tell(
            wire.Opened,
            re=self.opened.id,
            session=self.name,
            model="scripted",
            topology=self.topology.to_dict(),
            lanes=lanes,
            inputs=list(self.topology.input_names),
            outputs=list(self.topology.output_names),
        )
        for label in lanes:
            self.tell(wire.State, t=0, stream=label, state="created")
        self.task = asyncio.create_task(self._run())

    def tell(self, kind: type[Any], **fields: Any) -> None:
        """Put a message into the log, and on the line if there is one."""
        message = kind(id=len(self.told) + 1, at=time.perf_counter() - self.began, **fields).model_dump_json()
        self.told.append(message)
        if self.socket is not None:
            self._send(self.socket, message)

    def _send(self, socket: WebSocket, message: str) -> None:
        async def put() -> None:
            try:
                await socket.send_text(message)
            except (RuntimeError, WebSocketDisconnect):
                self.socket = None

        task = asyncio.ensure_future(put())
        self._sending = task  # tasks that nobody holds may be collected

    def do(self, command: Any) -> None:
        """Carry out a command, once."""
        if command.id in self.done:
            return
        if isinstance(command, wire.Write):
            self._read(command.stream, command.text)
        elif isinstance(command, wire.Snapshot):
            self.draft = command.streams.get("user", self.draft)
        elif isinstance(command, wire.Commit):
            self._read("user", self.draft)
            self.draft = ""
            self.is_committed = True
            self._end()
        elif isinstance(command, wire.End):
            self._end()
        elif isinstance(command, wire.Interrupt):
            self.is_interrupted = True
        elif isinstance(command, wire.Close):
            self.task.cancel()
            self.tell(wire.Closed, t=self.t, reason="closed")
        if command.id is not None:
            self.done.add(command.id)
            if not isinstance(command, wire.Close):
                self.tell(wire.Done, re=command.id)

    def _read(self, stream: str, text: str) -> None:
        self.question += text
        joined = self.held.get(stream, "") + text
        whole = joined.rstrip()
        self.held[stream] = joined[len(whole) :]  # it belongs to the token of the next word
        self.queue[stream].extend(tokens_of(whole))

    def _end(self) -> None:
        self.has_ended = True
        self.ended_at = time.perf_counter()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.server.row_s)
            self._row()

    def _row(self) -> None:
        cells: dict[str, CellData] = {}
        for stream, queue in self.queue.items():
            if queue:
                cells[stream] = _cell(queue.popleft(), forced=True)
                self.num_read += 1
                self.last_read = self.t
        has_read_all = self.has_ended and not any(self.queue.values())
        for stream in self.topology.output_names:
            is_inner = self.topology.streams[stream].visibility == "internal"
            if self.num_read >= WAIT_K if is_inner else has_read_all:
                self._speak(stream, is_inner, cells)
        if cells:
            for stream in cells:
                self.tokens[stream] = self.tokens.get(stream, 0) + 1
            if self.opened.rows:
                self.tell(wire.RowMade, t=self.t, cells=cells)
            self._tell_deltas(cells)
            self.t += 1
            self.rows_of_turn += 1
        outers = [
            name for name in self.topology.output_names if name in self.left and not self._is_inner(name)
        ]
        if outers and not any(self.left[name] for name in outers):
            self._finish()

    def _is_inner(self, stream: str) -> bool:
        return self.topology.streams[stream].visibility == "internal"

    def _speak(self, stream: str, is_inner: bool, cells: dict[str, CellData]) -> None:
        if stream not in self.left:
            words = NOTES if is_inner else self.server.answer(self.question)
            self.left[stream] = deque(tokens_of(words))
            self.tell(wire.State, t=self.t, stream=stream, state="active")
        if self.is_interrupted:
            if self.left[stream]:
                cells[stream] = CellData(token=2, text="", forced=True)
            self.left[stream].clear()
            return
        if self.left[stream]:
            cells[stream] = _cell(self.left[stream].popleft())
            self.first.setdefault(stream, (self.t, time.perf_counter()))
            if not self.left[stream]:
                self.tell(wire.State, t=self.t, stream=stream, state="asleep", reason="end")

    def _tell_deltas(self, cells: dict[str, CellData]) -> None:
        for stream, cell in cells.items():
            if stream in self.topology.output_names and cell.text:
                self.tell(wire.Delta, t=self.t, stream=stream, text=cell.text, tokens=[cell.token])

    def _finish(self) -> None:
        for stream in self.topology.output_names:
            self.tell(
                wire.State,
                t=self.t,
                stream=stream,
                state="asleep",
                reason="interrupt" if self.is_interrupted else "end",
            )
        outer = [at for name, at in self.first.items() if not self._is_inner(name)]
        anything = [at for _, at in self.first.values()]
        self.tell(
            wire.Turn,
            t=self.t,
            turn=self.turn,
            rows=self.rows_of_turn,
            tokens=self.tokens,
            tnft=max(0, outer[0][0] - self.last_read) if outer else None,
            ttft_s=max(0.0, min(anything) - self.ended_at) if anything else None,
            ttfat_s=outer[0][1] - self.ended_at if outer else None,
            reuse=self.server.reuse if self.is_committed else None,
        )
        self.turn += 1
        self._begin_turn()


def _cell(text: str, forced: bool = False) -> CellData:
    return CellData(token=100 + sum(map(ord, text)) % 900, text=text, forced=forced)


def serve_scripted(scripted: Scripted, **settings: Any) -> Serving:
    """A server with the real application, but for the live route."""
    from tests.server.serving import test_settings

    serving = Serving(null_engine(), test_settings(**settings))
    serving.app.router.routes.insert(0, WebSocketRoute("/v1/live", scripted.serve))
    return serving

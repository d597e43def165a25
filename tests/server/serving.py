"""A real server for tests: uvicorn in a thread, on a free port, over whatever engine a test has made.

with Serving(null_engine(script={"output": ["Hello."]}), model=null_model()) as server:
    httpx.get(f"{server.base_url}/health")
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from braid.engine.admission import EngineLimits
from braid.engine.backend import ModelCard
from braid.engine.loop import EngineLoop
from braid.engine.metrics import EngineMetrics
from braid.model.codec import TokenizerCodec
from braid.server.app import build_app
from braid.server.run import Server, listener_of
from braid.server.service import Service
from braid.server.settings import ServerSettings
from braid.sessions.session import Engine
from braid.testing import NullBackend, NullModel
from tests.fakes import byte_tokenizer

__all__ = ["Serving", "null_engine", "null_model", "test_settings"]

START_S = 30.0


def null_model(template: str | None = None, **settings: Any) -> NullModel:
    """A model of which there is only a tokenizer, one token a byte; without a template of its own, ChatML."""
    tokenizer = byte_tokenizer() if template is None else byte_tokenizer(template)
    return NullModel(TokenizerCodec(tokenizer), **settings)


def null_engine(
    *,
    script: Mapping[str, Sequence[str]] | None = None,
    model: NullModel | None = None,
    limits: EngineLimits | None = None,
    metrics: EngineMetrics | None = None,
    **backend: Any,
) -> Engine:
    """An engine without a network, which says what a script tells it, turn by turn.

    Args:
        script: By stream, what it says in each turn.
        model: Its tokenizer.
        limits: How much it takes on.
        metrics: Where its figures go.
        backend: Further arguments of `NullBackend`.
    """
    null = NullBackend(model or null_model(), script=script, **backend)
    return Engine.over(EngineLoop(null, limits=limits, metrics=metrics))


def test_settings(**settings: Any) -> ServerSettings:
    """Settings that keep nothing on disk."""
    return ServerSettings(**{"model": "null", "database": "memory", "drain_s": 1.0, **settings})


test_settings.__test__ = False  # pyright: ignore[reportFunctionMemberAccess] (pytest takes it for a test)


class Serving:
    """Serves an engine for as long as the context lasts.

    Args:
        engine: Shut down at the end.
        settings: Of the server; those of `test_settings` by default. The port is always a free one.
        model: Of an engine that has none itself, `null_model()` by default.
        ping_s: How often peers are asked whether they are there, and how long they may take to say so.
        send_buffer: Bytes that the system may hold for a client that does not read; None leaves it to the system.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings | None = None,
        model: ModelCard | None = None,
        ping_s: float = 20.0,
        send_buffer: int | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings or test_settings()
        if model is None and not hasattr(engine, "model"):
            model = null_model()
        self.app = build_app(engine, self.settings, model)
        self._socket = socket.socket()
        if send_buffer is not None:  # accepted connections take it over
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        config = listener_of(self.app, self.settings, ws_ping_interval=ping_s, ws_ping_timeout=ping_s)
        self._server = Server(config)
        self._thread = threading.Thread(target=self._run, name="serving", daemon=True)

    @property
    def base_url(self) -> str:
        """Without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self) -> str:
        """The same for WebSockets."""
        return f"ws://127.0.0.1:{self.port}"

    @property
    def service(self) -> Service:
        """The server's inside."""
        return self.app.state.service

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._socket.listen(1024)
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            assert self._thread.is_alive(), "the server has failed to start"
            assert time.monotonic() < deadline, "the server has not started"
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(self.settings.drain_s + START_S)
        assert not self._thread.is_alive(), "the server has not stopped"
        self._socket.close()

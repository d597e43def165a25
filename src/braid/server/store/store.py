"""Live sessions in a database: what they were opened with, their ledgers, and what their clients were told.

    await store.append(Append(name, lines, messages, …))    returns once it would outlive the process
    await store.lines(name)                              what an engine goes on from
    await store.messages(name, after)                    what a connection goes on from

Lines and messages of one call are stored together or not at all. SQLite runs in WAL mode without a sync to disk at each
commit: what was committed outlives `kill -9`, and a loss of power may take the last moments, but never half of one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio.to_thread
from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    RowMapping,
    bindparam,
    create_engine,
    delete,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from braid import __version__
from braid.errors import InputError, ServerError
from braid.server.store import tables
from braid.server.store.writer import Rows, Writer

__all__ = ["FORMAT", "Append", "SessionRecord", "Store", "StoredMessage"]

FORMAT = 1
"""Of what is stored of a session, ledger lines included."""

MEMORY = "memory"
WAIT_MS = 5000
"""How long SQLite waits for another process that writes."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as it is stored.

    Args:
        name: What clients call it.
        caller: Name of whose key opened it.
        model: Name of the model.
        topology: As plain data.
        settings: What the engine is started with, and what the hub keeps beside; plain data.
        opened, active, closed: Seconds since 1970; of the opening, the last change, the end.
        last_id: Of its newest message.
        num_lines: Of its ledger.
        state: What changes as it goes on; plain data.
        braid, format: Who wrote it.
    """

    name: str
    caller: str
    model: str
    topology: Mapping[str, Any]
    settings: Mapping[str, Any]
    opened: float
    active: float
    closed: float | None = None
    last_id: int = 0
    num_lines: int = 0
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    braid: str = __version__
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message to a session's client.

    Args:
        id: Its number.
        text: JSON, as it is sent.
        re: The command that it answers.
    """

    id: int
    text: str
    re: str | None = None


_INSERT_LINES = insert(tables.lines)
_INSERT_MESSAGES = insert(tables.messages)
_UPDATE = (
    update(tables.sessions)
    .where(tables.sessions.c.name == bindparam("of"))
    .values(
        {name: bindparam(f"new_{name}") for name in ("active", "closed", "last_id", "num_lines", "state")}
    )
)


@dataclass(frozen=True, slots=True)
class Append:
    """What has happened to a session.

    Args:
        name: Whose.
        lines: Of its ledger, the next ones.
        messages: To its client, the next ones.
        state: What is so now.
        num_lines, last_id: How many there are with these.
        closed: When it has ended.
    """

    name: str
    lines: Sequence[Any] = ()
    messages: Sequence[StoredMessage] = ()
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    num_lines: int = 0
    last_id: int = 0
    closed: float | None = None


class Store:
    """The database of one server. Use `open`.

    Args:
        engine: Of the database.
        is_shared: Whether several threads may use it at once.
    """

    def __init__(self, engine: Engine, *, is_shared: bool) -> None:
        self._engine = engine
        self._is_shared = is_shared
        self.writer = Writer(engine)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open a database, and make its tables where there are none.

        Args:
            url: An SQLAlchemy URL, or `memory`.

        Raises:
            InputError: It cannot be opened or written, is damaged, or a newer Braid's.
        """
        engine = await anyio.to_thread.run_sync(_opened, url)
        return cls(engine, is_shared=not isinstance(engine.pool, StaticPool))

    async def close(self) -> None:
        """Finish what is to be written, and let the database go; harmless when repeated."""
        await anyio.to_thread.run_sync(self.writer.close)
        self._engine.dispose()

    # ---- writing

    async def create(self, record: SessionRecord, messages: Sequence[StoredMessage] = ()) -> None:
        """Store a new session, with its first messages."""
        values = {
            "name": record.name,
            "caller": record.caller,
            "model": record.model,
            "braid": record.braid,
            "format": record.format,
            "topology": _json(record.topology),
            "settings": _json(record.settings),
            "opened": record.opened,
            "active": record.active,
            "closed": record.closed,
            "last_id": messages[-1].id if messages else record.last_id,
            "num_lines": record.num_lines,
            "state": _json(record.state),
        }
        told = _message_rows(record.name, messages)

        def job(connection: Connection) -> None:
            connection.execute(insert(tables.sessions), [values])
            if told:
                connection.execute(_INSERT_MESSAGES, told)

        await self._do(job)

    async def append(self, what: Append) -> None:
        """Store what has happened to a session; returns once it is committed.

        Raises:
            ServerError: It could not be stored; nothing of it was.
        """
        (error,) = await self.append_all([what])
        if error is not None:
            raise error

    async def append_all(self, what: Sequence[Append]) -> list[ServerError | None]:
        """Store what has happened to many sessions, with one commit; returns what could not be stored, by its place."""
        try:
            jobs = [self.writer.submit(Rows(_rows_of(each))) for each in what]
        except ServerError as error:
            return [error] * len(what)
        errors: list[ServerError | None] = []
        for job in jobs:
            try:
                await job
                errors.append(None)
            except SQLAlchemyError as error:
                failure = ServerError(f"the database cannot be written ({_reason(error)})")
                failure.__cause__ = error
                errors.append(failure)
        return errors

    async def delete(self, name: str) -> None:
        """Forget a session."""
        await self._do(lambda connection: _forget(connection, [name]))

    async def prune(self, closed_before: float) -> int:
        """Forget sessions that ended before then; returns how many."""
        wanted = select(tables.sessions.c.name).where(tables.sessions.c.closed < closed_before)

        def job(connection: Connection) -> int:
            names = list(connection.execute(wanted).scalars())
            _forget(connection, names)
            return len(names)

        return await self._do(job)

    # ---- reading

    async def read(self, name: str) -> SessionRecord | None:
        """A session; None where there is none of that name."""
        found = await self._records(select(tables.sessions).where(tables.sessions.c.name == name))
        return found[0] if found else None

    async def sessions_of(self, caller: str, limit: int = 100) -> list[SessionRecord]:
        """Somebody's sessions, the newest first."""
        c = tables.sessions.c
        return await self._records(
            select(tables.sessions).where(c.caller == caller).order_by(c.opened.desc(), c.name).limit(limit)
        )

    async def open_sessions(self, model: str, idle_since: float | None = None) -> list[SessionRecord]:
        """Sessions of a model that have not ended and that this Braid can go on with.

        Args:
            model: Its name.
            idle_since: Only those of which nothing was stored since then.
        """
        c = tables.sessions.c
        query = select(tables.sessions).where(c.model == model, c.closed.is_(None), c.format <= FORMAT)
        if idle_since is not None:
            query = query.where(c.active < idle_since)
        return await self._records(query.order_by(c.opened))

    async def lines(self, name: str) -> list[Any]:
        """A session's ledger."""
        c = tables.lines.c
        query = select(c.line).where(c.session == name).order_by(c.number)
        return await self._read(
            lambda connection: [json.loads(line) for line in connection.execute(query).scalars()]
        )

    async def messages(self, name: str, after: int = 0, limit: int = 500) -> list[StoredMessage]:
        """What a session's client was told after a message, the oldest first."""
        c = tables.messages.c
        query = (
            select(c.id, c.message, c.re).where(c.session == name, c.id > after).order_by(c.id).limit(limit)
        )
        return await self._read(
            lambda connection: [StoredMessage(*row) for row in connection.execute(query).all()]
        )

    async def answers(self, name: str) -> dict[str, int]:
        """The commands of a session that were carried out, and the message that said so."""
        c = tables.messages.c
        query = select(c.re, c.id).where(c.session == name, c.re.is_not(None)).order_by(c.id)
        return await self._read(
            lambda connection: {row[0]: row[1] for row in connection.execute(query).all()}
        )

    async def _records(self, query: Any) -> list[SessionRecord]:
        return await self._read(
            lambda connection: [_record(row) for row in connection.execute(query).mappings()]
        )

    async def _read(self, job: Callable[[Connection], Value]) -> Value:
        """Beside whoever writes, where the database allows that."""
        if not self._is_shared:
            return await self._do(job)

        def read() -> Value:
            with self._engine.connect() as connection:
                return job(connection)

        try:
            return await anyio.to_thread.run_sync(read)
        except SQLAlchemyError as error:
            raise ServerError(f"the database cannot be read ({_reason(error)})") from error

    async def _do(self, job: Callable[[Connection], Value] | Rows) -> Value:
        try:
            return await self.writer.do(job)
        except SQLAlchemyError as error:
            raise ServerError(f"the database cannot be written ({_reason(error)})") from error


def _rows_of(what: Append) -> list[tuple[Executable, list[dict[str, Any]]]]:
    first = what.num_lines - len(what.lines)
    written = [
        {"session": what.name, "number": first + i, "line": _json(line)} for i, line in enumerate(what.lines)
    ]
    change = {
        "of": what.name,
        "new_active": time.time(),
        "new_closed": what.closed,
        "new_last_id": what.last_id,
        "new_num_lines": what.num_lines,
        "new_state": _json(what.state),
    }
    told = _message_rows(what.name, what.messages)
    parts = ((_INSERT_LINES, written), (_INSERT_MESSAGES, told), (_UPDATE, [change]))
    return [(statement, rows) for statement, rows in parts if rows]


_json = json.JSONEncoder(separators=(",", ":")).encode


def _message_rows(name: str, messages: Sequence[StoredMessage]) -> list[dict[str, Any]]:
    return [{"session": name, "id": each.id, "re": each.re, "message": each.text} for each in messages]


def _record(row: RowMapping) -> SessionRecord:
    values = {**row}
    for key in ("topology", "settings", "state"):
        values[key] = json.loads(values[key])
    return SessionRecord(**values)


def _forget(connection: Connection, names: Sequence[str]) -> None:
    for start in range(0, len(names), 500):  # databases limit how many parameters a statement may have
        some = names[start : start + 500]
        connection.execute(delete(tables.lines).where(tables.lines.c.session.in_(some)))
        connection.execute(delete(tables.messages).where(tables.messages.c.session.in_(some)))
        connection.execute(delete(tables.sessions).where(tables.sessions.c.name.in_(some)))


# ---- opening


def _opened(url: str) -> Engine:
    engine = _engine(url)
    shown = engine.url.render_as_string(hide_password=True)
    try:
        with engine.begin() as connection:
            tables.META.create_all(connection)
            found = connection.execute(
                select(tables.meta.c.value).where(tables.meta.c.key == "schema")
            ).scalar()
            if found is None:
                connection.execute(insert(tables.meta), [{"key": "schema", "value": str(tables.SCHEMA)}])
            else:  # writes something, so that a database that cannot be written is found out now
                _require_schema(found, shown)
                connection.execute(
                    update(tables.meta).where(tables.meta.c.key == "schema").values(value=found)
                )
    except SQLAlchemyError as error:
        engine.dispose()
        raise InputError(
            f"the database {shown} cannot be used ({_reason(error)}); name another with `database`, or `memory` to "
            "keep sessions only while the server runs"
        ) from error
    except InputError:
        engine.dispose()
        raise
    return engine


def _require_schema(found: str, shown: str) -> None:
    if not found.isdecimal() or int(found) > tables.SCHEMA:
        raise InputError(
            f"the database {shown} has the schema {found}, of a newer Braid than {__version__}, which knows "
            f"{tables.SCHEMA}; use that Braid, or another database"
        )


def _engine(url: str) -> Engine:
    if url == MEMORY:
        return create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True)
        if parsed.database in (None, "", ":memory:"):
            return _engine(MEMORY)
        _make_file(Path(parsed.database))
        engine = create_engine(parsed, connect_args={"timeout": WAIT_MS / 1000})
    except (ArgumentError, NoSuchModuleError) as error:
        raise InputError(
            f"this names no database ({error}); say `sqlite:///path`, `postgresql+psycopg://…` or `memory`"
        ) from None
    except ModuleNotFoundError as error:
        raise InputError(f"the database's driver is not installed: pip install {error.name}") from error
    event.listen(engine, "connect", _set_up)
    return engine


def _make_file(path: Path) -> None:
    """What sessions say is nobody else's to read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise InputError(
            f"the database {path} cannot be written ({error.strerror}); name another with `database`"
        ) from error


def _set_up(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={WAIT_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _reason(error: SQLAlchemyError) -> str:
    origin = getattr(error, "orig", None)
    return str(origin if origin is not None else error).partition("\n")[0]

"""The store: what is committed stays, what cannot be used is told at the start."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import time
from pathlib import Path

import pytest

from braid.errors import InputError, ServerError
from braid.server.store import FORMAT, Append, SessionRecord, Store, StoredMessage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def record(name: str = "s_1", **fields: object) -> SessionRecord:
    values = {
        "caller": "alice",
        "model": "m",
        "topology": {"a": 1},
        "settings": {"b": [2]},
        "opened": 1.0,
        "active": 2.0,
    }
    return SessionRecord(name, **{**values, **fields})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_what_is_stored_is_read_back(where: str, tmp_path: Path) -> None:
    store = await Store.open("memory" if where == "memory" else f"sqlite:///{tmp_path / 'deep' / 's.db'}")
    await store.create(record(), [StoredMessage(1, "one", "c1")])
    lines = [["do", "write", ["user", "ü\ud800"], 0.1], ["told", [[4]]]]
    told = [StoredMessage(2, "two"), StoredMessage(3, "three", "c2")]
    await store.append(Append("s_1", lines, told, {"events": 5}, num_lines=2, last_id=3))
    found = await store.read("s_1")
    assert found is not None
    assert (found.last_id, found.num_lines, found.state, found.format) == (3, 2, {"events": 5}, FORMAT)
    assert (found.topology, found.settings) == ({"a": 1}, {"b": [2]})
    assert await store.lines("s_1") == lines
    assert [m.text for m in await store.messages("s_1", 1)] == ["two", "three"]
    assert await store.answers("s_1") == {"c1": 1, "c2": 3}
    assert [r.name for r in await store.sessions_of("alice")] == ["s_1"]
    assert await store.sessions_of("bob") == []
    await store.delete("s_1")
    assert await store.read("s_1") is None
    assert await store.lines("s_1") == []
    await store.close()
    if where == "file":
        assert stat.S_IMODE((tmp_path / "deep" / "s.db").stat().st_mode) == 0o600


async def test_a_failure_harms_nobody_else_of_its_commit_and_leaves_nothing_of_its_own() -> None:
    store = await Store.open("memory")
    names = [f"s_{number}" for number in range(20)]
    await asyncio.gather(*(store.create(record(name)) for name in names))

    async def append(name: str, number: int) -> None:
        await store.append(Append(name, [["x"]], [StoredMessage(number, "m")], num_lines=1, last_id=number))

    await append("s_3", 1)
    before = store.writer.num_commits
    results = await asyncio.gather(*(append(name, 1) for name in names), return_exceptions=True)
    assert [isinstance(result, ServerError) for result in results] == [name == "s_3" for name in names]
    assert len(await store.lines("s_3")) == 1
    assert store.writer.num_commits > before
    await store.close()


async def test_many_who_wait_share_a_commit() -> None:
    store = await Store.open("memory")
    await asyncio.gather(*(store.create(record(f"s_{number}")) for number in range(200)))
    assert store.writer.num_commits < 100
    await store.close()
    with pytest.raises(ServerError):
        await store.create(record("late"))


async def test_what_ended_long_ago_is_forgotten_and_other_models_sessions_are_left() -> None:
    store = await Store.open("memory")
    now = time.time()
    await store.create(record("old", closed=now - 100))
    await store.create(record("new", closed=now))
    await store.create(record("open", active=now - 100))
    await store.create(record("other", model="other", active=now - 100))
    await store.create(record("newer", format=FORMAT + 1, active=now - 100))
    assert await store.prune(now - 50) == 1
    assert {r.name for r in await store.sessions_of("alice")} == {"new", "open", "other", "newer"}
    assert [r.name for r in await store.open_sessions("m", now - 50)] == ["open"]
    assert await store.open_sessions("m", now - 200) == []
    await store.close()


async def test_a_database_that_cannot_be_used_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is no database, whatever it is called" * 100)
    with pytest.raises(InputError, match="not a database"):
        await Store.open(f"sqlite:///{damaged}")
    with pytest.raises(InputError, match="cannot be written"):
        await Store.open(f"sqlite:///{damaged}/below.db")
    with pytest.raises(InputError, match="names no database"):
        await Store.open("nonsense")
    monkeypatch.setattr("braid.server.store.store.WAIT_MS", 50)
    path = tmp_path / "locked.db"
    await (await Store.open(f"sqlite:///{path}")).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="locked"):
        await Store.open(f"sqlite:///{path}")
    holder.execute("ROLLBACK")
    holder.execute("UPDATE braid_meta SET value = '99'")
    holder.close()
    with pytest.raises(InputError, match="newer Braid"):
        await Store.open(f"sqlite:///{path}")

"""The tables of the database.

meta       schema → its number
sessions   what a session was opened with, and how far it has come
lines      its ledger: what the engine goes on from
messages   what its clients were told, or will be: what a connection goes on from
"""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, MetaData, String, Table, Text

__all__ = ["META", "SCHEMA", "lines", "messages", "meta", "sessions"]

SCHEMA = 1
"""Of the tables; a database with a higher one is a newer Braid's."""

META = MetaData()

meta = Table(
    "braid_meta", META, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False)
)

sessions = Table(
    "braid_sessions",
    META,
    Column("name", String(128), primary_key=True),
    Column("caller", String(64), nullable=False, index=True),
    Column("model", String(512), nullable=False),
    Column("braid", String(64), nullable=False),
    Column("format", Integer, nullable=False),
    Column("topology", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("opened", Float, nullable=False),
    Column("active", Float, nullable=False),
    Column("closed", Float, nullable=True, index=True),
    Column("last_id", Integer, nullable=False),
    Column("num_lines", Integer, nullable=False),
    Column("state", Text, nullable=False),
)

# Their rows are short and are read in the order of their keys; an index beside the table would double what is written.
lines = Table(
    "braid_lines",
    META,
    Column("session", String(128), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("line", Text, nullable=False),
    sqlite_with_rowid=False,
)

messages = Table(
    "braid_messages",
    META,
    Column("session", String(128), primary_key=True),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("re", String(64), nullable=True),
    Column("message", Text, nullable=False),
    sqlite_with_rowid=False,
)

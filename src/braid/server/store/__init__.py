"""Where live sessions outlive the server: a database, and the one thread that writes to it."""

from __future__ import annotations

from braid.server.store.store import FORMAT, Append, SessionRecord, Store, StoredMessage

__all__ = ["FORMAT", "Append", "SessionRecord", "Store", "StoredMessage"]

"""The event log of an engine: every verb, every batch, in order; replayed, it gives the same transcripts.

    {"event": "open", "step": 0, "session": 0, "topology": …, "settings": …}
    {"event": "verb", "step": 0, "session": 0, "verb": "write", "arguments": ["user", "How"], "now": 0.1}
    {"event": "step", "step": 0, "now": 0.2, "sessions": [0, 1], "batch": [[0, "prefill", 3]]}
    {"event": "step", "step": 1, "now": 0.3, …, "last_s": 0.02}      where drafts have a share of idle time
    {"event": "fail", "step": 1, "session": 1, "code": "cache.full", "message": …}

An entry takes effect before the step of its number; one with `"during": true` came during the forward of the step that
stands before it, after its rows were made and before its answers were known. Scheduling depends on nothing but what
stands here: time enters through `now` and `last_s`, the seconds of the step before; who was asked through `sessions`.
Predicates are functions and cannot be written down; `replay` is given them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from braid.engine.backend import Item
from braid.errors import BraidError, TranscriptCorruptError, TranscriptError
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from braid.engine.core import EngineCore
    from braid.engine.session.conversation import Conversation
    from braid.engine.session.starts import Predicate

__all__ = ["Journal", "load_journal", "replay"]

Entry = dict[str, Any]


class Journal:
    """Records what happens to an engine.

    Args:
        path: A file that entries are appended to as they happen; None keeps them in memory alone.

    Raises:
        TranscriptError: The file cannot be written, now or when something happens.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.entries: list[Entry] = []
        self._file: TextIO | None = None
        if path is not None:
            try:
                self._file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 (until `close`)
            except OSError as error:
                raise TranscriptError(f"cannot write the journal {path}: {error.strerror}") from error

    def opened(
        self,
        step: int,
        session: int,
        topology: Topology,
        settings: Mapping[str, Any],
        now: float = 0.0,
        ledger: Sequence[Any] | None = None,
        *,
        during: bool = False,
    ) -> None:
        """A session was opened, or taken over from another process by its ledger; maybe during a forward."""
        taken_over = {"now": now, "ledger": list(ledger)} if ledger else {}
        self._add(
            event="open",
            step=step,
            session=session,
            topology=topology.to_dict(),
            settings=dict(settings),
            **taken_over,
            **_during(during),
        )

    def forked(self, step: int, session: int, twin: int) -> None:
        """A session was forked."""
        self._add(event="fork", step=step, session=session, twin=twin)

    def did(
        self,
        step: int,
        session: int,
        verb: str,
        arguments: Sequence[Any],
        now: float,
        *,
        during: bool = False,
    ) -> None:
        """A verb was applied, between two steps or during the last one's forward."""
        self._add(
            event="verb",
            step=step,
            session=session,
            verb=verb,
            arguments=list(arguments),
            now=now,
            **_during(during),
        )

    def failed(self, step: int, session: int, error: BraidError) -> None:
        """A session was closed because of an error."""
        self._add(event="fail", step=step, session=session, code=error.code, message=str(error))

    def stepped(
        self,
        step: int,
        now: float,
        asked: Iterable[Conversation],
        items: Sequence[Item],
        last_s: float | None = None,
    ) -> None:
        """A step was made: who was asked what there is to do, and the batch that came of it.

        Args:
            step, now, asked, items: Of the step.
            last_s: Seconds of the one before it, where it was decided by them.
        """
        batch = [[item.session, item.kind, item.num_tokens] for item in items]
        sessions = [conversation.number for conversation in asked]
        last = {} if last_s is None else {"last_s": last_s}
        self._add(event="step", step=step, now=now, sessions=sessions, batch=batch, **last)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._file is not None:
            self._file.close()

    def _add(self, **entry: Any) -> None:
        if self._file is None:
            self.entries.append(entry)
            return
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        try:
            self._file.write(line)
        except (OSError, ValueError) as error:  # a full disk; a file that is closed
            raise TranscriptError(f"cannot write the journal {self._file.name}: {error}") from error


def _during(is_during: bool) -> Entry:
    return {"during": True} if is_during else {}


def load_journal(path: str | Path) -> list[Entry]:
    """The entries of a file; a torn last line is left out.

    Raises:
        TranscriptError: The file cannot be read.
        TranscriptCorruptError: A line before the last is damaged.
    """
    try:
        # As bytes: a torn line may end within a character, and not every character that splits lines ends one here.
        lines = Path(path).read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as error:
        raise TranscriptError(f"cannot read the journal {path}: {error.strerror}") from error
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        try:
            entry: object = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise TranscriptCorruptError(f"{path}, line {number}: {error}") from error
        if not isinstance(entry, dict):
            raise TranscriptCorruptError(f"{path}, line {number}: {entry!r} is no entry of a journal")
        entries.append(cast("Entry", entry))
    return entries


def replay(
    core: EngineCore,
    entries: Iterable[Entry],
    predicates: Mapping[int, Mapping[str, Predicate]] | None = None,
) -> dict[int, Conversation]:
    """Do again what a journal says, on a fresh engine core of the same model, cache and policy.

    Args:
        core: Where nothing has happened yet.
        entries: Of the journal.
        predicates: What triggers may ask, by session.

    Returns:
        All conversations by number, closed ones too.

    Raises:
        TranscriptCorruptError: An entry is damaged, or a step's batch came out otherwise than the journal says.
    """
    replaying = _Replay(core, predicates or {})
    number = 0
    try:
        for number, entry in enumerate(entries, 1):  # noqa: B007 (the message needs it)
            replaying.take(entry)
        replaying.finish()
    except (KeyError, TypeError) as error:
        raise TranscriptCorruptError(
            f"entry {number} of the journal, or the step before it, cannot be understood ({error!r})"
        ) from error
    return replaying.found


class _Replay:
    """Does again what one entry after another says.

    A step is made when it is known what happened during its forward.
    """

    def __init__(self, core: EngineCore, predicates: Mapping[int, Mapping[str, Predicate]]) -> None:
        self.found: dict[int, Conversation] = {}
        self._core = core
        self._predicates = predicates
        self._step: Entry | None = None
        self._during: list[Entry] = []

    def take(self, entry: Entry) -> None:
        """The next entry."""
        if entry.get("during"):
            self._during.append(entry)
            return
        self.finish()
        if entry["event"] == "step":
            self._step = entry
        else:
            self._do(entry)

    def finish(self) -> None:
        """Make the step that was taken last."""
        entry, self._step = self._step, None
        if entry is None:
            return
        core, made = self._core, list[list[Any]]()
        conversations = [self.found[number] for number in entry["sessions"]]
        journal, core.journal = core.journal, _Catcher(made)
        core.last_step_s = entry.get("last_s", 0.0)
        try:
            core.step(conversations, now=entry["now"], publish=self._do_meanwhile)
        finally:
            core.journal = journal
        if made != entry["batch"]:
            raise TranscriptCorruptError(
                f"step {entry['step']} was {entry['batch']} and is now {made}; the model, the cache's size or the "
                "scheduler's policy differ from those of the journal"
            )

    def _do_meanwhile(self, _news: Sequence[Conversation]) -> None:
        during, self._during = self._during, []
        for entry in during:
            self._do(entry)

    def _do(self, entry: Entry) -> None:
        core, found = self._core, self.found
        match entry["event"]:
            case "open":
                number = entry["session"]
                topology = Topology.from_dict(entry["topology"])
                given = self._predicates.get(number)
                past = {"ledger": entry["ledger"], "now": entry["now"]} if "ledger" in entry else {}
                found[number] = core.open(topology, predicates=given, **entry["settings"], **past)
            case "fork":
                found[entry["twin"]] = core.fork(found[entry["session"]])
            case "verb" if entry["verb"] == "evict":
                core.evict(found[entry["session"]])
            case "verb":
                core.do(found[entry["session"]], entry["verb"], *entry["arguments"], now=entry["now"])
            case "fail":
                core.fail(found[entry["session"]], BraidError.of(entry["code"], entry["message"]))
            case other:
                raise TranscriptCorruptError(f"the journal has an unknown event {other!r}")


class _Catcher(Journal):
    """Catches the batch of one step."""

    def __init__(self, made: list[list[Any]]) -> None:
        super().__init__()
        self._made = made

    def _add(self, **entry: Any) -> None:
        if entry["event"] == "step":
            self._made += entry["batch"]

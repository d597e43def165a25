"""What the engine asks of whoever computes: the `Backend` and `SessionBackend` protocols.

    core (no tensors)                                    Backend
    queues, rows, silence, stops, text, the log          spans, pages, attention, logits, draws
           │   apply(Open, Fork, Trim, …, Close)  ───────▶  who has which spans
           │   reserve(session, needs)            ───────▶  is there room? nothing changes
           │   step([Item, …])                    ───────▶  one forward
           ◀──────────────────────────────────  [ItemResult, …]: tokens and statistics, never logits

A backend that is driven step by step implements `Backend`, and this package schedules it. An engine that drives
itself implements `SessionBackend`, which mirrors a session's verbs; `braid.engine.loop.EngineLoop` is ours, over any
`Backend`. One conformance suite, `braid.checks.conformance`, runs on every `Backend`.

Spans are named as transcripts name them: by the label of a lane (`output`, `thought#1`), `closer:output` for the
template text between the input and an output, `preamble` for what stands before all inputs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from braid.engine.mailbox import Bell, Mailbox
    from braid.engine.metrics import ToolStatus
    from braid.errors import BraidError
    from braid.model.codec import TokenizerCodec
    from braid.model.grammar import GrammarCompiler
    from braid.streams.events import Event, Reuse
    from braid.streams.transcript import Transcript

__all__ = [
    "PREAMBLE",
    "Answer",
    "Ask",
    "Backend",
    "Capabilities",
    "Cell",
    "Close",
    "Draft",
    "Draw",
    "Drop",
    "Dropped",
    "Entry",
    "Fork",
    "Item",
    "ItemResult",
    "Keep",
    "Kind",
    "ModelCard",
    "Op",
    "Open",
    "Recall",
    "SessionBackend",
    "SessionHandle",
    "SessionLook",
    "Splice",
    "Stash",
    "Trim",
    "Usage",
    "closer_of",
]

PREAMBLE = "preamble"
"""Name of the span that stands before all inputs in views."""


def closer_of(lane: str) -> str:
    """Name of the span with a lane's turn closer, instructions and assistant header."""
    return f"closer:{lane}"


# ---- who there is


class ModelCard(Protocol):
    """What the core must know of a model."""

    @property
    def name(self) -> str:
        """For people and transcripts."""
        ...

    @property
    def codec(self) -> TokenizerCodec:
        """Its tokenizer."""
        ...

    @property
    def silence_token_id(self) -> int | None:
        """The class that means silence; None for stock weights."""
        ...

    @property
    def probe_id(self) -> int:
        """What a probe embeds."""
        ...

    @property
    def turn_end_id(self) -> int:
        """The token that ends a turn of a stream; raises TokenizerError where there is none."""
        ...

    @property
    def max_positions(self) -> int:
        """Positions that the model was made for."""
        ...

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles grammars over the model's vocabulary."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; whatever it cannot raises `UnsupportedByBackend`."""

    rows: bool = True
    """Native rows."""
    views: bool = True
    """Training-free views of several outputs, which need shifts."""
    patterns: bool = True
    """Windows and stripes between streams."""
    penalties: bool = True
    """Repetition penalties and biases."""
    grammars: bool = True
    """Token masks."""
    statistics: bool = True
    """Log-probabilities, entropy and confidence of what is drawn."""
    prefixes: bool = True
    """Closed prefixes are shared between sessions."""
    verify: bool = True
    """Items of the kinds `verify` and `score`."""
    edits: bool = False
    """Taking over what stood behind an edit, and telling how far it is from what it should be."""


# ---- what changes who there is


class Open(NamedTuple):
    """Begin a session.

    Args:
        session: Its number, new to the backend.
        topology: Settled, see `Backend.settle`.
        copies: Parallel copies of streams that allow them.
        salt: Of whatever tenant may share prefixes with this session; prefixes are shared under equal salts only.
    """

    session: int
    topology: Topology
    copies: Mapping[str, int]
    salt: str = ""


class Fork(NamedTuple):
    """Begin a session that holds what another one holds; nothing is copied until one of the two writes."""

    session: int
    twin: int


class Trim(NamedTuple):
    """Forget all tokens of a span from index `length` on."""

    session: int
    span: str
    length: int


class Stash(NamedTuple):
    """Put aside what a span holds now, for `Splice`, in the place of what was put aside before.

    It is kept until the session is dropped, closed or asked to put aside nothing, with `span` None.
    """

    session: int
    span: str | None


class Splice(NamedTuple):
    """Behind what a span holds, go on with the tokens `start … stop` that it held when it was put aside.

    They are not computed: they are taken over as they were, moved to where they stand now.
    """

    session: int
    span: str
    start: int
    stop: int
    times: Sequence[int]
    """Row time of each."""


class Drop(NamedTuple):
    """Free all that a session holds in the cache; it stays open, and can be filled again from its transcript."""

    session: int


class Close(NamedTuple):
    """End a session, or one lane of it; pages are free at once. Harmless for a session that is not there."""

    session: int
    lane: str | None = None


class Cell(NamedTuple):
    """One token of a closed prefix."""

    step: int
    """Row time since the prefix began, ascending."""
    span: str
    token: int


class Recall(NamedTuple):
    """Take as many of these cells as are cached already; they must be the first tokens of their spans.

    The answer to this operation is how many of the cells the session's spans now hold.
    """

    session: int
    cells: Sequence[Cell]


class Keep(NamedTuple):
    """Remember these cells, which the session's spans begin with, for other sessions to recall."""

    session: int
    cells: Sequence[Cell]


Op = Open | Fork | Trim | Stash | Splice | Drop | Close | Recall | Keep


# ---- what is computed


@dataclass(slots=True)
class Draw:
    """One token to be drawn, and all that decides it beside the logits."""

    spec: SamplingSpec
    lane: str
    seed: int
    turn: int
    index: int
    """How many tokens of the lane came before in this turn."""
    counts: Mapping[int, int]
    """The tokens that the lane has said so far, for the repetition penalty."""
    banned: tuple[int, ...] = ()
    """Classes that may not be drawn (silence, when the lane is forced)."""
    exempt: tuple[int, ...] = ()
    """Classes that the repetition penalty leaves alone (silence)."""
    allowed: NDArray[np.bool_] | None = None
    """Classes that a grammar allows, `[V]` or shorter; None for all."""


class Ask(NamedTuple):
    """What is to be known of the token that follows."""

    draws: tuple[Draw, ...] = ()
    """One after the last token; in `verify` one after each token of the entry; none when only statistics count."""
    logprobs: int = 0
    """How many of the likeliest classes are to be named, with their log-probabilities."""
    entropy: bool = False
    confidence: bool = False
    """Whether the probability of the likeliest class is asked for."""


class Entry(NamedTuple):
    """Tokens that enter one span, or a probe that only asks."""

    lane: str
    """In whose view they stand; for the preamble, no lane's."""
    span: str
    token_ids: Sequence[int]
    times: Sequence[int]
    """Row time of each token."""
    keep: bool = True
    """False for a probe: nothing of it is kept, and nothing else reads it."""
    ask: Ask | None = None
    replays: str | None = None
    """A probe that stands in the place of this span's last token, and asks once more what would follow it."""


Kind = Literal["decode", "prefill", "verify", "score"]
"""`decode` makes rows, `prefill` fills spans; `verify` accepts the longest run of an entry's tokens that would have
been drawn and forgets the rest; `score` tells how likely an entry's tokens are and forgets them all."""


class Item(NamedTuple):
    """What one session asks of one forward."""

    session: int
    kind: Kind
    entries: Sequence[Entry]

    @property
    def num_tokens(self) -> int:
        """New tokens, probes included."""
        return sum(len(entry.token_ids) for entry in self.entries)


class Answer(NamedTuple):
    """What an entry with an `Ask` is told."""

    token: int = -1
    """The token that was drawn; -1 where none was asked for."""
    logprob: float = 0.0
    """Of that token, as the model has it, before bias and mask; in `score` the sum over all tokens but the first."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest classes and their log-probabilities."""
    entropy: float = 0.0
    """In nats."""
    confidence: float = 0.0
    """Probability of the likeliest class."""
    accepted: int = 0
    """In `verify`: how many of the entry's tokens, after its first, would have been drawn; `token` follows them."""


class ItemResult(NamedTuple):
    """What became of an item: its answers in the order of the entries that ask, or why there are none."""

    answers: tuple[Answer, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True)
class Usage:
    """What the cache holds now."""

    pages_used: int = 0
    pages_total: int = 0
    page_size: int = 16
    bytes_per_token: int = 0
    prefix_tokens: int = 0
    prefix_lookups: int = 0
    prefix_hits: int = 0
    prefix_hit_tokens: int = 0
    prefix_evicted_tokens: int = 0
    extra: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def bytes_used(self) -> int:
        """Bytes of the pages that are owned."""
        return self.pages_used * self.page_size * self.bytes_per_token


@runtime_checkable
class Backend(Protocol):
    """Computes, in this process and on the caller's thread."""

    @property
    def model(self) -> ModelCard:
        """What the core must know of the model."""
        ...

    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    def settle(self, topology: Topology) -> Topology:
        """The topology, completed by what the checkpoint was trained with.

        Raises:
            CheckpointConflictError: It contradicts the checkpoint.
        """
        ...

    def apply(self, ops: Sequence[Op]) -> list[int]:
        """Change who there is, one operation after another.

        Returns:
            One number an operation: cells recalled by `Recall`, kept anew by `Keep`, else 0.

        Raises:
            UnsupportedByBackend, UnsupportedModelError: An operation that it cannot do; those before it are done.
        """
        ...

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        """Promise room for so many more tokens of these spans, each named once, until the next step is over.

        Raises:
            PoolFullError, PoolTooSmallError: There is none, beside what was promised already; nothing was changed.
        """
        ...

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        """One forward for all of these; an item that fails has its error in its own result."""
        ...

    def deviation(self, session: int, span: str, start: int, stop: int, old: int) -> float:
        """How far the keys and values of tokens `start … stop` are from those that were put aside.

        Args:
            session, span: Which span.
            start, stop: Its tokens, computed anew.
            old: Index of the first of them when it was put aside.

        Returns:
            0 where they are the same; see `braid.model.moving.deviation`.

        Raises:
            UnsupportedByBackend: It has no edits.
        """
        ...

    def excerpt(self, session: int, places: Sequence[tuple[str, int]]) -> object:
        """Copies of the keys and values of a few tokens, to be compared when the session has gone on.

        Args:
            session: Whose.
            places: Span and index of each.

        Raises:
            UnsupportedByBackend: It has no edits.
        """
        ...

    def deviation_between(self, found: object, right: object) -> float:
        """How far the keys and values of one excerpt are from those of another one, on the scale of `deviation`.

        Args:
            found: Of one session.
            right: Of the same tokens in another session, which count as right.
        """
        ...

    def usage(self) -> Usage:
        """What the cache holds."""
        ...

    def release_prefixes(self, num_pages: int) -> int:
        """Forget shared prefixes, first those that no session uses, least recently used first.

        Returns:
            Pages that were let go; 0 when there was nothing to forget.
        """
        ...

    def close(self) -> None:
        """Give everything back; the backend is not used afterwards."""
        ...


@dataclass(frozen=True)
class SessionLook:
    """How a session stands."""

    t: int
    """The next row."""
    turn: int
    turn_is_over: bool
    is_closed: bool
    is_evicted: bool
    num_queued: int
    """Input tokens that have not been read."""
    kv_tokens: int
    peak_kv_tokens: int
    num_cached: int = 0
    """Tokens that were taken from what other sessions had computed."""
    reuse: Reuse | None = None
    """Of the editable turn that began last."""
    num_accepted: int = 0
    """Tokens that were said without a forward of their own, because a guess, or a suggestion, was right."""
    num_rejected: int = 0
    """Tokens of guesses that were tried and were wrong."""


@dataclass(frozen=True)
class Draft:
    """What a session would answer to a snapshot, of which nobody hears before the commit.

    Args:
        inputs: The snapshot, by input stream.
        texts: What each output has said to it so far.
        is_complete: Whether that is all of the answer.
        rests: Whether the draft's budget, or the room in the cache, is used up: nothing comes before the next snapshot.
        num_tokens: That were computed for it and still stand, the input's among them.
    """

    inputs: Mapping[str, str]
    texts: Mapping[str, str]
    is_complete: bool
    rests: bool
    num_tokens: int


@dataclass(frozen=True)
class Dropped:
    """What a shutdown left undone in one session."""

    session: int
    num_queued: int
    """Input tokens that were never read."""
    speaking: tuple[str, ...]
    """Outputs that had not finished."""


class SessionHandle(Protocol):
    """One session of an engine that drives itself; it can be asked after the session is closed, too."""

    @property
    def number(self) -> int:
        """What the engine calls it."""
        ...

    @property
    def topology(self) -> Topology:
        """The streams, settled with the checkpoint."""
        ...

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far."""
        ...

    @property
    def error(self) -> BraidError | None:
        """What ended the session from inside."""
        ...

    @property
    def changed(self) -> Bell:
        """Rings whenever something has changed."""
        ...

    @property
    def mailbox(self) -> Mailbox:
        """Where all news comes from the beginning on; with the lines of the ledger, where one is kept."""
        ...

    def look(self) -> SessionLook:
        """How it stands."""
        ...

    def look_at_draft(self) -> Draft | None:
        """What is drafted of the newest snapshot; None while there is nothing, and once it is committed."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """What happens, until it is closed; one listener at a time."""
        ...

    def listen(self, holding: frozenset[str] = frozenset()) -> Mailbox:
        """A mailbox of one's own for all news from now on.

        Args:
            holding: Streams of which every piece of text is awaited like a result, until the listener has taken it
                and says so with the verb `result_came`.
        """
        ...

    def hold(self, streams: frozenset[str]) -> None:
        """Await every piece of text of these streams like a result, for whoever listens already."""
        ...


@runtime_checkable
class SessionBackend(Protocol):
    """An engine that drives itself, by a session's verbs. Sessions and servers see nothing else of it."""

    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one kept token in the cache."""
        ...

    def check(self, topology: Topology, settings: Mapping[str, Any]) -> Topology:
        """The topology as it would be served; raises what `start` would raise, but for want of room."""
        ...

    def warm(self, topology: Topology) -> None:
        """Do beforehand, on any thread, what `start` would take long for."""
        ...

    async def admit(self) -> None:
        """Wait for a seat, which `start` takes and `decline` gives back."""
        ...

    def decline(self) -> None:
        """Give back a seat that was promised."""
        ...

    def start(self, topology: Topology, settings: Mapping[str, Any]) -> SessionHandle:
        """Open a session."""
        ...

    async def fork(self, session: int) -> SessionHandle:
        """Open a session that holds what this one holds, and goes on by itself."""
        ...

    def recount(self, topology: Topology, settings: Mapping[str, Any]) -> Transcript:
        """The transcript of the session that a ledger, `settings["ledger"]`, tells of; no session is opened."""
        ...

    def push(self, session: int, verb: str, *arguments: Any) -> Any:
        """Apply a verb (`write`, `end`, `interrupt`, …) before the next row; raises what the verb raises."""
        ...

    def limit(self, session: int, *, max_rows: int | None, max_turns: int | None) -> None:
        """Close the session by itself after so many rows, or turns."""
        ...

    async def evict(self, session: int) -> None:
        """Give the session's cache back until it has something to do."""
        ...

    def note_tool(self, status: ToolStatus, seconds: float) -> None:
        """Count a tool call that is over."""
        ...

    def abort(self, session: int, reason: str = "closed") -> None:
        """Close the session now; harmless when it is closed already."""
        ...

    async def aclose(self, *, drain: bool = True, timeout_s: float = 30.0) -> list[Dropped]:
        """Shut down: admit nobody, let turns finish, close all sessions; returns what was left undone."""
        ...


def require_ok(result: ItemResult) -> tuple[Answer, ...]:
    """The answers, or the error raised."""
    if result.error is not None:
        raise result.error
    return result.answers

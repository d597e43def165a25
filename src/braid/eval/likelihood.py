"""How likely a text is in the output stream, where that is defined and exact: ordinary generation.

    preamble   input: the context   closer   output: the continuation
    └────────── read once ────────────────┘  └─ scored, then forgotten: the next continuation of the same context

One output of `views` that nobody else speaks to is one sequence, so the chain rule holds, and the sum over its tokens
is the likelihood of the text. With a second output it is not: how likely an answer is depends on the thought beside it,
and all thoughts that could have been there cannot be summed over. In native rows it also depends on when each token is
said. Both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from braid.engine.backend import PREAMBLE, Answer, Ask, Close, Draw, Entry, Fork, Item, Kind, Open, Trim
from braid.engine.local import LocalBackend
from braid.engine.session.preamble import Preamble
from braid.errors import ContextOverflowError, UnsupportedByBackend
from braid.model.chat import Chat
from braid.model.model import Model
from braid.streams.sampling import SamplingSpec
from braid.streams.text import IncrementalTokenizer
from braid.streams.topology import Topology

__all__ = ["Likelihood", "Likely"]

_BATCH = 2048
"""Tokens that are computed at once, unless one request alone has more."""
_PIECE = 512
"""Tokens of one continuation that are scored at once, so that the logits of a long text are never all in memory."""

Likely = tuple[float, bool]
"""Natural logarithm of a text's probability, and whether greedy generation would have said it."""
_Ids = tuple[int, ...]


class Likelihood:
    """Scores texts as a model's output stream would say them.

    Args:
        model: What would say them.
        topology: Of views, with one output.
        is_bare: Without the model's chat template: the output continues the input as it is.
        at_once: Continuations that are scored at the same time.

    Raises:
        UnsupportedByBackend: The likelihood of a text is not defined in these streams.
    """

    def __init__(self, model: Model, topology: Topology, *, is_bare: bool = False, at_once: int = 32) -> None:
        _require_one_sequence(model, topology)
        self._model, self._topology, self._at_once = model, topology, at_once
        self._preamble = Preamble(model.codec, topology.system, Chat(is_bare=is_bare))
        spec = topology.streams[topology.output_names[0]]
        prefix = model.codec.encode(spec.prefix)[0] if spec.prefix else []
        self._behind: _Ids = (*self._preamble.closer_ids(spec), *prefix)
        """What stands between the input and the text."""
        self._is_continued = not self._behind

    def of(self, pairs: Sequence[tuple[str, str]]) -> list[Likely]:
        """How likely continuations are, each after its context in the first input.

        Args:
            pairs: Context and continuation. Without a template between them, spaces at the end of a context count to
                the continuation, since tokens begin with theirs.

        Raises:
            ContextOverflowError: A pair is longer than the model's context.
        """
        asked = [self._ids_of(context, continuation) for context, continuation in pairs]
        for context, continuation in asked:
            self._require_context(len(context) + len(continuation))
        return self._score(asked, is_greedy_asked=True)

    def of_whole(self, texts: Sequence[str]) -> list[float]:
        """How likely texts are from their first token on, in windows of the model's context.

        Args:
            texts: Of any length. Each token is scored once, with all that its window holds before it. A window begins
                with the last token of the one before; the last one, which has less to score, begins earlier.

        Raises:
            UnsupportedByBackend: A template stands before the text, so that it does not begin with nothing.
        """
        if not self._is_continued or self._preamble.wanted_ids:
            raise UnsupportedByBackend(
                "the likelihood of a whole text is that of a text which follows nothing, and here the chat template, "
                "instructions or a system prompt stand before it; use is_bare=True with the preset `plain`"
            )
        window = self._model.max_positions - 1
        asked: list[tuple[_Ids, _Ids]] = []
        owners: list[int] = []
        for number, text in enumerate(texts):
            ids = (self._first_id, *self._read(text))
            for start in range(0, len(ids) - 1, window):
                stop = min(len(ids), start + 1 + window)
                first = start if start == 0 else max(0, stop - 1 - window)  # the last window is full, too
                asked.append((ids[first : start + 1], ids[start + 1 : stop]))
                owners.append(number)
        sums = [0.0] * len(texts)
        for number, (logprob, _) in zip(owners, self._score(asked, is_greedy_asked=False), strict=True):
            sums[number] += logprob
        return sums

    # ---- tokens

    @property
    def _first_id(self) -> int:
        """What stands where nothing does."""
        bos = self._model.codec.bos_id
        return self._model.turn_end_id if bos is None else bos

    def _ids_of(self, context: str, continuation: str) -> tuple[_Ids, _Ids]:
        """Tokens before the continuation, at least one, and those of the continuation."""
        front = self._preamble.wanted_ids
        if not self._is_continued:
            said = self._model.codec.encode(continuation)[0]
            return (*front, *self._read(context), *self._behind), tuple(said)
        stripped = context.rstrip()
        whole = self._read(context + continuation)
        read = self._read(stripped)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(read, whole, strict=False)))
        before = (*front, *whole[:same]) or (self._first_id,)
        return before, tuple(whole[same:])

    def _read(self, text: str) -> list[int]:
        """Tokens of an input, as a session reads them."""
        tokenizer = IncrementalTokenizer(self._model.codec, self._preamble.text)
        return [token for token, _ in (*tokenizer.write(text), *tokenizer.flush())]

    def _require_context(self, length: int) -> None:
        if length > self._model.max_positions:
            raise ContextOverflowError(
                f"context and continuation are {length} tokens, and {self._model.name} was made for "
                f"{self._model.max_positions}; give fewer examples in the context (num_fewshot), or leave the task out"
            )

    # ---- scoring

    def _score(self, asked: Sequence[tuple[_Ids, _Ids]], *, is_greedy_asked: bool) -> list[Likely]:
        longest = max((len(context) + len(said) for context, said in asked), default=0)
        room = max(longest, _BATCH) + 64 * (self._at_once + 1)  # each twin owns the page at which it begins
        backend = LocalBackend(self._model, kv_tokens=room, prefix_share=0.0)
        scored: list[Likely] = []
        try:
            numbers = count()
            for batch in _batches(asked, self._at_once):
                scored += _Batch(backend, self._topology, numbers, batch).score(
                    is_greedy_asked=is_greedy_asked
                )
        finally:
            backend.close()
        return scored


def _require_one_sequence(model: Model, topology: Topology) -> None:
    """Refuse streams in which a text has no likelihood of its own."""
    way_out = (
        "use tasks that generate (`output_type: generate_until`), or a stock model with the preset `plain`"
    )
    if model.trained is not None or topology.decoding == "rows":
        raise UnsupportedByBackend(
            "the likelihood of a text is not defined in native rows, where it depends on the row in which each token "
            f"is said, and on silence before it; {way_out}"
        )
    if len(topology.output_names) != 1:
        raise UnsupportedByBackend(
            f"the likelihood of a text is not defined beside other outputs ({', '.join(topology.output_names)}), since "
            f"it depends on what they say meanwhile; {way_out}"
        )
    output, first = topology.output_names[0], topology.input_names[0]
    if topology.patterns or not topology.reads_pair(output, first):
        raise UnsupportedByBackend(
            f"{output} does not see all of {first}, so what it says does not follow the whole context; {way_out}"
        )


def _batches(asked: Sequence[tuple[_Ids, _Ids]], at_once: int) -> Iterator[list[tuple[_Ids, _Ids]]]:
    """Requests that are computed together; neighbours with one context read it once."""
    batch: list[tuple[_Ids, _Ids]] = []
    contexts: set[_Ids] = set()
    size = 0
    for context, said in asked:
        more = len(said) + (0 if context in contexts else len(context))
        if batch and (size + more > _BATCH or len(batch) >= at_once):
            yield batch
            batch, contexts, size, more = [], set(), 0, len(context) + len(said)
        batch.append((context, said))
        contexts.add(context)
        size += more
    if batch:
        yield batch


@dataclass
class _Twin:
    """One continuation, in a session that holds its context but for the last token.

    Args:
        number: Of the session.
        held: Tokens in its cache.
        last: The token before what is to be scored next.
        left: What is to be scored.
    """

    number: int
    held: int
    last: int
    left: _Ids
    logprob: float = 0.0
    is_greedy: bool = True

    @property
    def piece(self) -> _Ids:
        """What is scored next."""
        return self.left[:_PIECE]


class _Batch:
    """Requests that are scored together, in sessions of their own that begin as those of their contexts."""

    def __init__(
        self,
        backend: LocalBackend,
        topology: Topology,
        numbers: Iterator[int],
        asked: Sequence[tuple[_Ids, _Ids]],
    ) -> None:
        self._backend = backend
        self._roots: dict[_Ids, int] = {}
        for context, _ in asked:
            if context not in self._roots:
                self._roots[context] = next(numbers)
                backend.apply([Open(self._roots[context], topology, {})])
        self._step("prefill", [(number, context[:-1], None) for context, number in self._roots.items()])
        self._twins = [_Twin(next(numbers), len(context) - 1, context[-1], said) for context, said in asked]
        for twin, (context, _) in zip(self._twins, asked, strict=True):
            backend.apply([Fork(self._roots[context], twin.number)])

    def score(self, *, is_greedy_asked: bool) -> list[Likely]:
        """Score all, piece by piece, and close the sessions."""
        while live := [twin for twin in self._twins if twin.left]:
            asks = [(twin.number, (twin.last, *twin.piece), Ask()) for twin in live]
            for twin, answer in zip(live, self._step("score", asks), strict=True):
                twin.logprob += answer.logprob
            if is_greedy_asked:
                # One draw after each token; only the draw after the last one is for nothing.
                drawn = [(number, ids, Ask(tuple(_GREEDY for _ in ids))) for number, ids, _ in asks]
                for twin, answer in zip(live, self._step("verify", drawn), strict=True):
                    twin.is_greedy &= answer.accepted == len(twin.piece)
            self._go_on(live)
        numbers = [*self._roots.values(), *(twin.number for twin in self._twins)]
        self._backend.apply([Close(number) for number in numbers])
        return [(twin.logprob, twin.is_greedy) for twin in self._twins]

    def _go_on(self, live: Sequence[_Twin]) -> None:
        """Read what was scored, where more follows."""
        longer = [twin for twin in live if len(twin.left) > _PIECE]
        self._backend.apply([Trim(twin.number, PREAMBLE, twin.held) for twin in longer])
        self._step("prefill", [(twin.number, (twin.last, *twin.piece[:-1]), None) for twin in longer])
        for twin in live:
            twin.held, twin.last, twin.left = twin.held + _PIECE, twin.piece[-1], twin.left[_PIECE:]

    def _step(self, kind: Kind, asks: Sequence[tuple[int, _Ids, Ask | None]]) -> list[Answer]:
        """One forward; all stands in one span, which reads itself alone: an ordinary sequence."""
        items = [
            Item(number, kind, [Entry("", PREAMBLE, ids, [-1] * len(ids), True, ask)])
            for number, ids, ask in asks
            if ids
        ]
        for item in items:
            self._backend.reserve(item.session, [(PREAMBLE, item.num_tokens)])
        answers: list[Answer] = []
        for result in self._backend.step(items) if items else ():
            if result.error is not None:
                raise result.error
            answers += result.answers
        return answers


_GREEDY = Draw(SamplingSpec(), "", 0, 0, 0, {})

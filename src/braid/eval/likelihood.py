"""How likely a text is in the output stream, where that is defined and exact: ordinary generation.

    preamble   input: the context   closer   output: the continuation
    └────────── read once ────────────────┘  └─ scored, then forgotten: the next continuation of the same context

One output of `views` that nobody else speaks to is one sequence, so the chain rule holds, and the sum of what each token
was expected to be is the likelihood of the text. With a second output it is not: how likely an answer is depends on the
thought beside it, and the thoughts that could have been there cannot be summed. In native rows it also depends on when
each token is said. Both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile

from braid.engine.backend import PREAMBLE, Ask, Close, Draw, Entry, Fork, Item, ItemResult, Kind, Open
from braid.engine.local import LocalBackend
from braid.engine.preamble import Preamble
from braid.errors import ContextOverflowError, InputError, UnsupportedByBackend
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
            texts: Of any length. Each token is scored once, with all that its window holds before it; a window begins
                with the last token of the one before.

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
                asked.append(((ids[start],), ids[start + 1 : start + 1 + window]))
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
                scored += _Batch(backend, self._topology, numbers, batch).score(is_greedy_asked=is_greedy_asked)
        finally:
            backend.close()
        return scored


def _require_one_sequence(model: Model, topology: Topology) -> None:
    """Refuse streams in which a text has no likelihood of its own."""
    way_out = "use tasks that generate (`output_type: generate_until`), or a stock model with the preset `plain`"
    if model.trained is not None or topology.decoding == "rows":
        raise UnsupportedByBackend(
            "the likelihood of a text is not defined in native rows, where it depends on the row in which each token is "
            f"said, and on silence before it; {way_out}"
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


def _batches(
    asked: Sequence[tuple[_Ids, _Ids]], at_once: int
) -> Iterator[list[tuple[_Ids, _Ids]]]:
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
    """One continuation, in a session that holds its context but for the last token."""

    number: int
    last: int
    """The token before what is to be scored next."""
    left: _Ids
    logprob: float = 0.0
    is_greedy: bool = True
    piece: _Ids = field(default=(), init=False)

    def take(self) -> None:
        self.piece, self.left = self.left[:_PIECE], self.left[_PIECE:]

    def entry(self, ask: Ask | None, tokens: Sequence[int]) -> Entry:
        # All stands in one span, which reads itself alone: an ordinary sequence.
        return Entry("", PREAMBLE, tokens, [-1] * len(tokens), True, ask)


class _Batch:
    """Requests that are scored together."""

    def __init__(
        self, backend: LocalBackend, topology: Topology, numbers: Iterator[int], asked: Sequence[tuple[_Ids, _Ids]]
    ) -> None:
        self._backend = backend
        self._roots: dict[_Ids, int] = {}
        for context, _ in asked:
            if context not in self._roots:
                self._roots[context] = next(numbers)
                backend.apply([Open(self._roots[context], topology, {})])
        self._step("prefill", [(number, _entry(context[:-1])) for context, number in self._roots.items()])
        self._twins: list[_Twin] = []
        for context, said in asked:
            twin = _Twin(next(numbers), context[-1], said)
            backend.apply([Fork(self._roots[context], twin.number)])
            self._twins.append(twin)

    def score(self, *, is_greedy_asked: bool) -> list[Likely]:
        """Score piece by piece, and forget everything."""
        while live := [twin for twin in self._twins if twin.left]:
            for twin in live:
                twin.take()
            told = self._step("score", [(t.number, _entry((t.last, *t.piece), Ask())) for t in live])
            for twin, result in zip(live, told, strict=True):
                twin.logprob += result.answers[0].logprob
            if is_greedy_asked:
                told = self._step("verify", [(t.number, _entry((t.last, *t.piece), _greedy(t))) for t in live])
                for twin, result in zip(live, told, strict=True):
                    twin.is_greedy &= result.answers[0].accepted == len(twin.piece)
                ...
        return []

"""Grammars over a model's vocabulary: which classes may come next, so that what a stream says is always accepted.

    Grammar ─► GrammarCompiler.compile ─► Matcher ─┬─► allowed()  [V], before a token is drawn
               (once a model, cached)              └─◄ consume(), with the token that was

`llguidance` does the matching, over bytes. Three things are Braid's:

- **The end.** The compiler's own end token is a class that no model has. Those of the model are allowed exactly where
  the text so far is accepted, however many there are.
- **Silence** is no text: always allowed, never consumed. Control tokens are no text either, and never allowed.
- **The first token.** Some tokenizers (Llama 2, Mistral, T5) drop the space that a text begins with when they decode
  it: `▁yes` is "yes" at the start, and " yes" after that. What is matched is the text that comes out. So two matchers
  begin, one with the grammar and one with a space before it, and the first token decides which of them goes on.

The mask holds *every* token that keeps the text within the grammar: where only one text can follow, it does not
prescribe how that is cut into tokens.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from braid.errors import SamplingError, UnsupportedByBackend
from braid.model.codec import TokenizerCodec
from braid.model.vocabulary import Vocabulary
from braid.streams.grammar import Grammar
from braid.streams.strict import shown

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarCompiler", "Matcher"]

# One space, or a line end and an indentation: all that people write, and no room to go on for ever.
_WHITE_SPACE = r" |\n[ \t]{0,32}"
_NUM_CACHED = 64
_MAX_STATES = 50_000  # about 1.5 kB each; a grammar that needs more is given up
_NUM_SHOWN = 16


class GrammarCompiler:
    """Compiles grammars for one model. Threads may share it; nothing is built before the first grammar comes.

    Args:
        codec: The model's tokenizer.
        vocab_size: Classes of the model's head, which may be more than the tokenizer has tokens; None for its tokens.
        silence_id: The class that means silence; None for stock models, which have none.
    """

    def __init__(
        self, codec: TokenizerCodec, *, vocab_size: int | None = None, silence_id: int | None = None
    ) -> None:
        self._codec = codec
        self._vocab_size = codec.vocab_size if vocab_size is None else vocab_size
        self._silence_id = silence_id
        self._lock = threading.Lock()
        self._wrapped: tuple[Vocabulary, LLTokenizer] | None = None
        self._compiled: OrderedDict[Grammar, tuple[LLMatcher, LLMatcher | None]] = OrderedDict()

    def compile(self, grammar: Grammar, *, at_start: bool = True) -> Matcher:
        """Return a matcher that stands at the beginning of a grammar.

        Args:
            grammar: What may be said.
            at_start: Whether the first token will be the first of its text; false where a forced prefix stands
                before it.

        Returns:
            A matcher of the caller's own. The grammar itself is compiled once, and kept while it is in use.

        Raises:
            SamplingError: The grammar cannot be compiled, or no text of it can be spelled with this vocabulary.
            UnsupportedByBackend: `llguidance` is not installed.
        """
        with self._lock:
            if self._wrapped is None:
                vocabulary = Vocabulary.of(self._codec, self._vocab_size, self._silence_id)
                self._wrapped = vocabulary, _wrap(vocabulary)
            vocabulary, tokenizer = self._wrapped
            if grammar not in self._compiled:
                plain = _compile(grammar, tokenizer)
                is_split = bool(vocabulary.drops_space_V.any())
                spaced = _compile(grammar, tokenizer, before='" " ') if is_split else None
                self._compiled[grammar] = plain, spaced
                if len(self._compiled) > _NUM_CACHED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            plain, spaced = self._compiled[grammar]
            matcher = Matcher(
                vocabulary, plain.deep_copy(), spaced.deep_copy() if spaced and at_start else None
            )
        try:
            matcher.allowed()
        except SamplingError as error:
            raise SamplingError(
                f"no text of {_named(grammar)} can be spelled with this model's tokens: {error}"
            ) from error
        return matcher


class Matcher:
    """Where one stream stands in its grammar. `GrammarCompiler.compile` makes it; one thread at a time uses it."""

    def __init__(self, vocabulary: Vocabulary, plain: LLMatcher, spaced: LLMatcher | None) -> None:
        self._vocabulary = vocabulary
        self._plain = plain
        self._spaced = spaced
        self._taken = plain if spaced is None else None
        """The one that goes on; None as long as the first token has not decided it."""
        self._tokens: list[int] = []
        self._has_ended = False
        self._mask_V: NDArray[np.bool_] | None = None
        self._goes_on = True
        """Whether a token of text is allowed, as far as `_mask_V` is known."""

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is accepted, so that it may end here."""
        return self._has_ended or (self._taken or self._plain).is_accepting()

    @property
    def must_end(self) -> bool:
        """Whether the text is complete and nothing can follow it.

        Raises:
            SamplingError: As for `allowed`.
        """
        self.allowed()
        return not self._goes_on

    def allowed(self) -> NDArray[np.bool_]:
        """Return which classes may come next, `[V]`; the array is not changed afterwards, by either side.

        Where the text must end and the model has no end token, none is.

        Raises:
            SamplingError: The text is incomplete, and no token of this vocabulary can go on with it.
        """
        if self._mask_V is None:
            self._mask_V = self._compute()
        return self._mask_V

    def consume(self, token: int) -> None:
        """Take a token as said. Silence changes nothing.

        Raises:
            SamplingError: The token is not allowed here; nothing was changed.
        """
        vocabulary = self._vocabulary
        if token == vocabulary.silence_id:
            return
        if not (0 <= token < vocabulary.size and self.allowed()[token]):
            raise SamplingError(f"the grammar does not allow {vocabulary.shown(token)} {self._place()}")
        if vocabulary.is_end_V[token]:
            self._has_ended = True
        else:
            self._take(token)
        self._tokens.append(token)
        self._mask_V = None

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were consumed.

        Args:
            num_tokens: How many, silence not counted.
        """
        assert 0 <= num_tokens <= len(self._tokens), "what was not consumed cannot be taken back"
        if not num_tokens:
            return
        kept = len(self._tokens) - num_tokens
        num_text = num_tokens - self._has_ended
        self._has_ended = False
        self._tokens = self._tokens[:kept]
        self._mask_V = None
        if num_text:
            assert self._taken is not None
            done = self._taken.rollback(num_text)
            assert done, self._taken.get_error()
        if kept == 0 and self._spaced is not None:
            self._taken = None

    def copy(self) -> Matcher:
        """Return a matcher that stands in the same place and goes on by itself."""
        twin = Matcher(
            self._vocabulary, self._plain.deep_copy(), self._spaced.deep_copy() if self._spaced else None
        )
        if self._taken is not None:
            twin._taken = twin._plain if self._taken is self._plain else twin._spaced
        twin._tokens = list(self._tokens)
        twin._has_ended = self._has_ended
        twin._mask_V, twin._goes_on = self._mask_V, self._goes_on
        return twin

    def _take(self, token: int) -> None:
        if self._taken is None:
            self._taken = self._spaced if self._vocabulary.drops_space_V[token] else self._plain
            assert self._taken is not None
        if self._taken.try_consume_tokens([token]) != 1:
            raise SamplingError(f"the grammar has failed {self._place()}: {_first_line(self._taken)}")

    def _compute(self) -> NDArray[np.bool_]:
        vocabulary = self._vocabulary
        if self._has_ended:
            mask_V = np.zeros(vocabulary.size, np.bool_)
        elif self._taken is not None:
            mask_V = self._bits(self._taken)
            mask_V &= vocabulary.is_sayable_V
        else:
            assert self._spaced is not None
            mask_V = np.where(vocabulary.drops_space_V, self._bits(self._spaced), self._bits(self._plain))
            mask_V &= vocabulary.is_sayable_V & ~vocabulary.is_unclear_V
        is_complete = self.is_complete
        self._goes_on = bool(mask_V.any())
        if not (self._goes_on or is_complete):
            raise SamplingError(self._dead_end())
        if is_complete and not self._has_ended:
            mask_V |= vocabulary.is_end_V
        if vocabulary.silence_id is not None:
            mask_V[vocabulary.silence_id] = True
        return mask_V

    def _bits(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        packed = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(packed, count=self._vocabulary.size, bitorder="little").view(np.bool_)

    def _dead_end(self) -> str:
        known = [each for each in (self._taken or self._plain, self._spaced) if each is not None]
        reasons = [_first_line(each) for each in known if each.is_error()]
        why = f" ({reasons[0]})" if reasons else ""
        return (
            f"the grammar is at a dead end {self._place()}: its text is incomplete, and no token can go on{why}; "
            "allow a text that these tokens spell, or a simpler one"
        )

    def _place(self) -> str:
        """Where in its text the stream is, for messages."""
        if self._has_ended:
            return "after the end of its text"
        if not self._tokens:
            return "at the start"
        return f"after {self._vocabulary.codec.decode(self._tokens[-_NUM_SHOWN:])!r}"


class _Spelling:
    """A vocabulary in the shape that `llguidance.TokenizerWrapper` takes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # One class more than the model has: the compiler's end, which never comes.
        self.eos_token_id = vocabulary.size
        self.bos_token_id = None
        self.tokens = [vocabulary.names.get(i, text) for i, text in enumerate(vocabulary.bytes_V)] + [
            b"<end>"
        ]
        self.special_token_ids = [*vocabulary.names, self.eos_token_id]
        self._codec = vocabulary.codec

    def __call__(self, text: str | bytes) -> Sequence[int]:
        # Only asked in order to prescribe tokens, which our grammars forbid (`no_forcing`).
        return self._codec.encode(text.decode(errors="replace") if isinstance(text, bytes) else text)[0]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UnsupportedByBackend(
            "grammars need the package llguidance, which is not installed: pip install llguidance"
        ) from None
    return llguidance


def _wrap(vocabulary: Vocabulary) -> LLTokenizer:
    library = _llguidance()
    wrapper = library.TokenizerWrapper(_Spelling(vocabulary))
    return library.LLTokenizer(wrapper, n_vocab=vocabulary.size + 1, eos_token=vocabulary.size)


def _compile(grammar: Grammar, tokenizer: LLTokenizer, *, before: str = "") -> LLMatcher:
    """Compile a grammar, with a literal before it.

    Raises:
        SamplingError: The library refuses it.
    """
    library = _llguidance()
    try:
        part = _part(grammar, library.LLMatcher)
    except ValueError as error:
        raise _refused(grammar, str(error)) from error
    whole = {
        "grammars": [
            {"name": "braid", "lark_grammar": f'%llguidance {{"no_forcing": true}}\nstart: {before}@text'},
            part | {"name": "text"},
        ]
    }
    limits = library.LLParserLimits(max_lexer_states=_MAX_STATES, verbose_errors=False)
    matcher = library.LLMatcher(tokenizer, json.dumps(whole), log_level=0, limits=limits)
    if matcher.is_error():
        raise _refused(grammar, matcher.get_error())
    return matcher


def _part(grammar: Grammar, library: type[LLMatcher]) -> dict[str, Any]:
    """The grammar as the library spells it."""
    if grammar.kind == "lark":
        return {"lark_grammar": grammar.source}
    if grammar.kind == "regex":
        spelled = library.grammar_from_regex(grammar.source)
    else:
        schema = "{}" if grammar.json_schema is True else grammar.source
        spelled = library.grammar_from_json_schema(schema, defaults={"whitespace_pattern": _WHITE_SPACE})
    return json.loads(spelled)["grammars"][0]


def _refused(grammar: Grammar, reason: str) -> SamplingError:
    told = " ".join(reason.removesuffix("<non-verbose/>").split())
    return SamplingError(f"{_named(grammar)} cannot be compiled: {told}")


def _named(grammar: Grammar) -> str:
    return f"the grammar {grammar.kind}: {shown(grammar.source)}"


def _first_line(matcher: LLMatcher) -> str:
    return matcher.get_error().partition("\n")[0]

"""A transformers tokenizer as Braid's codec: exact both ways, and deaf to control tokens in other people's text.

Two copies of the tokenizer's Rust half are kept, and neither is changed after it is built, so that threads can share
them: `trusted` parses control tokens (chat templates), `plain` does not (everything else).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from jinja2 import TemplateError
from tokenizers import Tokenizer

from braid.errors import ChatTemplateError, TokenizerError
from braid.streams.text import Cuts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenizerCodec"]

NOTHING = r"(?!)"
PROBE = "BraidProbe"
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenizerCodec:
    """Encodes and decodes exactly, over a `transformers` tokenizer with a fast backend.

    A *control token* is an added token that the tokenizer calls special. A *marker* is a control token, or an added
    token that the chat template writes (`<think>`, `<tool_call>`): markers are parsed out of templates only.

    Args:
        tokenizer: what `AutoTokenizer.from_pretrained` returns.
        end_ids: further ids that end an answer, such as `generation_config.eos_token_id`.

    Raises:
        TokenizerError: if the tokenizer has no fast backend.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise TokenizerError(
                f"{type(tokenizer).__name__} has no fast backend, so tokens cannot be traced to their text; "
                "convert it to a tokenizer.json, or load it with AutoTokenizer and the `tokenizers` package"
            )
        spec = cast(dict[str, Any], json.loads(backend.to_str()))
        added = cast(list[dict[str, Any]], spec["added_tokens"])
        template = _template(tokenizer)
        self.hf = tokenizer
        self.chat_template = template
        self._added = {int(entry["id"]): entry for entry in added}
        self.control_ids = frozenset(i for i, entry in self._added.items() if entry["special"])
        self.marker_ids = self.control_ids | {
            i
            for i, entry in self._added.items()
            if not str(entry["content"]).isspace() and str(entry["content"]) in (template or "")
        }
        self._trusted, self._plain = _backends(spec, self.marker_ids)
        self.vocab_size: int = self._trusted.get_vocab_size(with_added_tokens=True)
        self.bos_id: int | None = cast("int | None", tokenizer.bos_token_id)
        self.eos_id: int | None = cast("int | None", tokenizer.eos_token_id)
        self._byte_level = _names(spec["decoder"]) - {"Fuse", "Sequence"} == {"ByteLevel"}
        self._byte_vocabulary = "ByteLevel" in _names(spec["pre_tokenizer"]) | _names(spec["normalizer"])
        self._byte_fallback = "ByteFallback" in _names(spec["decoder"])
        self._cuts: Cuts = "pairs" if spec["model"]["type"] == "BPE" else self._cuts_of_words()
        self._spelled_out = self.marker_ids - _unknown_ids(spec["model"], self._trusted)
        self._swallows = {i for i, entry in self._added.items() if entry["rstrip"]}
        found = {self.eos_id, self._end_of_turn(), *end_ids}
        self.end_ids: tuple[int, ...] = tuple(sorted(i for i in found if i is not None))

    def _end_of_turn(self) -> int | None:
        """Return the control token with which the chat template ends an answer."""
        if self.chat_template is None:
            return None
        messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": PROBE}]
        try:
            _, _, after = self.render_chat(messages, answer_next=False).rpartition(PROBE)
        except ChatTemplateError:
            return None  # a template for something else; whoever needs a conversation will hear of it
        return next((i for i in self.encode_template(after) if i in self.control_ids), None)

    @property
    def byte_level(self) -> bool:
        """Whether decoding joins the bytes of all tokens before it reads them as UTF-8."""
        return self._byte_level

    @property
    def cuts(self) -> Cuts:
        """Where text may be cut: merges are independent of each other, whole words are weighed as such."""
        return self._cuts

    def _cuts_of_words(self) -> Cuts:
        splitter = self._plain.pre_tokenizer
        return "words" if splitter is not None and len(splitter.pre_tokenize_str("a b")) > 1 else "never"

    def with_end_ids(self, ids: Iterable[int]) -> TokenizerCodec:
        """Return a codec that also takes `ids` for the end of an answer."""
        return TokenizerCodec(self.hf, (*self.end_ids, *ids))

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokenise text from outside: nothing in it is taken for a marker, and nothing is put before it.

        Args:
            text: any text without lone surrogates.

        Returns:
            Token ids, and the range of characters of `text` that each covers. Tokens that share a character have
            overlapping ranges.
        """
        encoding = self._plain.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        if self._spelled_out.isdisjoint(ids):
            return ids, offsets
        return self._spell_out(ids, offsets)

    def encode_template(self, text: str, literals: Sequence[tuple[int, int]] = ()) -> list[int]:
        """Tokenise a rendered chat template, whose control tokens are meant.

        Args:
            text: the rendered template.
            literals: ranges of `text` that came from outside, in order, in which markers are not parsed.

        Returns:
            Token ids; the same as the model's own tokenizer gives, unless a literal spells a marker.
        """
        if not any(True for a, b in literals for _ in self.marker_spans(text[a:b])):
            return self._trusted.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        at = 0
        for start, stop, token in self._markers_outside(text, literals):
            ids += [*self.encode(text[at:start])[0], token]
            at = stop
        return ids + self.encode(text[at:])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the exact text of tokens: nothing cleaned up, control tokens skipped."""
        return self._trusted.decode(list(ids), skip_special_tokens=True)

    def piece(self, token: int) -> bytes | str | None:
        """Return what one token adds: bytes that need company, or text, or None for a control token."""
        spelling = self._trusted.id_to_token(token)
        if spelling is None or token in self.control_ids:
            return None
        if self._byte_level:
            return _bytes_of(spelling)
        match = BYTE_TOKEN.fullmatch(spelling) if self._byte_fallback else None
        return bytes([int(match[1], 16)]) if match else spelling

    def pieces(self) -> Iterator[bytes | str]:
        """Return the text of every vocabulary entry, added tokens included, with all that it may swallow."""
        for spelling, token in self._trusted.get_vocab(with_added_tokens=True).items():
            entry = self._added.get(token)
            if entry is None:
                yield _bytes_of(spelling) if self._byte_vocabulary else spelling
                continue
            content = str(entry["content"])
            yield from (content, self.normalize(content), spelling)
            if token in self._swallows:
                yield from (content + space for space in " \t\n\r")

    @cached_property
    def longest_piece(self) -> int:
        """Characters that one token of the vocabulary stands for, at most."""
        return max((len(piece) for piece in self.pieces()), default=1)

    def normalize(self, text: str) -> str:
        """Return the text as the vocabulary spells it."""
        normalizer = self._plain.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def marker_spans(self, text: str, *, control_only: bool = False) -> Iterator[tuple[int, int]]:
        """Return the ranges of the text that spell markers, or control tokens only."""
        ids = self.control_ids if control_only else self.marker_ids
        return (match.span() for match in self._pattern(ids).finditer(text))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        answer_next: bool,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return what the chat template makes of a conversation.

        Args:
            messages: `{"role": …, "content": …}` each.
            answer_next: whether the assistant's header comes last.
            options: further variables of the template, such as `enable_thinking`.

        Raises:
            ChatTemplateError: if there is no template, or it refuses the conversation.
        """
        if self.chat_template is None:
            raise ChatTemplateError(
                "the tokenizer has no chat template; use an instruction-tuned checkpoint, set "
                "`tokenizer.chat_template`, or give the text as it is (ChatFormat.bare, the `plain` preset)"
            )
        try:
            text = self.hf.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=answer_next,
                **(options or {}),
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ChatTemplateError(
                f"the chat template refuses a conversation of {roles}: {error}"
            ) from error
        return cast("str", text)

    def _pattern(self, ids: frozenset[int]) -> re.Pattern[str]:
        spellings = sorted((str(self._added[i]["content"]) for i in ids), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, spellings)) or NOTHING)

    def _markers_outside(
        self, text: str, literals: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, int]]:
        """Return (start, stop, token) of each marker that no literal takes part in."""
        ids = {str(self._added[i]["content"]): i for i in self.marker_ids}
        for match in self._pattern(self.marker_ids).finditer(text):
            start, stop = match.span()
            if not any(a < stop and start < b for a, b in literals):
                yield start, stop, ids[match[0]]

    def _spell_out(
        self, ids: list[int], offsets: list[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Replace markers that the model's own merges spelled (`<s>` is a word to some) by smaller tokens."""
        new_ids: list[int] = []
        new_offsets: list[tuple[int, int]] = []
        for token, (start, stop) in zip(ids, offsets, strict=True):
            if token not in self._spelled_out:
                new_ids.append(token)
                new_offsets.append((start, stop))
                continue
            spelling = self._trusted.id_to_token(token) or ""
            for index, char in enumerate(spelling):
                at = min(start + index, stop - 1)
                for small in self._plain.model.tokenize(char):
                    new_ids.append(small.id)
                    new_offsets.append((at, at + 1))
        return new_ids, new_offsets


def _template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the chat template that applies when none is named."""
    template: object = tokenizer.chat_template
    if isinstance(template, dict):
        template = cast("dict[str, object]", template).get("default")
    return template if isinstance(template, str) and template else None


def _backends(spec: dict[str, Any], marker_ids: frozenset[int]) -> tuple[Tokenizer, Tokenizer]:
    """Return the copy that parses control tokens and the copy that parses no marker."""
    # Post-processors add tokens that nobody asked for, and trim the spaces off offsets.
    spec = {**spec, "post_processor": None, "truncation": None, "padding": None}
    trusted = Tokenizer.from_str(json.dumps(spec))
    marked = [
        {**entry, "special": entry["special"] or entry["id"] in marker_ids} for entry in spec["added_tokens"]
    ]
    plain = Tokenizer.from_str(json.dumps({**spec, "added_tokens": marked}))
    plain.encode_special_tokens = True
    return trusted, plain


def _unknown_ids(model: dict[str, Any], backend: Tokenizer) -> set[int | None]:
    """Return the token that stands for text outside the vocabulary, which anybody's text may yield."""
    name = model.get("unk_token")
    return {model.get("unk_id"), backend.token_to_id(str(name)) if name is not None else None}


def _names(part: object) -> set[str]:
    """Return the types of all components in a part of a tokenizer's description."""
    if isinstance(part, dict):
        fields = cast(dict[str, Any], part)
        names = {str(fields["type"])} if "type" in fields else set[str]()
        return names.union(*map(_names, fields.values()))
    return set[str]().union(*map(_names, cast(list[Any], part))) if isinstance(part, list) else set()


def _byte_table() -> dict[str, int]:
    """Return which byte each printable stand-in of a byte-level vocabulary means."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    hidden = (byte for byte in range(256) if chr(byte) not in table)
    return table | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


_BYTE_OF = _byte_table()


def _bytes_of(spelling: str) -> bytes:
    """Return the bytes that a byte-level entry stands for; an entry that is no such spelling stands for itself."""
    try:
        return bytes(_BYTE_OF[char] for char in spelling)
    except KeyError:
        return spelling.encode()

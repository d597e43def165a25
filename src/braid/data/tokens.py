"""Text to tokens while data are built, without torch: a thin cover over `tokenizers`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = ["END", "PAD", "SILENCE", "THINK", "THINK_END", "DataTokenizer", "place_after", "train_tokenizer"]

SILENCE, END, PAD, THINK, THINK_END = "<silence>", "<end>", "<pad>", "<think>", "</think>"

_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s+"
"""Words with the space before them; digits and signs one by one."""


class DataTokenizer:
    """Turns segments into tokens.

    Args:
        tokenizer: Of the model that is to be trained.
        silence, end: Its tokens for silence and for the end of a turn.

    Raises:
        KeyError: It has no such token.
    """

    def __init__(self, tokenizer: Tokenizer, *, silence: str = SILENCE, end: str = END) -> None:
        self.tokenizer = tokenizer
        self.silence_id = self.id_of(silence)
        self.end_id = self.id_of(end)
        self.pad_id: int | None = tokenizer.token_to_id(PAD)
        self._known: dict[str, tuple[int, ...]] = {}

    @classmethod
    def read(cls, path: str | Path, *, silence: str = SILENCE, end: str = END) -> DataTokenizer:
        """From a `tokenizer.json`, or a folder that has one."""
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        return cls(Tokenizer.from_file(str(file)), silence=silence, end=end)

    def id_of(self, token: str) -> int:
        """Number of a token.

        Raises:
            KeyError: There is none of that name.
        """
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise KeyError(f"the tokenizer has no token {token!r}")
        return found

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of a text; those of short texts are remembered, for steps recur."""
        if len(text) > 24:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    @property
    def fingerprint(self) -> str:
        """Of all that decides which tokens a text has."""
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()[:16]


def place_after(mark: Sequence[int], ids: Sequence[int]) -> int | None:
    """Place of the token behind the first occurrence of a mark; None where it is not there.

    Args:
        mark: Tokens of a mark: one where a tokenizer was made for it, several of a stock model.
        ids: What it is looked for in.
    """
    for start in range(len(ids) - len(mark) + 1):
        if tuple(ids[start : start + len(mark)]) == tuple(mark):
            return start + len(mark)
    return None


def train_tokenizer(texts: Iterable[str], *, size: int, words: Iterable[str] = ()) -> Tokenizer:
    """An open vocabulary: words of the texts as they are, and bytes for everything else.

    Args:
        texts: What it is made from.
        size: Tokens in all, special ones included.
        words: Words that are to be whole, with a space before them.

    Returns:
        A tokenizer with which every Unicode string comes back as it was.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(name, special=True) for name in (PAD, SILENCE, END, THINK, THINK_END)]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    repeated = [f" {word}" for word in words for _ in range(200)]
    tokenizer.train_from_iterator([*texts, *repeated], trainer)
    return tokenizer

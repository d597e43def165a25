"""Sentences are the text again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.data.sentences import split_sentences


@given(text=st.text(alphabet="aB .!?\n\"')1", max_size=60))
def test_put_together_they_are_the_text(text: str) -> None:
    assert "".join(split_sentences(text)) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? Four", 4),
        ("Mr. Lee met Dr. Ann. They talked.", 2),
        ("It costs 2.5 euros. Fine.", 2),
        ("1. First\n2. Second\n", 2),
        ('She said "Go." He went.', 2),
        ("no end", 1),
        ("Really?! Yes...", 2),
    ],
)
def test_where_sentences_end(text: str, count: int) -> None:
    assert len(split_sentences(text)) == count

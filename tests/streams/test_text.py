"""Whole equals chunked, for every kind of tokenizer."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerFast

from braid.errors import InputError
from braid.model.codec import TokenizerCodec
from braid.streams.boundaries import Boundaries
from braid.streams.text import IncrementalDetokenizer, IncrementalTokenizer, boundaries_of
from tests.fakes import TOKENIZERS, unigram_tokenizer

WORDS = [
    "hello", "Hello,", "don't", "the", "12345", "2,048", "3.14", "x", "foo(bar);", "!", "!!", "?\n\n", ";\n", ":\n//\n",
    " ", "  ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "▁", "▁▁x", "☃",
    "☃\n",    "你好，世界。", "今天天气很好", "世", "你", "こんにちは", "がか\u3099", "مرحبا", "Здравствуй", "한국어",
    "\u1112\u1161\u11ab", "🙂", "👩‍👩‍👧", "🇩🇪", "👍🏽", "e\u0301", "e\u0301\u0323", "\u0301", "\u0301" * 20, "ﬁne", "Å",
    "\ufeff", "\x00", "\x1c", "豈",
    "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<0x41>", "<tool_call>", "<b>", "<b> ", "<|im_", "<unk>", "Ġ", "…",
]  # fmt: skip

texts = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=16).map("".join),
    st.lists(
        st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=10
    ).map("".join),
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
kinds = pytest.mark.parametrize("kind", TOKENIZERS)


@cache
def codec_of(kind: str) -> TokenizerCodec:
    return TokenizerCodec(TOKENIZERS[kind]())


@st.composite
def chunked(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@kinds
@quick
@given(case=chunked())
@example(case=("a!\n\n b", ["a!", "\n", "\n b"]))
@example(case=("你好世界", list("你好世界")))
@example(case=("x <b> \n y", list("x <b> \n y")))
@example(case=("x e\u0301\n\n x", list("x e\u0301\n\n x")))
@example(case=("☃\n\n☃ x", ["☃", "\n", "\n☃", " x"]))
def test_chunked_tokens_equal_whole(kind: str, case: tuple[str, list[str]]) -> None:
    codec, (text, chunks) = codec_of(kind), case
    tokenizer = IncrementalTokenizer(codec)
    tokens = [token for chunk in chunks for token in tokenizer.write(chunk)]
    seen = "".join(piece for _, piece in tokens) + tokenizer.held
    if kind != "unigram":  # whose normaliser can drop text that no token carries yet
        assert seen == text
    tokens += tokenizer.flush()
    assert [token for token, _ in tokens] == codec.encode(text)[0]
    assert tokenizer.held == ""
    if tokens and kind != "unigram":
        assert "".join(piece for _, piece in tokens) == text


@kinds
@quick
@given(text=texts)
def test_char_by_char_equals_whole(kind: str, text: str) -> None:
    codec = codec_of(kind)
    tokenizer = IncrementalTokenizer(codec)
    tokens = [token for char in text for token in tokenizer.write(char)] + tokenizer.flush()
    assert [token for token, _ in tokens] == codec.encode(text)[0]


@kinds
@quick
@given(parts=st.lists(texts, min_size=2, max_size=4))
def test_text_survives_forced_flushes(kind: str, parts: list[str]) -> None:
    tokenizer = IncrementalTokenizer(codec_of(kind))
    tokens = [token for part in parts for token in (*tokenizer.write(part), *tokenizer.flush())]
    if kind != "unigram":
        assert "".join(piece for _, piece in tokens) == "".join(parts)


def test_flush_in_mid_word_adds_no_space() -> None:
    for kind in ("llama2", "mistral", "metaspace-split"):
        codec = codec_of(kind)
        tokenizer = IncrementalTokenizer(codec)
        tokens = [*tokenizer.write("hel"), *tokenizer.flush(), *tokenizer.write("lo"), *tokenizer.flush()]
        assert codec.decode([token for token, _ in tokens]) == "hello", kind


def test_text_before_stops_the_prefix_space() -> None:
    codec = codec_of("llama2")
    fresh = IncrementalTokenizer(codec)
    after = IncrementalTokenizer(codec, before="user\n")
    assert codec.piece((fresh.write("hello") + fresh.flush())[0][0]) == "▁hello"
    assert codec.piece((after.write("hello") + after.flush())[0][0]) != "▁hello"


def test_words_are_released_at_the_next_space() -> None:
    tokenizer = IncrementalTokenizer(codec_of("gpt2"))
    assert tokenizer.write("the quick") == [(codec_of("gpt2").encode("the")[0][0], "the")]
    assert tokenizer.held == " quick"
    assert "".join(piece for _, piece in tokenizer.write(" fox")) == " quick"
    assert tokenizer.held == " fox"


def test_ideographs_are_released_without_spaces() -> None:
    tokenizer = IncrementalTokenizer(codec_of("qwen"))
    released = "".join(piece for char in "水火木金土山川田人口" for _, piece in tokenizer.write(char))
    assert released.startswith("水火木金土山川田")


def test_models_that_weigh_whole_words_are_cut_between_words_only() -> None:
    codec = codec_of("unigram")
    tokenizer = IncrementalTokenizer(codec)
    assert tokenizer.write("水火木金") == []
    assert "".join(piece for _, piece in tokenizer.write(" x")) == "水火木金"
    tokenizer = unigram_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = Metaspace(split=False)
    assert IncrementalTokenizer(TokenizerCodec(tokenizer)).write("the quick fox") == []


def test_pairs_in_the_vocabulary_are_not_cut() -> None:
    codec = codec_of("llama3")
    boundaries = boundaries_of(codec)
    assert boundaries is boundaries_of(codec)
    assert boundaries.is_joined("!", "\n")
    assert not boundaries.is_joined("!", " ")
    assert not boundaries.is_joined("水", "\n")
    tokenizer = IncrementalTokenizer(codec)
    assert tokenizer.write("!\n") == []
    assert tokenizer.held == "!\n"


def test_fragments_of_characters_join_all_that_they_could_be() -> None:
    boundaries = Boundaries([b"\xbd\xa0\n", "你好".encode(), "水".encode() + b"\xe7"])
    assert boundaries.is_joined("你", "\n")  # ends in bd a0
    assert not boundaries.is_joined("好", "\n")
    assert boundaries.is_joined("你", "好")
    assert boundaries.is_joined("水", "火"[:1]) == ("火".encode()[0] == 0xE7)


@pytest.mark.parametrize("kind", ["byte", "gpt2", "llama3", "llama2", "gemma", "unigram"])
@pytest.mark.parametrize(
    "unit", ["The fox, 12 apples; don't!\n\n", "no_space_at_all", "你好世界今天", "👍🏽\n"]
)
def test_cost_is_linear(kind: str, unit: str) -> None:
    codec, text = codec_of(kind), unit * (12_000 // len(unit))
    boundaries_of(codec)
    tokenizer = IncrementalTokenizer(codec)
    start = time.perf_counter()
    tokens = [token for char in text for token in tokenizer.write(char)] + tokenizer.flush()
    assert time.perf_counter() - start < 3
    assert [token for token, _ in tokens] == codec.encode(text)[0]


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InputError, match="surrogate at character 1"):
        IncrementalTokenizer(codec_of("byte")).write("a\ud800")


@kinds
@quick
@given(data=st.data())
def test_detokenised_pieces_equal_decoding_at_once(kind: str, data: st.DataObject) -> None:
    codec = codec_of(kind)
    some = st.integers(0, codec.vocab_size - 1)
    whole = texts.map(lambda text: codec.encode(text)[0])
    ids = [i for part in data.draw(st.lists(st.lists(some, max_size=6) | whole, max_size=4)) for i in part]
    detokenizer = IncrementalDetokenizer(codec)
    pieces = [detokenizer.push(token) for token in ids] + [detokenizer.flush()]
    assert "".join(pieces) == codec.decode(ids)


def test_tokens_without_text_do_not_make_a_new_start() -> None:
    backend = Tokenizer(BPE(vocab={"": 0, "▁a": 1}, merges=[]))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    codec = TokenizerCodec(PreTrainedTokenizerFast(tokenizer_object=backend))
    detokenizer = IncrementalDetokenizer(codec)
    assert [detokenizer.push(token) for token in (1, 0, 1)] == ["a", "", " a"]


def test_characters_are_never_split() -> None:
    codec = codec_of("byte")
    detokenizer = IncrementalDetokenizer(codec)
    assert [detokenizer.push(token) for token in codec.encode("é🙂")[0]] == ["", "é", "", "", "", "🙂"]
    assert detokenizer.push(0xF0) == ""
    assert detokenizer.flush() == "\ufffd"


def test_detokeniser_is_linear() -> None:
    for kind in ("byte", "llama2", "unigram"):
        codec = codec_of(kind)
        ids = codec.encode("the fox 🙂 " * 2_000)[0]
        detokenizer = IncrementalDetokenizer(codec)
        start = time.perf_counter()
        text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert time.perf_counter() - start < 3
        assert text == codec.decode(ids)

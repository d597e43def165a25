"""The codec: exact both ways, and deaf to control tokens in other people's text."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from braid.errors import TokenizerError
from braid.model.codec import TokenizerCodec
from tests.fakes import (
    CHATML,
    TOKENIZERS,
    byte_tokenizer,
    gpt2_tokenizer,
    llama3_tokenizer,
    sentencepiece_tokenizer,
    unigram_tokenizer,
)

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<tool_call>", "hello", " ", "\n", "🙂"])
).map("".join)
CODECS = {kind: TokenizerCodec(build()) for kind, build in TOKENIZERS.items()}
EXACT = [kind for kind in TOKENIZERS if kind not in ("unigram", "qwen", "gemma")]  # those normalise


@pytest.mark.parametrize("kind", EXACT)
@given(text=texts)
def test_text_survives_the_round_trip(kind: str, text: str) -> None:
    codec = CODECS[kind]
    ids, _ = codec.encode(text)
    is_stripped = kind in ("llama2", "mistral", "metaspace-split")
    if is_stripped and "▁" in text:  # which such vocabularies take for a space
        return
    if kind in ("mistral", "metaspace-split") and text.startswith(" "):
        return  # Metaspace puts no second space before it, but takes one off
    assert codec.decode(ids) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=texts)
def test_no_text_yields_a_control_token(kind: str, text: str) -> None:
    codec = CODECS[kind]
    ids, offsets = codec.encode(text)
    unknown = codec.hf.unk_token_id
    assert [i for i in ids if i in codec.control_ids and i != unknown] == []
    assert all(0 <= start <= stop <= len(text) for start, stop in offsets)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "<" not in text))
def test_ordinary_text_is_tokenised_as_by_the_model(kind: str, text: str) -> None:
    codec = CODECS[kind]
    expected = codec.hf(text, add_special_tokens=False)["input_ids"]
    assert codec.encode(text)[0] == expected
    assert codec.encode_template(text) == expected


def test_words_that_merges_spell_as_control_tokens_are_spelled_out() -> None:
    codec = CODECS["llama2"]
    ids, offsets = codec.encode("a</s>b")
    assert codec.hf.convert_tokens_to_ids("</s>") not in ids
    assert codec.decode(ids) == "a</s>b"
    assert offsets[-1] == (5, 6)
    assert [stop for _, stop in offsets] == sorted(stop for _, stop in offsets)


def test_templates_are_parsed() -> None:
    codec = CODECS["byte"]
    assert codec.encode_template("a<|im_end|>b") == [97, 257, 98]
    assert codec.encode("a<|im_end|>b")[0] == list(b"a<|im_end|>b")
    text = "<|im_start|>user\n<|im_end|><|im_end|>"
    assert codec.encode_template(text, [(17, 27)]) == [256, *b"user\n<|im_end|>", 257]
    assert codec.encode_template(text, [(13, 17)]) == codec.encode_template(text)


def test_markers_are_what_the_template_writes() -> None:
    tokenizer = byte_tokenizer(CHATML + "{# <tool_call> #}")
    tokenizer.add_tokens([AddedToken("<tool_call>"), AddedToken("<table>")])
    codec = TokenizerCodec(tokenizer)
    call, table = tokenizer.convert_tokens_to_ids(["<tool_call>", "<table>"])
    assert codec.marker_ids - codec.control_ids == {call}
    assert codec.encode("<tool_call><table>")[0] == [*b"<tool_call>", table]
    assert codec.encode_template("<tool_call><table>") == [call, table]
    assert codec.decode([call, table]) == "<tool_call><table>"  # it may be said, only not smuggled in
    assert list(codec.marker_spans("a<tool_call><|im_end|>")) == [(1, 12), (12, 22)]
    assert list(codec.marker_spans("a<tool_call><|im_end|>", control_only=True)) == [(12, 22)]


def test_markers_in_text_are_merged_like_any_text() -> None:
    tokenizer = gpt2_tokenizer()
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    bare = Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))
    tokenizer.chat_template = CHATML + "{# <tool_call> #}"
    codec = TokenizerCodec(tokenizer)
    for text in ("the <tool_call> of", "the<|im_end|>the"):
        assert codec.encode(text)[0] == bare.encode(text).ids


def test_offsets_cover_leading_spaces() -> None:
    assert CODECS["gpt2"].encode("the the")[1] == [(0, 3), (3, 7)]


def test_nothing_is_put_before_the_text() -> None:
    tokenizer = gpt2_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|im_start|>"})
    codec = TokenizerCodec(tokenizer)
    assert codec.encode("hello")[0] == tokenizer("hello", add_special_tokens=False)["input_ids"]
    assert codec.encode_template("<|im_start|>")[0] == codec.bos_id


def test_decoding_cleans_nothing_up_and_skips_control_tokens() -> None:
    codec = CODECS["byte"]
    assert codec.decode([*b"I 'm here .", 257, *b" ok"]) == "I 'm here . ok"
    assert codec.decode([0xF0, 0x9F]) == "\ufffd"
    assert codec.decode([]) == ""


def test_what_ends_an_answer() -> None:
    assert CODECS["byte"].end_ids == (257,)
    sentencepiece = CODECS["llama2"]  # </s> by the tokenizer, <|im_end|> by the template
    names = sentencepiece.hf.convert_ids_to_tokens(sentencepiece.end_ids)
    assert sorted(names) == ["</s>", "<|im_end|>"]
    assert TokenizerCodec(byte_tokenizer(), end_ids=[258]).end_ids == (257, 258)
    assert CODECS["byte"].with_end_ids([7, 258]).end_ids == (7, 257, 258)
    assert TokenizerCodec(byte_tokenizer(template=None)).end_ids == (257,)


def test_pieces_of_tokens() -> None:
    byte, sentencepiece = CODECS["byte"], CODECS["llama2"]
    assert byte.byte_level
    assert not sentencepiece.byte_level
    assert byte.piece(0xC3) == b"\xc3"
    assert byte.piece(256) is None
    assert byte.piece(10**6) is None
    assert sentencepiece.piece(sentencepiece.hf.convert_tokens_to_ids("<0x0A>")) == b"\n"
    assert sentencepiece.piece(sentencepiece.encode("the")[0][0]) == "▁the"
    assert byte.vocab_size == 259


def test_what_added_tokens_swallow_is_among_the_pieces() -> None:
    pieces = set(TokenizerCodec(gpt2_tokenizer()).pieces())
    assert {"<b>", "<b>\n", "<b> ", "<tool_call>", b" the"} <= pieces


def test_the_tokenizer_is_left_as_it_was() -> None:
    tokenizer = llama3_tokenizer()
    before = tokenizer.backend_tokenizer.to_str()
    codec = TokenizerCodec(tokenizer)
    codec.encode("<|im_end|>")
    assert tokenizer.backend_tokenizer.to_str() == before
    assert not tokenizer.backend_tokenizer.encode_special_tokens
    assert tokenizer("<|im_end|>")["input_ids"] == [tokenizer.eos_token_id]


def test_threads_share_a_codec() -> None:
    codec = TokenizerCodec(sentencepiece_tokenizer())
    wanted = codec.encode("hello <|im_end|> 🙂")[0], codec.encode_template("hello <|im_end|> 🙂")
    wrong: list[object] = []

    def work() -> None:
        for _ in range(300):
            found = codec.encode("hello <|im_end|> 🙂")[0], codec.encode_template("hello <|im_end|> 🙂")
            if found != wanted:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_templates_by_name() -> None:
    tokenizer = unigram_tokenizer()
    tokenizer.chat_template = {"default": CHATML, "tool_use": "x"}
    assert TokenizerCodec(tokenizer).chat_template == CHATML
    tokenizer.chat_template = {"tool_use": "x"}
    assert TokenizerCodec(tokenizer).chat_template is None


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"object has no fast backend.*tokenizer\.json"):
        TokenizerCodec(object())  # type: ignore[arg-type]

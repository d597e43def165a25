"""Grammars over vocabularies: all that a mask lets through is accepted, and all that is accepted is let through."""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import threading
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.errors import SamplingError, UnsupportedByBackend
from braid.model.codec import TokenizerCodec
from braid.model.grammar import GrammarCompiler, Matcher
from braid.model.vocabulary import Vocabulary
from braid.streams.grammar import Grammar
from braid.streams.text import IncrementalDetokenizer
from tests.fakes import TOKENIZERS, byte_tokenizer, qwen_tokenizer
from tests.properties import examples

CODECS = {kind: TokenizerCodec(build()) for kind, build in TOKENIZERS.items()}
EXTRA = 7
COMPILERS = {
    kind: GrammarCompiler(codec, vocab_size=codec.vocab_size + EXTRA, silence_id=codec.vocab_size + 3)
    for kind, codec in CODECS.items()
}
DROPS_SPACE = {"llama2", "mistral", "metaspace-split", "unigram"}
SPELLS_ALL = [
    kind for kind in TOKENIZERS if kind != "unigram"
]  # which has no bytes for what it does not know
PATIENCE = 60


def babble(codec: TokenizerCodec, matcher: Matcher, seed: int) -> list[int]:
    """Random tokens under the mask, until an end token; after a while whatever closes what is open is preferred."""
    rng, said = random.Random(seed), list[int]()
    while True:
        allowed_V = matcher.allowed()
        ends = [i for i in codec.end_ids if allowed_V[i]]
        assert bool(ends) == matcher.is_complete
        tokens = [
            int(i) for i in np.flatnonzero(allowed_V) if i not in codec.end_ids and i < codec.vocab_size
        ]
        assert matcher.must_end == (not tokens)
        if ends and (not tokens or len(said) > PATIENCE or rng.random() < 0.2):
            matcher.consume(rng.choice(ends))
            return said
        token = rng.choice(tokens)
        if len(said) > PATIENCE:
            closers = [i for mark in '}]"' for i in tokens if codec.decode([i]) == mark]
            token = rng.choice(closers or [token])
        matcher.consume(token)
        said.append(token)
        assert len(said) < 2000, "it goes on for ever"


def streamed(codec: TokenizerCodec, tokens: list[int]) -> str:
    """The text of tokens, as a session shows it: whole characters as they come."""
    detokenizer = IncrementalDetokenizer(codec)
    text = "".join([*(detokenizer.push(token) for token in tokens), detokenizer.flush()])
    assert text == codec.decode(tokens)
    return text


def said_by(kind: str, grammar: Grammar, seed: int) -> str:
    codec = CODECS[kind]
    return streamed(codec, babble(codec, COMPILERS[kind].compile(grammar), seed))


# ---- what is let through is accepted

literals = st.text('ab é☃🙂你-.\n"\\/{', min_size=1, max_size=4)
atoms = literals.map(lambda text: f"(?:{re.escape(text)})") | st.sampled_from(
    ["[a-z]", "[^ab]", ".", "[0-9]{1,3}", "[é☃ ]", r"\+", "(?i:the)", "[^\n]"]
)
expressions = st.recursive(
    atoms,
    lambda each: st.one_of(
        st.lists(each, min_size=1, max_size=3).map("".join),
        st.lists(each, min_size=2, max_size=3).map(lambda several: f"(?:{'|'.join(several)})"),
        st.tuples(each, st.sampled_from(["?", "{2}", "{0,3}", "{1,4}?"])).map(lambda t: f"(?:{t[0]}){t[1]}"),
    ),
    max_leaves=5,
)
# What is repeated without end stands last, where chance finds the end soon.
expressions = st.builds(str.__add__, expressions, st.sampled_from(["", "[a-z é]*", "(?:ab|☃)+", ".*?"]))


@pytest.mark.parametrize("kind", SPELLS_ALL)
@settings(max_examples=examples(40))
@given(pattern=expressions, seed=st.integers(0, 2**32))
def test_text_under_a_regex_matches_it(kind: str, pattern: str, seed: int) -> None:
    text = said_by(kind, Grammar(regex=pattern), seed)
    assert re.fullmatch(pattern, text), (pattern, text)


names = st.sampled_from(["a", "name", "é", "a b", 'q"', "🙂"])
leaves = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    st.sampled_from([True, {}, {"type": ["string", "null"]}]),
    st.lists(st.integers(-5, 5) | st.booleans() | st.none() | names, min_size=1, max_size=3).map(
        lambda v: {"enum": v}
    ),
    st.integers(-3, 3).map(lambda n: {"type": "integer", "minimum": n, "maximum": n + 20}),
    st.sampled_from(
        [
            {"type": "string", "minLength": 2, "maxLength": 5},
            {"type": "string", "pattern": "^[a-c]+$"},
            {"type": "string", "format": "date"},
            {"const": {"x": [1, "é"]}},
        ]
    ),
)


def objects(each: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def build(properties: dict[str, Any], required: list[bool], more: bool) -> dict[str, Any]:
        wanted = [name for name, flag in zip(properties, required, strict=False) if flag]
        fields = {"type": "object", "properties": properties, "required": wanted}
        return fields | ({} if more else {"additionalProperties": False})

    parts = st.dictionaries(names, each, max_size=3), st.lists(st.booleans(), max_size=3), st.booleans()
    return st.builds(build, *parts)


schemas = st.recursive(
    leaves,
    lambda each: st.one_of(
        objects(each),
        st.builds(
            lambda items, n: {"type": "array", "items": items, "minItems": n, "maxItems": n + 2},
            each,
            st.integers(0, 2),
        ),
        st.lists(each, min_size=2, max_size=2).map(lambda several: {"anyOf": several}),
    ),
    max_leaves=5,
).filter(lambda schema: isinstance(schema, dict))


@pytest.mark.parametrize("kind", SPELLS_ALL)
@settings(max_examples=examples(30))
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_text_under_a_schema_fits_it(kind: str, schema: dict[str, Any], seed: int) -> None:
    text = said_by(kind, Grammar(json_schema=schema), seed)
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("kind", SPELLS_ALL)
@pytest.mark.parametrize("schema", [True, {}])
@settings(max_examples=examples(20))
@given(seed=st.integers(0, 2**32))
def test_any_json_is_json(kind: str, schema: Any, seed: int) -> None:
    json.loads(said_by(kind, Grammar(json_schema=schema), seed))


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=examples(20))
@given(seed=st.integers(0, 2**32))
def test_text_under_a_lark_grammar_is_derived_from_it(kind: str, seed: int) -> None:
    lark = 'start: "the " sum\nsum: digits ("of" digits)*\ndigits: "is" | /a+/\n'
    text = said_by(kind, Grammar(lark=lark), seed)
    assert re.fullmatch("the (is|a+)(of(is|a+))*", text), text


def test_white_space_has_an_end() -> None:
    matcher = COMPILERS["byte"].compile(Grammar(json_schema={"type": "object"}))
    matcher.consume(ord("{"))
    num_spaces = 0
    while matcher.allowed()[ord("\n")] or matcher.allowed()[ord(" ")]:
        matcher.consume(ord("\n") if matcher.allowed()[ord("\n")] else ord(" "))
        num_spaces += 1
        assert num_spaces < 50
    free = Grammar(json_schema={"type": "object", "x-guidance": {"whitespace_pattern": r"[ ]+"}})
    matcher = COMPILERS["byte"].compile(free)
    for token in b"{" + b" " * 200:
        matcher.consume(token)


# ---- all that is accepted is let through

WORDS = ["", "a", " a", "  a", "the", " the", "the fox", "é", "thé", " "]


def segmentations(vocabulary: Vocabulary, text: bytes) -> list[list[int]]:
    """Every way to cut bytes into tokens."""
    found: dict[int, list[list[int]]] = {0: [[]]}
    for stop in range(1, len(text) + 1):
        found[stop] = [
            [*before, token]
            for token, piece in enumerate(vocabulary.bytes_V)
            if piece and text[:stop].endswith(piece)
            for before in found[stop - len(piece)]
        ]
    return found[len(text)]


def accepted(matcher: Matcher, codec: TokenizerCodec, said: tuple[int, ...] = ()) -> set[tuple[int, ...]]:
    """Every sequence of tokens that the masks lead to the end."""
    found = {said} if matcher.is_complete else set()
    for token in np.flatnonzero(matcher.allowed()):
        if token not in codec.end_ids and token < codec.vocab_size:
            after = matcher.copy()
            after.consume(int(token))
            found |= accepted(after, codec, (*said, int(token)))
    return found


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_masks_lead_to_every_spelling_of_every_text_and_to_no_other(kind: str) -> None:
    codec = CODECS[kind]
    vocabulary = Vocabulary.of(codec, codec.vocab_size)
    words = [word for word in WORDS if kind != "unigram" or "é" not in word]
    cuts = [
        tuple(cut)
        for word in words
        for first in ("", " ")
        for cut in segmentations(vocabulary, (first + word).encode())
    ]
    expected = {cut for cut in cuts if codec.decode(cut) in words}
    assert {codec.decode(cut) for cut in expected} == set(words)
    matcher = COMPILERS[kind].compile(Grammar(regex="|".join(words)))
    assert accepted(matcher, codec) == expected


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_after_a_prefix_a_space_is_a_space(kind: str) -> None:
    codec = CODECS[kind]
    words = ["a", " a"]
    before = codec.encode("the")[0]
    for word in words:
        matcher = COMPILERS[kind].compile(Grammar(regex=word), at_start=False)
        found = accepted(matcher, codec)
        assert found
        assert {codec.decode([*before, *cut]) for cut in found} == {f"the{word}"}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_bytes_of_a_vocabulary_are_what_decoding_makes_of_them(kind: str) -> None:
    codec = CODECS[kind]
    vocabulary = Vocabulary.of(codec, codec.vocab_size + 2)
    assert vocabulary.size == codec.vocab_size + 2
    assert bool(vocabulary.drops_space_V.any()) == (kind in DROPS_SPACE)
    ids = codec.encode("the quick dog  sleeps (hello) [hello]")[0]
    joined = b"".join(vocabulary.bytes_V[i] for i in ids)
    start = 1 if vocabulary.drops_space_V[ids[0]] else 0
    assert joined[start:].decode() == codec.decode(ids)
    for token in (*codec.marker_ids, *codec.end_ids, codec.vocab_size, codec.vocab_size + 1):
        assert vocabulary.bytes_V[token] == b""


# ---- ends, silence, control tokens


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_control_tokens_and_empty_classes_are_never_allowed(kind: str) -> None:
    codec, compiler = CODECS[kind], COMPILERS[kind]
    silence = codec.vocab_size + 3
    matcher = compiler.compile(Grammar(regex="(?:.|\n)*"))
    allowed_V = matcher.allowed()
    assert allowed_V.shape == (codec.vocab_size + EXTRA,)
    assert allowed_V.dtype == np.bool_
    assert set(np.flatnonzero(allowed_V[codec.vocab_size :])) == {3}
    assert not allowed_V[sorted(codec.marker_ids - set(codec.end_ids))].any()
    assert allowed_V[list(codec.end_ids)].all()
    before = allowed_V.copy()
    matcher.consume(silence)
    assert (matcher.allowed() == before).all()


def test_end_tokens_only_where_the_text_is_complete() -> None:
    codec = CODECS["llama2"].with_end_ids([482])
    matcher = GrammarCompiler(codec).compile(Grammar(regex="(?:ab)?|abc"))
    assert len(codec.end_ids) == 3
    for text, is_complete, must_end in [
        ("", True, False),
        ("a", False, False),
        ("b", True, False),
        ("c", True, True),
    ]:
        if text:
            matcher.consume(
                next(int(i) for i in np.flatnonzero(matcher.allowed()) if codec.decode([0, i]) == text)
            )
        assert (matcher.is_complete, matcher.must_end) == (is_complete, must_end)
        assert matcher.allowed()[list(codec.end_ids)].all() == is_complete
        assert matcher.allowed()[list(codec.end_ids)].any() == is_complete
    matcher.consume(codec.end_ids[1])
    assert (matcher.is_complete, matcher.must_end) == (True, True)
    assert not matcher.allowed().any()
    with pytest.raises(SamplingError, match="after the end of its text"):
        matcher.consume(codec.end_ids[0])


def test_a_model_without_an_end_token_must_still_end() -> None:
    tokenizer = byte_tokenizer(template=None)
    tokenizer.eos_token = None
    codec = TokenizerCodec(tokenizer)
    assert codec.end_ids == ()
    matcher = GrammarCompiler(codec).compile(Grammar(regex="a"))
    matcher.consume(ord("a"))
    assert matcher.must_end
    assert not matcher.allowed().any()


def test_a_token_that_is_not_allowed_is_refused_and_changes_nothing() -> None:
    codec, matcher = CODECS["byte"], COMPILERS["byte"].compile(Grammar(regex="abc"))
    matcher.consume(ord("a"))
    before = matcher.allowed()
    for token in (ord("x"), 256, 257, codec.vocab_size, codec.vocab_size + 100, -1):
        with pytest.raises(SamplingError, match=rf"does not allow token {token}\b.* after 'a'"):
            matcher.consume(token)
    assert matcher.allowed() is before
    matcher.consume(ord("b"))
    assert list(np.flatnonzero(matcher.allowed())) == [ord("c"), codec.vocab_size + 3]


def test_a_mask_that_was_given_out_stays_as_it_was() -> None:
    matcher = COMPILERS["byte"].compile(Grammar(regex="ab"))
    first = matcher.allowed()
    kept = first.copy()
    matcher.consume(ord("a"))
    matcher.allowed()
    assert (first == kept).all()
    assert first.flags.writeable, "torch takes no other array without a warning"


# ---- copies, rollback, threads


@pytest.mark.parametrize("kind", ["byte", "gpt2", "llama2", "mistral", "gemma"])
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32), at=st.integers(0, 8))
def test_copies_are_independent(kind: str, seed: int, at: int) -> None:
    compiler, codec = COMPILERS[kind], CODECS[kind]
    grammar = Grammar(json_schema={"type": "array", "items": {"enum": ["a", "é", 12]}, "maxItems": 4})
    whole = babble(codec, compiler.compile(grammar), seed)
    matcher = compiler.compile(grammar)
    for token in whole[:at]:
        matcher.consume(token)
    twin = matcher.copy()
    others = whole[:at] + babble(codec, twin, seed + 1)
    assert twin.must_end
    for token in whole[at:]:
        matcher.consume(token)
    assert matcher.is_complete
    for tokens in (whole, others):
        jsonschema.validate(
            json.loads(codec.decode(tokens)), {"type": "array", "items": {"enum": ["a", "é", 12]}}
        )


@pytest.mark.parametrize("kind", ["byte", "gpt2", "llama2", "mistral", "gemma"])
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32), data=st.data())
def test_what_is_rolled_back_never_was(kind: str, seed: int, data: st.DataObject) -> None:
    compiler, codec = COMPILERS[kind], CODECS[kind]
    grammar = Grammar(regex=" ?(?:the |é){1,3}")
    tokens = [*babble(codec, compiler.compile(grammar), seed), codec.end_ids[0]]
    matcher = compiler.compile(grammar)
    masks = [matcher.allowed()]
    for token in tokens:
        matcher.consume(token)
        masks.append(matcher.allowed())
    at = len(tokens)
    for _ in range(3):
        back = data.draw(st.integers(0, at))
        matcher.rollback(back)
        at -= back
        assert (matcher.allowed() == masks[at]).all()
        forth = data.draw(st.integers(0, len(tokens) - at))
        for token in tokens[at : at + forth]:
            matcher.consume(token)
        at += forth
        assert (matcher.allowed() == masks[at]).all()


def test_threads_share_a_compiler() -> None:
    codec = CODECS["gpt2"]
    compiler = GrammarCompiler(codec)
    grammar = Grammar(json_schema={"type": "array", "items": {"type": "integer"}})
    texts: dict[int, str] = {}

    def work(seed: int) -> None:
        texts[seed] = codec.decode(babble(codec, compiler.compile(grammar), seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = {seed: codec.decode(babble(codec, compiler.compile(grammar), seed)) for seed in range(8)}
    assert texts == alone


def test_a_grammar_is_compiled_once_and_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from braid.model import grammar as room

    compiled: list[str] = []
    true_compile = room._compile

    def compile_and_tell(grammar: Grammar, *args: Any, **more: Any) -> Any:
        compiled.append(grammar.source)
        return true_compile(grammar, *args, **more)

    monkeypatch.setattr(room, "_compile", compile_and_tell)
    monkeypatch.setattr(room, "_NUM_CACHED", 2)
    compiler = GrammarCompiler(CODECS["byte"])
    for source in ("a", "b", "a", "c", "a", "b"):
        compiler.compile(Grammar(regex=source))
    assert compiled == ["a", "b", "c", "b"]


# ---- refusals


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar(regex="(?a)b"), ["regex", "'(?a)b'", "cannot be compiled"]),
        (Grammar(json_schema={"not": {}}), ["json_schema", "cannot be compiled", "not"]),
        (Grammar(json_schema={"uniqueItems": True, "type": "array"}), ["uniqueItems"]),
        (Grammar(json_schema={"$ref": "http://x/y"}), ["http://x/y"]),
        (Grammar(json_schema={"type": "string", "minLength": 3, "maxLength": 1}), ["minLength"]),
        (Grammar(json_schema={"x-guidance": {"whitespace": 1}}), ["cannot be compiled", "whitespace"]),
        (
            Grammar(json_schema={"type": "object", "properties": {"a": False}, "required": ["a"]}),
            ["json_schema"],
        ),
        (Grammar(lark="start: other"), ["lark", "other"]),
        (Grammar(lark='start: <|im_start|> "a"'), ["lark", "im_start"]),
        (Grammar(lark="start: <[256]>"), ["lark", "can be spelled", "dead end", "at the start"]),
        (Grammar(lark="start: start"), ["lark", "can be spelled"]),
    ],
)
def test_what_cannot_be_compiled(grammar: Grammar, words: list[str]) -> None:
    with pytest.raises(SamplingError) as caught:
        COMPILERS["byte"].compile(grammar)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "non-verbose" not in str(caught.value)


def test_what_a_vocabulary_cannot_spell() -> None:
    compiler, codec = COMPILERS["unigram"], CODECS["unigram"]
    with pytest.raises(SamplingError, match=r"'☃'.*can be spelled.*dead end"):
        compiler.compile(Grammar(regex="☃"), at_start=False)
    matcher = compiler.compile(Grammar(regex="the☃"))
    while True:
        try:
            allowed_V = matcher.allowed()
        except SamplingError as error:
            found = str(error)
            break
        matcher.consume(next(int(i) for i in np.flatnonzero(allowed_V) if i < codec.vocab_size))
    assert re.search(r"dead end after 'the'.*tokens spell", found)


def test_a_limit_that_is_met_in_the_middle_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar whose states would fill the memory is given up, and no other suffers."""
    monkeypatch.setattr("braid.model.grammar._MAX_STATES", 3000)
    matcher = COMPILERS["byte"].compile(Grammar(regex="(?:[ab]*a[ab]{14})*c"))
    rng = random.Random(0)

    def say_much() -> None:
        for _ in range(100_000):
            matcher.consume(rng.choice(b"ab"))

    with pytest.raises(SamplingError, match=r"dead end after .*too many states.*simpler"):
        say_much()
    assert COMPILERS["byte"].compile(Grammar(regex="a")).allowed()[ord("a")]


def test_markers_are_allowed_where_they_are_named() -> None:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = f"{tokenizer.chat_template}{{# <tool_call> #}}"
    codec = TokenizerCodec(tokenizer)
    marker = codec.hf.convert_tokens_to_ids("<tool_call>")
    assert marker in codec.marker_ids - codec.control_ids
    compiler = GrammarCompiler(codec)
    matcher = compiler.compile(Grammar(lark='start: <tool_call> "a"'))
    assert list(np.flatnonzero(matcher.allowed())) == [marker]
    matcher.consume(marker)
    assert not matcher.allowed()[marker]
    assert not compiler.compile(Grammar(regex=".*")).allowed()[marker]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedByBackend, match="pip install llguidance"):
        GrammarCompiler(CODECS["byte"]).compile(Grammar(regex="a"))


# ---- the default model's vocabulary


@pytest.fixture(scope="module")
def smollm2_codec() -> TokenizerCodec:
    from transformers import AutoTokenizer

    from braid.model.loading import ensure_local

    return TokenizerCodec(AutoTokenizer.from_pretrained(ensure_local("smollm2-135m")))


@pytest.fixture(scope="module")
def smollm2_compiler(smollm2_codec: TokenizerCodec) -> GrammarCompiler:
    return GrammarCompiler(smollm2_codec)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(6))
def test_the_default_vocabulary(
    smollm2_codec: TokenizerCodec, smollm2_compiler: GrammarCompiler, seed: int
) -> None:
    def say(grammar: Grammar) -> str:
        matcher = smollm2_compiler.compile(grammar)
        return streamed(smollm2_codec, babble(smollm2_codec, matcher, seed))

    jsonschema.validate(json.loads(say(Grammar(json_schema=PERSON))), PERSON)
    json.loads(say(Grammar(json_schema=True)))
    pattern = "[A-Z][a-zé🙂]+(?: [^ ]{1,9}){1,3}[.!?]"
    text = say(Grammar(regex=pattern))
    assert re.fullmatch(pattern, text), text


def test_a_mask_takes_no_time(smollm2_codec: TokenizerCodec, smollm2_compiler: GrammarCompiler) -> None:
    """Under 0.3 ms for 49k classes: less than a hundredth of what a row of the network takes."""
    rng, times = random.Random(0), list[float]()
    for _ in range(10):
        matcher = smollm2_compiler.compile(Grammar(json_schema=PERSON))
        for _ in range(40):
            start = time.perf_counter()
            allowed_V = matcher.allowed()
            times.append(time.perf_counter() - start)
            if matcher.must_end:
                break
            ids = np.flatnonzero(allowed_V)
            matcher.consume(int(rng.choice([i for i in ids if i not in smollm2_codec.end_ids])))
    print(f"{1e3 * statistics.median(times):.3f} ms a mask")
    assert statistics.median(times) < 0.3e-3

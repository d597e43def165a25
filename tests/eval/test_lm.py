"""lm-eval's interface: likelihoods are those of `transformers`, answers those of sessions; the rest is refused."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.errors import ContextOverflowError, InputError, SamplingError, UnsupportedByBackend
from braid.eval import likelihood, lm
from braid.eval.answering import Wish, wished
from braid.eval.likelihood import Likelihood
from braid.eval.lm import BraidLM, wish_of
from braid.model.attention import ATTENTION
from braid.model.model import Model
from braid.sessions.generate import generate
from braid.streams.presets import topology as preset
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from tests.engine.harness import SILENCE, stock, trained

THOUGHTFUL = Topology(
    decoding="views",
    streams={
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal", max_tokens=5),
        "output": StreamSpec(direction="output", wait_k="end"),
    },
)
ROWS = Topology(
    streams={
        "user": StreamSpec(direction="input"),
        "output": StreamSpec(direction="output", sampling=SamplingSpec(logit_bias={SILENCE: -100.0})),
    }
)
LETTERS = StreamSpec(direction="output", wait_k="end", sampling=SamplingSpec(logit_bias={97: 100.0}))


class FakeLM(ABC):
    """As much of `lm_eval.api.model.LM` as `lm_eval.simple_evaluate` relies on."""

    def __init__(self) -> None:
        self._rank, self._world_size = 0, 1
        self.cache_hook = SimpleNamespace(add_partial=self._note)
        self.remembered: list[tuple[Any, ...]] = []

    def _note(self, *what: Any) -> None:
        self.remembered.append(what)

    @property
    def rank(self) -> int:
        return self._rank

    @abstractmethod
    def loglikelihood(self, requests: Any) -> Any: ...

    @abstractmethod
    def loglikelihood_rolling(self, requests: Any) -> Any: ...

    @abstractmethod
    def generate_until(self, requests: Any) -> Any: ...


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, type]]:
    """A small lm-eval: its interface, and a registry that says what is in it."""
    known: dict[str, type] = {}
    interface, registry = ModuleType("lm_eval.api.model"), ModuleType("lm_eval.api.registry")
    vars(interface)["LM"] = FakeLM
    vars(registry)["register_model"] = lambda name: lambda made: known.setdefault(name, made)
    for name, module in (("lm_eval", ModuleType("lm_eval")), ("lm_eval.api", ModuleType("lm_eval.api"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", interface)
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", registry)
    lm.register.cache_clear()
    yield known
    lm.register.cache_clear()


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each) for each in arguments]


def log_probability(model: Model, before: Sequence[int], said: Sequence[int]) -> tuple[float, bool]:
    """From the logits of the network's own attention, on the whole sequence at once."""
    model.hf.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            logits = model.hf(input_ids=torch.tensor([[*before, *said]]), use_cache=False).logits[0]
    finally:
        model.hf.set_attn_implementation(ATTENTION)
    log = torch.log_softmax(logits, -1)[len(before) - 1 : -1]
    target = torch.tensor(list(said))
    return float(log.gather(1, target[:, None]).sum()), bool((log.argmax(-1) == target).all())


def templated(text: str) -> list[int]:
    """What the template makes of a message of bytes."""
    return [256, *b"user\n", *text.encode(), 257, *b"\n", 256, *b"assistant\n"]


# ---- likelihood


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_likelihood_is_that_of_transformers(architecture: str) -> None:
    model = stock(architecture)
    pairs = [("How many?", " Two"), ("How many?", "Seven."), ("Why", "é"), ("How many?", "")]
    found = BraidLM(model).loglikelihood(requests(*pairs))
    for (context, said), (logprob, is_greedy) in zip(pairs, found, strict=True):
        expected = log_probability(model, templated(context), said.encode()) if said else (0.0, True)
        assert logprob == pytest.approx(expected[0], abs=1e-6)
        assert is_greedy == expected[1]


def test_what_greedy_generation_says_is_greedy_and_nothing_else() -> None:
    model = stock()
    # The random network says whatever bytes it likes: its tokens are compared, not its text.
    plain = preset("plain").model_copy(update={"streams": {**preset("plain").streams, "output": LETTERS}})
    scored = Likelihood(model, plain)
    before = tuple(templated("Hi"))
    said: list[int] = []
    for _ in range(6):
        said.append(
            next(t for t in range(model.vocab_size) if log_probability(model, [*before, *said], [t])[1])
        )
    other = [*said[:-1], (said[-1] + 1) % 256]
    found = scored._score([(before, tuple(said)), (before, tuple(other))], is_greedy_asked=True)
    assert [is_greedy for _, is_greedy in found] == [True, False]


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.text("ab \n", min_size=0, max_size=12), st.text("ab ", min_size=1, max_size=9)),
        max_size=6,
    ),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 5),
)
def test_batches_and_pieces_change_no_likelihood(
    pairs: list[tuple[str, str]], at_once: int, batch: int, piece: int
) -> None:
    model = stock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihood, "_BATCH", batch)
        patch.setattr(likelihood, "_PIECE", piece)
        found = Likelihood(model, preset("plain"), is_bare=True, at_once=at_once).of(pairs)
    for (context, said), (logprob, is_greedy) in zip(pairs, found, strict=True):
        stripped = context.rstrip()
        moved = (context + said)[len(stripped) :]
        expected = log_probability(model, list(stripped.encode()) or [257], moved.encode())
        assert logprob == pytest.approx(expected[0], abs=1e-6)
        assert is_greedy == expected[1]


def test_rolling_likelihood_scores_every_token_once() -> None:
    model = stock()
    text = "The quick brown fox jumps."
    bare = BraidLM(model, is_bare=True)
    (whole,) = bare.loglikelihood_rolling(requests((text,)))
    assert whole == pytest.approx(log_probability(model, [257], text.encode())[0], abs=1e-6)

    windowed = Likelihood(model, preset("plain"), is_bare=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "max_positions", property(lambda _: 11))
        cut, empty = windowed.of_whole([text, ""])
    ids = [257, *text.encode()]
    windows = [(0, 1, 11), (10, 11, 21), (16, 21, 27)]  # of 11 tokens each, and every token is scored once
    expected = sum(log_probability(model, ids[a:b], ids[b:c])[0] for a, b, c in windows)
    assert cut == pytest.approx(expected, abs=1e-6)
    assert empty == 0.0


@pytest.mark.parametrize(
    ("topology", "words"),
    [(THOUGHTFUL, "other outputs"), (preset("think-aloud"), "other outputs"), (ROWS, "rows")],
)
def test_likelihood_is_refused_where_it_is_not_defined(topology: Topology, words: str) -> None:
    model = trained(ROWS) if topology is ROWS else stock()
    with pytest.raises(UnsupportedByBackend, match=words):
        BraidLM(model, topology).loglikelihood(requests(("a", "b")))


def test_a_whole_text_follows_no_template() -> None:
    with pytest.raises(UnsupportedByBackend, match="is_bare"):
        BraidLM(stock()).loglikelihood_rolling(requests(("a",)))


def test_what_is_longer_than_the_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "max_positions", property(lambda _: 40))
    assert BraidLM(stock(), is_bare=True).loglikelihood(requests(("a" * 30, "b" * 10)))
    with pytest.raises(ContextOverflowError, match="num_fewshot"):
        BraidLM(stock(), is_bare=True).loglikelihood(requests(("a" * 30, "b" * 11)))


# ---- answers


@pytest.mark.parametrize("topology", [preset("plain"), THOUGHTFUL, ROWS])
@pytest.mark.parametrize("batch_size", [1, 3, "auto"])
def test_answers_are_those_of_sessions(topology: Topology, batch_size: int | str) -> None:
    model = trained(ROWS) if topology is ROWS else stock()
    contexts = ["Hi", "How many apples are there?", "Why?", "x" * 60, "Hi"]
    told: list[tuple[int, int]] = []
    answering = BraidLM(model, topology, batch_size=batch_size, on_progress=lambda *done: told.append(done))
    found = answering.generate_until(
        requests(*((c, {"until": ["\x07"], "max_gen_toks": 9}) for c in contexts))
    )
    wanted = wished(topology, "output", wish_of({"until": ["\x07"], "max_gen_toks": 9}))
    assert found == [generate(model, wanted, context)["output"].text for context in contexts]
    assert any(found)
    assert told[-1] == (5, 5)


def test_answers_are_cut_at_until_and_at_their_length() -> None:
    letters = Topology(decoding="views", streams={"user": StreamSpec(direction="input"), "output": LETTERS})
    answering = BraidLM(stock(), letters)
    asked = [
        ("x", {"until": "aaa", "max_gen_toks": 8}),
        ("x", {"until": [], "max_gen_toks": 5}),
        ("x", {"until": None}),
    ]
    assert answering.generate_until(requests(*asked)) == ["", "aaaaa", "a" * lm.MAX_GEN_TOKS]


def test_a_small_cache_makes_requests_wait() -> None:
    model = stock()
    asked = requests(*((f"{n}" * 20, {"until": [], "max_gen_toks": 6}) for n in range(6)))
    assert BraidLM(model, kv_tokens=300).generate_until(asked) == BraidLM(model).generate_until(asked)


def test_every_sampled_request_has_noise_of_its_own() -> None:
    asked = requests(*[("Hi", {"do_sample": True, "temperature": 1.0, "until": [], "max_gen_toks": 8})] * 4)
    found = BraidLM(stock()).generate_until(asked)
    assert len(set(found)) == 4
    assert found == BraidLM(stock()).generate_until(asked)
    assert found != BraidLM(stock(), seed=9).generate_until(asked)


def test_an_empty_context_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        BraidLM(stock()).generate_until(requests(("", {})))


# ---- settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, SamplingSpec()),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.9}, SamplingSpec()),
        ({"do_sample": True, "temperature": 0.0, "top_k": 5}, SamplingSpec()),
        ({"do_sample": True}, SamplingSpec(temperature=1.0)),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 0}, SamplingSpec(temperature=0.5, top_p=0.9)),
        ({"seed": 3, "repetition_penalty": 1.2}, SamplingSpec(seed=3, repetition_penalty=1.2)),
    ],
)
def test_settings_are_read_as_lm_eval_means_them(settings: dict[str, Any], expected: SamplingSpec) -> None:
    assert wish_of({**settings, "num_beams": 1}).sampling == expected


def test_until_and_length() -> None:
    assert wish_of({"until": "\n", "max_gen_toks": 7}) == Wish(("\n",), 7, SamplingSpec())
    assert wish_of({"until": ["", "a"], "max_new_tokens": 3}) == Wish(("a",), 3, SamplingSpec())
    assert wish_of({}).max_tokens == lm.MAX_GEN_TOKS


@pytest.mark.parametrize("settings", [{"num_beams": 4}, {"untill": ["x"]}])
def test_what_has_no_meaning_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        wish_of(settings)
    with pytest.raises(SamplingError):
        wish_of({"do_sample": True, "temperature": -1.0})


# ---- lm-eval


def test_it_is_one_of_its_models(registered: dict[str, type]) -> None:
    answering = BraidLM(stock())
    assert isinstance(answering, FakeLM)
    assert isinstance(answering, BraidLM)
    assert registered == {"braid": type(answering)}
    assert answering.rank == 0
    assert answering.tokenizer_name == "llama"
    answering.loglikelihood(requests(("a", "b")))
    ((kind, arguments, _),) = answering.remembered
    assert (kind, arguments) == ("loglikelihood", ("a", "b"))


def test_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(InputError, match="pip install 'braid-llm\\[eval\\]'"):
        BraidLM(stock())


def test_the_stream_that_answers_is_known() -> None:
    both = preset("plain").model_copy(
        update={"streams": {**preset("plain").streams, "second": StreamSpec(direction="output")}}
    )
    with pytest.raises(InputError, match="output, second"):
        BraidLM(stock(), both)
    assert BraidLM(stock(), both, output="second").output == "second"
    with pytest.raises(InputError, match="user is an input"):
        BraidLM(stock(), both, output="user")
    with pytest.raises(InputError, match="is_bare"):
        BraidLM(trained(ROWS), ROWS, is_bare=True)
    with pytest.raises(InputError, match="apply_chat_template"):
        BraidLM(stock()).apply_chat_template([])

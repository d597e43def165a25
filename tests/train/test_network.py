"""The network under training is the stock one: its logits, its gradients, and what is written back into its tables."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    PreTrainedModel,
)

from braid.train.network import StreamNetwork
from tests.model.networks import ARCHITECTURES, VOCAB, network
from tests.train.networks import SILENCE, SOLVE, batch, stream_network

_INPUTS = ("ids", "streams", "rows", "plan", "asked")
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
HEADS = {
    "granite": lambda: GraniteConfig(
        **_SMALL, logits_scaling=3.0, embedding_multiplier=2.0, residual_multiplier=0.5
    ),
    "cohere": lambda: CohereConfig(**_SMALL, logit_scale=0.25),
    "gemma2": lambda: Gemma2Config(**_SMALL, head_dim=8, final_logit_softcapping=2.0),
    "phi": lambda: PhiConfig(**{**_SMALL, "num_key_value_heads": 2}),  # its head has a bias
    "tied": lambda: LlamaConfig(**_SMALL, tie_word_embeddings=True),
}


def _made(name: str) -> PreTrainedModel:
    if name not in HEADS:
        return copy.deepcopy(network(name))
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(HEADS[name](), dtype=torch.float64).eval()
    for each in hf.parameters():
        each.data.add_(0.1 * torch.randn_like(each))
    return hf


def _logits(made: StreamNetwork, packed: dict[str, Any]) -> Tensor:
    return made.logits(*(packed[key] for key in _INPUTS))


@pytest.mark.parametrize("name", [*ARCHITECTURES, *HEADS])
def test_silence_of_its_own_gives_the_logits_of_the_tables(name: str) -> None:
    """A plain network, whose silence is a row like any other, says the same; so nothing skips the head by mistake."""
    packed = batch(1)
    with torch.no_grad():
        apart = _logits(StreamNetwork(_made(name), 3, SILENCE), packed)
        plain = _logits(StreamNetwork(_made(name), 3, None), packed)
    assert plain[:, SILENCE].std() > 1e-4
    assert float((apart - plain).abs().max()) < 1e-10


@pytest.mark.parametrize("name", ["tied", "llama", "gemma3", "gemma2"])
def test_silence_learns_what_its_row_would_learn(name: str) -> None:
    packed = batch(2)
    apart, plain = StreamNetwork(_made(name), 3, SILENCE), StreamNetwork(_made(name), 3, None)
    for each in (apart, plain):
        each(**packed)["loss"].backward()
    table, head = plain.hf.get_input_embeddings(), plain.hf.get_output_embeddings()
    assert isinstance(table, nn.Embedding)
    assert isinstance(head, nn.Linear)
    expected = [table.weight.grad] if table.weight is head.weight else [table.weight.grad, head.weight.grad]
    assert apart.is_tied == (len(expected) == 1)
    found = [apart.silence, apart.silence_head][: len(expected)]
    for parameter, rows in zip(found, expected, strict=True):
        assert parameter is not None
        assert parameter.grad is not None
        assert rows is not None
        assert float(parameter.grad.abs().max()) > 1e-6
        assert float((parameter.grad - rows[SILENCE]).abs().max()) < 1e-8
    own = apart.hf.get_input_embeddings().weight.grad
    assert isinstance(own, Tensor)
    assert float(own[SILENCE].abs().max()) == 0, "the row in the table is out of use"
    others = torch.arange(VOCAB) != SILENCE
    assert table.weight.grad is not None
    assert float((own - table.weight.grad)[others].abs().max()) < 1e-8


@pytest.mark.parametrize("name", ["tied", "llama", "gemma3"])
def test_settled_weights_are_those_of_a_plain_network(name: str) -> None:
    packed = batch(1)
    made = StreamNetwork(_made(name), 3, SILENCE)
    with torch.no_grad():
        for each in made.own_parameters.values():
            each.add_(torch.randn_like(each))
        expected = _logits(made, packed)
        other = StreamNetwork(_made(name), 3, None)
        told = other.hf.load_state_dict(made.settled(), strict=False)
        assert told.unexpected_keys == []
        assert told.missing_keys == (["lm_head.weight"] if made.is_tied else [])
        assert other.stream_embeddings is not None
        assert made.stream_embeddings is not None
        other.stream_embeddings.copy_(made.stream_embeddings)
        assert float((_logits(other, packed) - expected).abs().max()) < 1e-10


def test_a_network_that_takes_turns_has_nothing_of_its_own() -> None:
    made = StreamNetwork(_made("llama"), 0, None)
    assert made.own_parameters == {}
    assert made.settled().keys() == made.hf.state_dict().keys()


def test_the_loss_is_normalised_by_what_it_is_told() -> None:
    made, packed = stream_network("llama"), batch(2)
    with torch.no_grad():
        alone = made(**packed)["loss"]
        halved = made(**packed, num_items_in_batch=2 * packed["total"])["loss"]
    assert float(alone) == pytest.approx(2 * float(halved), rel=1e-12)


def test_stream_embeddings_are_by_stream() -> None:
    made, packed = stream_network("llama"), batch(1)
    assert made.stream_embeddings is not None
    with torch.no_grad():
        before = _logits(made, packed)
        made.stream_embeddings[list(SOLVE.streams).index("output")].add_(1.0)
        after = _logits(made, packed)
    is_output = packed["streams"][packed["asked"]] == list(SOLVE.streams).index("output")
    changed = (after - before).abs().amax(1) > 1e-9
    assert bool(changed[is_output].all())
    assert not bool(changed[~is_output].any()), "no other stream reads the output"

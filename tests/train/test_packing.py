"""A packed batch gives what each example gives alone, in either order of its queries, and probes are seen by nobody."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from braid.data.builders.solve import solve_score
from braid.data.layout import draw_arrival, lay_out
from braid.data.stories import series
from braid.data.tokens import DataTokenizer, train_tokenizer
from braid.streams.topology import Topology
from braid.train.network import StreamNetwork
from braid.train.packing import Order, Reading, pack
from braid.train.queries import Queries, Weighing, queries_of

SOLVE = Topology.from_yaml("""
streams:
  user: {direction: input}
  thought: {direction: output}
  output: {direction: output}
reads: {thought: [user]}
""")

SOLVE_OUTPUT = 2


@pytest.fixture(scope="module")
def examples() -> list[Queries]:
    stories = list(series(1, 40))
    tokenizer = DataTokenizer(train_tokenizer([story.text for story in stories], size=400))
    rng = random.Random(0)
    tables = [
        lay_out(solve_score(story, str(i)), tokenizer, draw_arrival(rng), rng)
        for i, story in enumerate(stories[:4])
    ]
    return [queries_of(table, tuple(SOLVE.streams), tokenizer.silence_id, Weighing()) for table in tables]


@pytest.fixture(scope="module")
def network(examples: list[Queries]) -> StreamNetwork:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    network = StreamNetwork(LlamaForCausalLM(config).double(), 3, 1).double()
    assert network.stream_embeddings is not None
    torch.nn.init.normal_(network.stream_embeddings)
    return network


def _gradients(network: StreamNetwork, batch: dict[str, Any], total: float) -> tuple[float, torch.Tensor]:
    network.zero_grad()
    loss = network(**batch, num_items_in_batch=total)["loss"]
    loss.backward()
    return float(loss.detach()), torch.cat(
        [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    )


def test_a_packed_batch_gives_the_gradients_of_its_examples_alone(
    network: StreamNetwork, examples: list[Queries]
) -> None:
    reading, total = Reading.of(SOLVE), float(sum(each.weights.sum() for each in examples))
    loss, gradients = _gradients(network, pack(examples, reading), total)
    alone = [_gradients(network, pack([each], reading), total) for each in examples]
    assert abs(loss - sum(each[0] for each in alone)) < 1e-8
    assert torch.allclose(gradients, torch.stack([each[1] for each in alone]).sum(0), atol=1e-8, rtol=0)


def test_interleaved_and_sequential_packing_are_equal(
    network: StreamNetwork, examples: list[Queries]
) -> None:
    orders: tuple[Order, Order] = ("interleaved", "sequential")
    batches = [pack(examples, Reading.of(SOLVE), order=order) for order in orders]
    assert not torch.equal(batches[0]["ids"], batches[1]["ids"])
    (loss, gradients), (other_loss, other) = (_gradients(network, batch, 100.0) for batch in batches)
    assert abs(loss - other_loss) < 1e-8
    assert torch.allclose(gradients, other, atol=1e-8, rtol=0)


def test_leaving_a_probe_out_changes_no_other_answer(network: StreamNetwork, examples: list[Queries]) -> None:
    example = examples[0]
    first = int(np.flatnonzero(~example.kept)[0])
    fewer = example[np.delete(np.arange(len(example)), first)]
    reading = Reading.of(SOLVE)

    def answers(queries: Queries) -> dict[tuple[int, int], torch.Tensor]:
        batch = pack([queries], reading)
        logits = network.logits(*(batch[key] for key in ("ids", "streams", "rows", "plan", "asked")))
        keys = zip(
            batch["streams"][batch["asked"]].tolist(), batch["rows"][batch["asked"]].tolist(), strict=True
        )
        return dict(zip(keys, logits.detach(), strict=True))

    whole, part = answers(example), answers(fewer)
    assert set(whole) - set(part) == {(int(example.streams[first]), int(example.rows[first]))}
    assert all(torch.allclose(whole[key], part[key], atol=1e-10) for key in part)


def test_a_reader_has_a_place_only_for_examples_in_which_it_is_asked(
    network: StreamNetwork, examples: list[Queries]
) -> None:
    silent = examples[0]
    silent = silent[np.flatnonzero(silent.streams != SOLVE_OUTPUT)]
    reading = Reading.of(SOLVE)
    batch = pack([silent, *examples[1:3]], reading)
    assert sorted(len(reader["queries"]) for reader in batch["plan"]["readers"]) == [2, 3, 3]
    total = float(batch["weights"].sum())
    loss, gradients = _gradients(network, batch, total)
    alone = [_gradients(network, pack([each], reading), total) for each in (silent, *examples[1:3])]
    assert abs(loss - sum(each[0] for each in alone)) < 1e-8
    assert torch.allclose(gradients, torch.stack([each[1] for each in alone]).sum(0), atol=1e-8, rtol=0)

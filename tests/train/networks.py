"""Small networks that are trained on streams, and batches for them."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import Any

import torch

from braid.data.builders.solve import solve_score
from braid.data.layout import draw_arrival, lay_out
from braid.data.row_table import RowTable
from braid.data.stories import series
from braid.data.tokens import DataTokenizer, train_tokenizer
from braid.streams.topology import Topology
from braid.train.network import StreamNetwork
from braid.train.packing import Reading, pack
from braid.train.queries import Weighing, queries_of
from tests.model.networks import VOCAB, network

SOLVE = Topology.from_yaml("""
streams:
  user: {direction: input}
  thought: {direction: output}
  output: {direction: output}
reads: {thought: [user]}
""")
SILENCE = 1


@cache
def tokenizer() -> DataTokenizer:
    """Of as many tokens as the networks of `tests.model.networks` know."""
    return DataTokenizer(train_tokenizer([story.text for story in series(1, 40)], size=VOCAB))


@cache
def tables(count: int = 4) -> tuple[RowTable, ...]:
    """Stories in rows, each with a way of arriving of its own."""
    rng = random.Random(0)
    scores = [solve_score(story, str(i)) for i, story in enumerate(series(1, count))]
    return tuple(lay_out(score, tokenizer(), draw_arrival(rng), rng) for score in scores)


def batch(count: int = 2, weighing: Weighing | None = None) -> dict[str, Any]:
    """A packed batch of stories with all of their probes."""
    silence_id = tokenizer().silence_id
    assert silence_id == SILENCE
    streams = tuple(SOLVE.streams)
    examples = [queries_of(table, streams, silence_id, weighing or Weighing()) for table in tables()[:count]]
    return pack(examples, Reading.of(SOLVE))


def stream_network(name: str) -> StreamNetwork:
    """A network of `tests.model.networks` in float64 for the streams of `SOLVE`."""
    made = StreamNetwork(copy.deepcopy(network(name)), len(SOLVE.streams), SILENCE)
    assert made.stream_embeddings is not None
    torch.manual_seed(1)
    torch.nn.init.normal_(made.stream_embeddings, std=0.5)
    return made

"""Training attends as the oracle does: every topology, every kind of layer, whole or a tile after another."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from braid.data.row_table import Lane, RowTable
from braid.model.checkpoint import TrainedStreams, TrainedTopology
from braid.model.model import Model
from braid.streams.entries import Cell, Row
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript
from braid.testing import reference_logits
from braid.train import staircase
from braid.train.network import StreamNetwork
from braid.train.packing import Reading, pack
from braid.train.queries import Queries, Weighing, queries_of
from tests.engine.harness import SILENCE, codec
from tests.model.networks import network

_STREAMS = """
streams:
  user: {direction: input}
  document: {direction: input}
  thought: {direction: output}
  output: {direction: output}
  audit: {direction: output}
reads: {user: [], document: [user], thought: [user, document], output: [user, thought], audit: [user, output]}
"""
TOPOLOGIES = {
    "dense": "",
    "same row none": "same_row: none",
    "patterns": """
patterns:
  thought: {user: window(4), document: "striped(3, 1)"}
  output: {output: window(2), thought: "striped(2, 0)"}
  audit: {user: window(1)}
""",
    "patterns, same row none": "same_row: none\npatterns: {thought: {user: window(3), thought: 'striped(2, 1)'}}",
}
LAYERS = ("llama", "mistral-sliding", "gemma3", "gpt-oss")
_LENGTHS = (23, 14, 1)
TOLERANCE = 1e-6
"""Networks take the softmax of their own attention, the oracle's, in float32."""


def _topology(name: str) -> Topology:
    return Topology.from_yaml(_STREAMS + TOPOLOGIES[name])


def _table(topology: Topology, num_rows: int) -> RowTable:
    """About half of the places have a token; the last example is a row alone."""
    rng = np.random.default_rng(num_rows)
    lanes: list[Lane] = []
    for name, spec in topology.streams.items():
        is_said = rng.random(num_rows) < 0.5
        is_said |= name == "user"  # no row is empty
        rows = np.flatnonzero(is_said).tolist()
        ids = rng.integers(10, 200, len(rows)).tolist()
        lanes.append(Lane(name, rows, ids, ((0, num_rows),) if spec.is_output else ()))
    return RowTable(str(num_rows), num_rows, tuple(lanes))


def _queries(topology: Topology) -> list[Queries]:
    tables = [_table(topology, length) for length in _LENGTHS]
    return [queries_of(table, tuple(topology.streams), SILENCE, Weighing()) for table in tables]


def _made(layers: str, embeddings: torch.Tensor) -> StreamNetwork:
    made = StreamNetwork(copy.deepcopy(network(layers)), len(embeddings), SILENCE)
    assert made.stream_embeddings is not None
    made.stream_embeddings.data.copy_(embeddings)
    return made


def _embeddings(topology: Topology) -> torch.Tensor:
    return torch.randn(len(topology.streams), 48, generator=torch.Generator().manual_seed(0)).double()


def _expected(
    topology: Topology, layers: str, embeddings: torch.Tensor, queries: Queries
) -> dict[tuple[int, str], torch.Tensor]:
    """What the oracle says of one example: of all that is kept, and of all probes."""
    trained = TrainedStreams(topology=TrainedTopology.of(topology), silence_token_id=SILENCE)
    hf = copy.deepcopy(network(layers))
    model = Model(hf, codec(), name=layers, trained=trained, stream_embeddings=embeddings)
    names, transcript = list(topology.streams), Transcript(topology, layers)
    for t in range(int(queries.rows.max()) + 1):
        here = np.flatnonzero(queries.kept & (queries.rows == t))
        cells = {names[queries.streams[i]]: Cell(int(queries.ids[i]), "") for i in here}
        transcript.append(Row(t, cells))
    probes = [(int(queries.rows[i]), names[queries.streams[i]]) for i in np.flatnonzero(~queries.kept)]
    return reference_logits(model, topology, transcript, probes=probes)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("layers", LAYERS)
def test_logits_are_the_oracles(layers: str, name: str) -> None:
    topology = _topology(name)
    names, embeddings, examples = list(topology.streams), _embeddings(topology), _queries(topology)
    batch = pack(examples, Reading.of(topology))
    num_queries = len(batch["ids"])
    with torch.no_grad():
        found = _made(layers, embeddings).logits(
            batch["ids"], batch["streams"], batch["rows"], batch["plan"], torch.arange(num_queries)
        )
    begin = 0
    for queries in examples:
        expected = _expected(topology, layers, embeddings, queries)
        assert len(expected) == len(queries), "every query is compared"
        for i in range(begin, begin + len(queries)):
            place = int(batch["rows"][i]), names[int(batch["streams"][i])]
            assert float((found[i] - expected[place]).abs().max()) < TOLERANCE, place
        begin += len(queries)
    assert begin == num_queries


@pytest.mark.parametrize("name", ["dense", "patterns"])
def test_tiles_give_the_gradients_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = _topology(name)
    batch = pack(_queries(topology), Reading.of(topology))
    whole = _gradients(topology, batch)
    tiles, attend = 0, staircase.checkpoint

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal tiles
        tiles += 1
        return attend(*given, **more)

    monkeypatch.setattr(staircase, "checkpoint", counted)
    monkeypatch.setattr(staircase, "TILE", 2000)
    assert float((_gradients(topology, batch) - whole).abs().max()) < 1e-10
    assert float(whole.abs().max()) > 1e-3
    assert tiles > 3 * len(batch["plan"]["readers"]), "every reader of each of the layers has several"


def _gradients(topology: Topology, batch: dict[str, Any]) -> torch.Tensor:
    made = _made("gemma3", _embeddings(topology))
    made(**batch)["loss"].backward()
    return torch.cat([each.grad.flatten() for each in made.parameters() if each.grad is not None])


def test_layers_share_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers of two kinds make two masks for each reader."""
    topology = _topology("patterns")
    batch = pack(_queries(topology), Reading.of(topology))
    made, mask = 0, staircase._mask

    def counted(*given: Any) -> torch.Tensor:
        nonlocal made
        made += 1
        return mask(*given)

    monkeypatch.setattr(staircase, "_mask", counted)
    for forward in (1, 2):
        _gradients(topology, batch)
        assert made == forward * 2 * len(batch["plan"]["readers"])
    assert "masks" not in batch["plan"], "nothing is left when a forward is done"


def test_a_pattern_is_asked_once_a_distance() -> None:
    """And not once for each pair of a query and a key."""
    topology = _topology("dense")
    examples = _queries(topology)
    pattern = _Counting()
    plain = Reading.of(topology)
    pack(examples, Reading(plain.streams, plain.reads, plain.is_earlier, ((2, 0, pattern),)))
    assert 0 < pattern.calls <= 2 * max(_LENGTHS) + 2


class _Counting:
    calls = 0

    def allows(self, distance: int) -> bool:
        self.calls += 1
        return distance == 0

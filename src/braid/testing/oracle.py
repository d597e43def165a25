"""The oracle: a transcript's logits, computed densely, token by token, with none of the engine's code.

Two independent replays, one a decoding:

* rows: every token of the transcript in one forward of the network's own eager attention, under a mask that is
  written down from the definition of visibility (design, section 2);
* views: each token alone, in its home view, in the order of events; its keys are kept unrotated, and rotated afresh
  to where the reader's view has them (section 6).

Slow on purpose, and exact: what the engine computes is compared with this.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from braid.model.architecture import rope_tables, rotate
from braid.model.attention import ATTENTION
from braid.model.model import Model
from braid.streams.entries import LifeEvent, Row
from braid.streams.lanes import LaneTable
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["ReferenceLogits", "reference_logits"]

ReferenceLogits = dict[tuple[int, str], Tensor]
"""`(t, lane)` to the logits `[V]` that predict the lane's token of row `t + 1`."""


def reference_logits(
    model: Model, topology: Topology, transcript: Transcript, *, probes: Iterable[tuple[int, str]] = ()
) -> ReferenceLogits:
    """Recompute a transcript densely.

    Args:
        model: Any model that Braid loads; float64 for an oracle worth the name.
        topology: The transcript's, after the checkpoint had its say.
        transcript: What happened.
        probes: `(t, lane)` of awake, silent outputs whose logits are wanted too (rows only).

    Returns:
        The logits of every kept token and probe. In views, those after a closer stand at the last row before it, since
        they predict that lane's token of the next.
    """
    table = topology.lanes(transcript.copies)
    if topology.decoding == "views":
        return _replay_views(model, table, transcript)
    return _replay_rows(model, table, transcript, tuple(probes))


# ---- rows


def _replay_rows(
    model: Model, table: LaneTable, transcript: Transcript, probes: tuple[tuple[int, str], ...]
) -> ReferenceLogits:
    closed = {e.lane: e.t for e in transcript.events if e.kind == "close" and e.lane is not None}
    kept = [
        (row.t, table.index(label), cell.token)
        for row in transcript.rows
        for label, cell in row.cells.items()
    ]
    queries = sorted(kept) + [(t, table.index(label), model.probe_id) for t, label in probes]
    num_kept, num_all = len(kept), len(kept) + len(probes)
    visible = np.eye(num_all, dtype=bool)
    for q, (t, reader, _) in enumerate(queries):
        for k, (t_key, read, _) in enumerate(queries[:num_kept]):
            if k == q:
                continue
            in_reach = t_key < t or (t_key == t and table.sees_same_row(reader, read))
            is_open = closed.get(table.lanes[read].label, t + 1) > t
            allowed = table.reads(reader, read) and table.pattern(reader, read).allows(t - t_key)
            visible[q, k] = in_reach and is_open and allowed
    times = np.array([t for t, _, _ in queries])
    streams = np.array([table.stream_index(lane) for _, lane, _ in queries])
    tokens = np.array([token for _, _, token in queries])
    with torch.no_grad(), _attending(model, "eager"):
        logits_NV = model.hf(
            inputs_embeds=model.embed(tokens, streams)[None],
            position_ids=torch.from_numpy(times)[None],
            attention_mask=_masks(model, visible, times),
            use_cache=False,
        ).logits[0]
    return {(t, table.lanes[lane].label): logits_NV[i] for i, (t, lane, _) in enumerate(queries)}


def _masks(model: Model, visible: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> Any:
    """The mask of each layer type, as the network takes it."""

    def additive(allowed: np.ndarray[Any, Any]) -> Tensor:
        mask = torch.zeros(allowed.shape, dtype=model.dtype)
        return mask.masked_fill_(~torch.from_numpy(allowed), torch.finfo(model.dtype).min)[None, None]

    windows = [kind.window for kind in model.architecture.layers]
    near = {w: visible if w is None else visible & (times[:, None] - times[None] < w) for w in set(windows)}
    layer_types = getattr(model.hf.config, "layer_types", None)
    if layer_types is None or len(set(layer_types)) == 1:
        return additive(near[windows[0]])
    return {kind: additive(near[window]) for kind, window in zip(layer_types, windows, strict=True)}


@contextmanager
def _attending(model: Model, implementation: str) -> Generator[None]:
    """Let the network attend in another way for a while."""
    model.hf.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.hf.set_attn_implementation(ATTENTION)


# ---- views


@dataclass
class _Seen:
    """One cached token: when it came, and its unrotated keys and values, a layer each."""

    t: int
    keys_KD: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    values_KD: dict[int, Tensor] = field(default_factory=dict[int, Tensor])


@dataclass(frozen=True)
class _View:
    """What one query reads: tokens in the order of its view, the last being itself."""

    tokens: list[_Seen]
    hidden: list[bool]
    """Tokens that have their place in the view and are not read, by a window."""
    model: Model


_ORACLE = "braid-oracle"


def _oracle_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float, view: _View, s_aux: Tensor | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """One query, at position 0 as far as the network knows; everything is rotated here, to its place in the view."""
    layer = int(module.layer_idx)  # pyright: ignore[reportArgumentType]
    own = view.tokens[-1]
    own.keys_KD[layer], own.values_KD[layer] = key[0, :, 0], value[0, :, 0]
    architecture = view.model.architecture
    keys_KTD = torch.stack([token.keys_KD[layer] for token in view.tokens], 1)
    values_KTD = torch.stack([token.values_KD[layer] for token in view.tokens], 1)
    kind, length = architecture.layers[layer], len(view.tokens)
    queries_ATD = query[0]
    if kind.rope is not None:
        assert architecture.rotary is not None
        assert architecture.apply_rotary is not None
        cos, sin = rope_tables(architecture.rotary, kind.rope, torch.arange(length), query)
        keys_KTD = rotate(architecture.apply_rotary, keys_KTD[:, :, None], cos, sin)[:, :, 0]
        queries_ATD = rotate(architecture.apply_rotary, queries_ATD[:, :, None], cos[:, -1:], sin[:, -1:])[
            :, :, 0
        ]
    group = query.shape[1] // key.shape[1]
    scores_AT = (queries_ATD @ keys_KTD.repeat_interleave(group, 0).transpose(-1, -2))[:, 0] * scaling
    if kind.window is not None:
        scores_AT[:, : max(0, length - kind.window)] = -torch.inf
    scores_AT[:, view.hidden] = -torch.inf
    if s_aux is not None:
        scores_AT = torch.cat((scores_AT, s_aux[:, None]), 1)
    weights_AT = torch.softmax(scores_AT, -1)[:, :length]
    return (weights_AT[:, None] @ values_KTD.repeat_interleave(group, 0)).transpose(0, 1)[None], None


class _Replay:
    """Spans by name, and the logits found so far."""

    def __init__(self, model: Model, table: LaneTable) -> None:
        self.model, self.table = model, table
        self.spans: dict[str, list[_Seen]] = {}
        self.logits: ReferenceLogits = {}

    def feed(self, name: str, token: int, t: int, stream: int) -> Tensor:
        """Compute one token in its home view and keep it."""
        own = _Seen(t)
        mine = self.spans.setdefault(name, [])
        tokens: list[_Seen] = []
        hidden: list[bool] = []
        for other in [*self._order(name), name]:
            seen = mine if other == name else self._visible(name, other, t)
            tokens += seen
            hidden += [not self._is_near(name, other, t - token.t) for token in seen]
        view = _View([*tokens, own], [*hidden, False], self.model)
        logits_V = self.model.hf(
            inputs_embeds=self.model.embed(np.array([token]), np.array([stream]))[None],
            position_ids=torch.zeros(1, 1, dtype=torch.long),
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=torch.bool),
            use_cache=False,
            view=view,
        ).logits[0, 0]
        mine.append(own)
        return logits_V

    def _order(self, name: str) -> list[str]:
        """The spans before a span's own in its view."""
        if name == "preamble":
            return []
        label = name.removeprefix("closer:")
        reader = self.table.index(label)
        others = [
            lane for lane in self.table.lanes if lane.index != reader and self.table.reads(reader, lane.index)
        ]
        order = ["preamble", *(o.label for o in others if self.table.spec(o.index).is_input)]
        if self.table.spec(reader).is_output:
            order += [o.label for o in others if self.table.spec(o.index).is_output]
            if not name.startswith("closer:"):
                order.append(f"closer:{label}")
        return order

    def _is_near(self, name: str, other: str, distance: int) -> bool:
        """Whether the pattern of the pair lets a token so many rows back be read."""
        if other == "preamble" or name.startswith("closer:") or other.startswith("closer:"):
            return True
        reader, read = self.table.index(name), self.table.index(other)
        return self.table.pattern(reader, read).allows(distance)

    def _visible(self, name: str, other: str, t: int) -> list[_Seen]:
        """The tokens of another span that a row sees."""
        tokens = self.spans.get(other, [])
        if other == "preamble" or other.startswith("closer:"):
            return tokens
        reader, read = self.table.index(name.removeprefix("closer:")), self.table.index(other)
        same_row = self.table.sees_same_row(reader, read)
        return [seen for seen in tokens if seen.t < t or (same_row and seen.t == t)]


def _replay_views(model: Model, table: LaneTable, transcript: Transcript) -> ReferenceLogits:
    AttentionInterface.register(_ORACLE, _oracle_attention)
    replay = _Replay(model, table)
    with torch.no_grad(), _attending(model, _ORACLE):
        for entry in transcript.entries:
            if isinstance(entry, Row):
                for label in sorted(entry.cells, key=table.index):
                    stream = table.stream_index(table.index(label))
                    replay.logits[entry.t, label] = replay.feed(
                        label, entry.cells[label].token, entry.t, stream
                    )
            elif entry.kind == "prefill":
                _prefill(replay, entry)
            elif entry.kind in ("turn", "close"):
                gone = (
                    [entry.lane]
                    if entry.kind == "close"
                    else [name for name in replay.spans if name != "preamble"]
                )
                for name in gone:
                    replay.spans.pop(str(name), None)
    return replay.logits


def _prefill(replay: _Replay, event: LifeEvent) -> None:
    """Template text, which is no row: the preamble, or a closer."""
    name = str(event.lane)
    label = name.removeprefix("closer:")
    stream = 0 if name == "preamble" else replay.table.stream_index(replay.table.index(label))
    if name == "preamble":
        del replay.spans.setdefault(name, [])[int(event.reason.removeprefix("after ") or 0) :]
    else:  # one of a start that was cancelled is written anew
        replay.spans.pop(name, None)
    for token in event.tokens:
        replay.logits[event.t - 1, label] = replay.feed(name, token, event.t - 1, stream)

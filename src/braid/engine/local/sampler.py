"""From logits to tokens, every lane of a step at once, each by its own parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.engine.backend import Draw
from braid.engine.local.noise import gumbel, noise_key
from braid.errors import SamplingError

__all__ = ["sample"]


def sample(logits_NV: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Draw one token a row.

    The order is that of the field: bias, repetition penalty, grammar, temperature, top-k, top-p, min-p; then the
    largest of log-probability plus Gumbel noise. With temperature 0 the largest logit wins, and no noise is drawn.

    Args:
        logits_NV: `[N, V]`; not changed.
        draws: `N` of them.

    Returns:
        `N` token ids.

    Raises:
        SamplingError: A parameter names a class that the vocabulary does not have, or nothing is left to draw.
    """
    if not draws:
        return []
    if any(_edits(draw) for draw in draws):
        logits_NV = _edited(logits_NV, draws)
    tokens = logits_NV.argmax(-1)
    warm = [row for row, draw in enumerate(draws) if draw.spec.temperature > 0]
    if warm:
        chosen = _sample_warm(
            logits_NV[torch.tensor(warm, device=logits_NV.device)], [draws[row] for row in warm]
        )
        tokens[torch.tensor(warm, device=tokens.device)] = chosen
    return [int(token) for token in tokens.tolist()]


def _edits(draw: Draw) -> bool:
    spec = draw.spec
    penalised = spec.repetition_penalty != 1.0 and draw.counts
    return bool(spec.logit_bias or draw.banned or penalised or draw.allowed is not None)


def _edited(logits_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """A copy with biases, penalties and bans applied."""
    logits_NV = logits_NV.clone()
    vocab_size = logits_NV.shape[1]
    for row, draw in enumerate(draws):
        spec = draw.spec
        if spec.logit_bias:
            ids = list(spec.logit_bias)
            if max(ids) >= vocab_size or min(ids) < 0:
                raise SamplingError(
                    f"logit_bias of {draw.lane} names token {max(ids)}; the vocabulary ends at {vocab_size - 1}"
                )
            index = torch.tensor(ids, device=logits_NV.device)
            logits_NV[row, index] += torch.tensor(list(spec.logit_bias.values()), dtype=logits_NV.dtype)
        said = [token for token in draw.counts if token not in draw.exempt]
        if spec.repetition_penalty != 1.0 and said:
            index = torch.tensor(said, device=logits_NV.device)
            scores = logits_NV[row, index]
            penalty = spec.repetition_penalty
            logits_NV[row, index] = torch.where(scores > 0, scores / penalty, scores * penalty)
        if draw.allowed is not None:
            _forbid(logits_NV[row], draw.allowed)
        if draw.banned:
            logits_NV[row, torch.tensor(draw.banned, device=logits_NV.device)] = -torch.inf
        if bool(torch.isneginf(logits_NV[row]).all()):
            cause = "logit_bias" if draw.allowed is None else "grammar"
            raise SamplingError(f"the {cause} of {draw.lane} leaves no token to draw; allow at least one")
    return logits_NV


def _forbid(logits_V: Tensor, allowed: NDArray[np.bool_]) -> None:
    """Take all classes but the allowed ones out of play, in place; classes beyond the mask are not allowed."""
    mask = torch.from_numpy(allowed[: len(logits_V)]).to(logits_V.device)
    logits_V[: len(mask)].masked_fill_(~mask, -torch.inf)
    logits_V[len(mask) :] = -torch.inf


def _sample_warm(logits_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Rows with a temperature: filter, then add noise and take the largest."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits_NV.device)[:, None]

    scores_NV = logits_NV.double() / column([draw.spec.temperature for draw in draws])
    if any(d.spec.top_k or d.spec.top_p is not None or d.spec.min_p is not None for d in draws):
        scores_NV = _filtered(
            scores_NV,
            top_k=column([draw.spec.top_k or scores_NV.shape[1] for draw in draws]),
            # 2: no cumulated probability reaches it, whatever the rounding
            top_p=column([2.0 if draw.spec.top_p is None else draw.spec.top_p for draw in draws]),
            min_p=column([draw.spec.min_p or 0.0 for draw in draws]),
        )
    tokens: list[int] = []
    for scores_V, draw in zip(scores_NV, draws, strict=True):
        # Noise is made for the classes still in play alone: a hash of the class id, so which ones are does not matter.
        classes = torch.nonzero(~torch.isneginf(scores_V))[:, 0]
        noise = gumbel(
            noise_key(draw.seed, draw.lane, draw.turn, draw.index), classes.cpu().numpy().astype(np.int64)
        )
        best = (scores_V[classes].cpu().numpy() + noise).argmax()
        tokens.append(int(classes[int(best)]))
    return torch.tensor(tokens, device=logits_NV.device)


def _filtered(scores_NV: Tensor, *, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Drop classes by rank, by cumulated probability, by probability relative to the best; the best always stays.

    Each filter sees what the one before has left, renormalised.
    """
    sorted_NV, order_NV = scores_NV.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(sorted_NV.shape[1], device=sorted_NV.device)[None]
    sorted_NV = sorted_NV.masked_fill(rank >= top_k, -torch.inf)
    probabilities = torch.softmax(sorted_NV, -1)
    before = probabilities.cumsum(-1) - probabilities
    sorted_NV = sorted_NV.masked_fill((before >= top_p) & (rank > 0), -torch.inf)
    probabilities = torch.softmax(sorted_NV, -1)
    sorted_NV = sorted_NV.masked_fill(probabilities < min_p * probabilities[:, :1], -torch.inf)
    return torch.full_like(scores_NV, -torch.inf).scatter(1, order_NV, sorted_NV)

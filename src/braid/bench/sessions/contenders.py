"""Whom `braid bench sessions` is compared with, and the figures that all of them give.

one by one   `transformers.generate`, a prompt after another    measured in the same run, in an unpatched process
batched      `transformers.generate`, all prompts, padded       the same process
vLLM         its own environment, prefix caching on             measured by `bench/vllm/run.py`; its JSON is read
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, cast

import torch

from braid.bench.process import BaselineProcess
from braid.bench.sessions.workload import Dialogue, Workload
from braid.errors import InputError

__all__ = ["DialogueFigures", "SessionFigures", "StockSessions", "VllmFigures", "committed_vllm", "read_vllm"]


@dataclass(frozen=True)
class SessionFigures:
    """What so many sessions cost one contender.

    Attributes:
        sessions: How many; all are there when the clock starts.
        prefill_s: Seconds until each has its first token; one by one, the sum of theirs.
        decode_s: Seconds from there to the last token.
        total_s: Seconds in all, which may be a little more than the two.
        output_tokens: Tokens drawn.
        prefill_tokens: Prompt tokens that were computed: padding, and what a cache gave, not counted.
        peak_kv_bytes: Most bytes that keys and values took at once.
        tokens_per_s: `output_tokens` a second of `total_s`.
        decode_tokens_per_s: Tokens drawn in `decode_s` a second of it; 0 where nothing was.
        output_ids: The answers, so that they can be compared.
    """

    sessions: int
    prefill_s: float
    decode_s: float
    total_s: float
    output_tokens: int
    prefill_tokens: int
    peak_kv_bytes: int
    tokens_per_s: float
    decode_tokens_per_s: float
    output_ids: list[list[int]]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` and the contenders write.

        Raises:
            InputError: A figure is missing, or one is unknown.
        """
        names = {field.name for field in fields(cls)}
        if wrong := sorted(names ^ data.keys()):
            raise InputError(
                f"the figures of a run must be {', '.join(sorted(names))}; check {', '.join(wrong)}"
            )
        return cls(**data)

    def to_dict(self, *, with_output: bool = False) -> dict[str, Any]:
        """As JSON has it, rounded for reading.

        Args:
            with_output: Keep `output_ids`, which are long.
        """
        data = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        if not with_output:
            del data["output_ids"]
        return data


@dataclass(frozen=True)
class DialogueFigures:
    """What a conversation of many turns made a contender prefill.

    Attributes:
        prefill_tokens: Prompt tokens computed, over all turns.
        prompt_tokens: Of each turn.
        answers: The texts of the answers.
    """

    prefill_tokens: int
    prompt_tokens: list[int]
    answers: list[str]


class StockSessions(BaselineProcess):
    """Stock `transformers.generate` in another process; to be used as a context manager.

    Args:
        folder: Of the network and its tokenizer, as `transformers` loads them.
        dtype: Of its weights.
        threads: CPU threads.

    Raises:
        UnsupportedModelError: `transformers` cannot run it; the message has the end of what it said.
    """

    def __init__(self, folder: str, dtype: torch.dtype, threads: int) -> None:
        name = str(dtype).removeprefix("torch.")
        super().__init__(Path(__file__).with_name("baseline.py"), [folder, name, str(threads)], "sessions")

    def one_by_one(self, work: Workload) -> SessionFigures:
        """Answer one prompt after another."""
        return self._sessions("one_by_one", work)

    def batched(self, work: Workload) -> SessionFigures:
        """Answer all prompts in one call, padded on the left."""
        return self._sessions("batched", work)

    def dialogue(self, talk: Dialogue) -> DialogueFigures:
        """Answer turn by turn, with the whole conversation in each prompt."""
        return DialogueFigures(**self.ask({"mode": "dialogue", **asdict(talk)}))

    def _sessions(self, mode: str, work: Workload) -> SessionFigures:
        request = {"mode": mode, "prompt_ids": work.prompt_ids, "output_tokens": work.output_tokens}
        return SessionFigures.from_dict(self.ask(request))


@dataclass(frozen=True)
class VllmFigures:
    """What `bench/vllm/run.py` found.

    Attributes:
        model: Name of the model.
        figures: By number of sessions.
        digests: Of the work, by number of sessions.
        machine: What it was measured on, the versions and settings too.
    """

    model: str
    figures: Mapping[int, SessionFigures]
    digests: Mapping[int, str]
    machine: Mapping[str, Any]

    def of(self, work: Workload) -> SessionFigures | None:
        """Figures of this very work; None where it has not been measured."""
        sessions = len(work.prompt_ids)
        return self.figures[sessions] if self.digests.get(sessions) == work.digest else None


def read_vllm(path: Path) -> VllmFigures:
    """Read a file that `bench/vllm/run.py` wrote.

    Raises:
        InputError: It cannot be read, or is not such a file.
    """
    try:
        data = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        runs = cast("dict[str, dict[str, Any]]", data["runs"])
        figures = {int(sessions): SessionFigures.from_dict(run["figures"]) for sessions, run in runs.items()}
        digests = {int(sessions): str(run["digest"]) for sessions, run in runs.items()}
        return VllmFigures(str(data["model"]), figures, digests, data["machine"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} holds no figures of vLLM ({type(error).__name__}: {error}); bench/vllm/README.md says how to "
            "measure them"
        ) from error


def committed_vllm(model: str) -> Path | None:
    """Return the file of figures that the repository brings for a model; None outside a checkout, or without one."""
    path = Path(__file__).parents[4] / "bench" / "vllm" / "results" / f"{model}-cpu.json"
    return path if path.is_file() else None

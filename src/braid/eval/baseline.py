"""The single-stream baseline: an ordinary model that reads everything, thinks, and then answers.

It is run by `transformers` itself, greedily, many prompts at once, so that nothing of ours stands between it and its
figures. For it a step is a row: it reads and writes one token in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from braid.data.layout import ARRIVALS, lay_out, serialise
from braid.data.score import Part, Score
from braid.data.tokens import THINK, THINK_END, DataTokenizer, place_after
from braid.errors import InputError
from braid.model.convert import quiet_transformers

__all__ = ["Baseline", "Turned"]

_AT_ONCE = 128
_MOST = 256


@dataclass(frozen=True)
class Turned:
    """What the baseline said.

    Args:
        thought, answer: Text before and after the end of its thought; without a thought all is answer.
        num_prompt, num_thought, num_answer: Tokens; the marks around the thought are the thought's, ends nobody's.
        is_over: Whether it ended by itself.
    """

    thought: str
    answer: str
    num_prompt: int
    num_thought: int
    num_answer: int
    is_over: bool

    @property
    def num_tokens(self) -> int:
        """Of the one stream, which is as many rows."""
        return self.num_prompt + self.num_thought + self.num_answer


class Baseline:
    """An ordinary checkpoint.

    Args:
        folder: Of a model that was trained in turns (`braid train --baseline`).
        name: What reports call it; the folder's own by default.

    Raises:
        InputError: It is no such model.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        if not Path(folder, "config.json").is_file() or Path(folder, "braid.json").is_file():
            raise InputError(
                f"{folder} is no single-stream model; `braid train RECIPE --baseline` makes one beside the other"
            )
        with quiet_transformers():
            self.hf: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.folder = Path(folder)
        self.name = name or self.folder.name
        end = self.tokenizer.eos_token
        if end is None:
            raise InputError(f"{folder} has no end token; set `eos_token` in its tokenizer_config.json")
        # It is never silent, so it needs no token for that.
        self._data = DataTokenizer(self.tokenizer.backend_tokenizer, silence=end, end=end)
        self._thought_begin = self._data.encode(THINK)
        self.thought_end = self._data.encode(THINK_END)
        """The tokens after which it answers."""

    def prompt_of(self, score: Score) -> list[int]:
        """What it is asked: all inputs of a score, and, where it is to think, the opening of the thought."""
        parts = [part for part in score.parts if part.direction == "input"]
        if [part.stream for part in parts] == ["user"]:
            return [*self._data.encode(parts[0].text), *self._thought_begin]
        asked = Score(score.id, (*parts, Part("answer", "output", (), reads=(parts[0].stream,))))
        table = serialise(lay_out(asked, self._data, ARRIVALS["paste"]), self._data)
        return list(table.lanes[0].ids[: table.lanes[0].asked[0][0] + 1])

    def play(
        self, scores: Sequence[Score], *, on_progress: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Score, Turned]]:
        """Ask many, and yield each with its answer, in their order."""
        done = 0
        for start in range(0, len(scores), _AT_ONCE):
            group = scores[start : start + _AT_ONCE]
            prompts = [self.prompt_of(score) for score in group]
            for score, prompt, said in zip(group, prompts, self._generate(prompts), strict=True):
                yield score, self._read(prompt, said)
                done += 1
                if on_progress is not None:
                    on_progress(done)

    @torch.inference_mode()
    def _generate(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        longest = max(map(len, prompts))
        pad = self._data.end_id if self._data.pad_id is None else self._data.pad_id
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        told = self.hf.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=_MOST,
            do_sample=False,
            eos_token_id=self._data.end_id,
            pad_token_id=pad,
        )
        return [_to_its_end(row, self._data.end_id) for row in told[:, longest:].tolist()]

    def _read(self, prompt: list[int], said: list[int]) -> Turned:
        is_over = bool(said) and said[-1] == self._data.end_id
        said = said[:-1] if is_over else said
        place = place_after(self.thought_end, said) or 0
        thought, answer = said[:place], said[place:]
        opening = len(self._thought_begin) * (
            tuple(prompt[-len(self._thought_begin) :]) == self._thought_begin
        )
        if opening and not place:  # it never ended its thought
            thought, answer = said, []
        return Turned(
            self._data.decode(thought),
            self._data.decode(answer),
            len(prompt) - opening,
            len(thought) + opening,
            len(answer),
            is_over,
        )


def _to_its_end(row: list[int], end: int) -> list[int]:
    """What was said; behind the end there is only padding."""
    return row[: row.index(end) + 1] if end in row else row

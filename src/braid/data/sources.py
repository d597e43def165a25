"""The builders by name: each turns a seed, or a file, into an endless or finite series of scores.

stories · audit · outside · isolation            sources of our own, without end
gsm_symbolic · knights_knaves · syllogism · …    from `reasoning-gym`, without end
solve · chats · grid · isolation                 from a file
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from braid.data.builders import outside
from braid.data.builders.audit import FAULTS, UNSEEN_FAULTS, audit_score
from braid.data.builders.chats import chat_score
from braid.data.builders.grids import grid_score
from braid.data.builders.isolation import Task, isolation_score, own_tasks, paired, task_of
from braid.data.builders.reasoning import SOURCES, reasoning_items, reasoning_score
from braid.data.builders.solve import solve_score, worked_score
from braid.data.causality import Judge, Verdict
from braid.data.chat_files import read_chats
from braid.data.score import Score
from braid.data.stories.story import SPLITS, tell
from braid.data.tables import read_records
from braid.errors import DataCorruptError, DataError, JudgeError
from braid.streams.strict import hint

__all__ = ["BUILDERS", "Builder", "Wish", "find_builder"]


@dataclass(frozen=True)
class Wish:
    """What is to be built.

    Args:
        seed: Of the series.
        split: Of the stories: `train`, `numbers`, `structure`, `wording`; of audits also `faults`, unseen kinds of
            fault; of `outside`: `train`, `questions`.
        source: A file, for builders that read one.
        wait_k: Segments of the question that have been read when the thought begins.
        inputs: The streams of a grid that are not learned.
        is_strict: Whether examples with a step that could not be known are left out.
        judge: Of free text.
        faults: Kinds that audits plant, each as likely as it is often named; those of the split if none is.
        judge_model: What the judge is called, for the manifest.
    """

    seed: int = 0
    split: str = "train"
    source: Path | None = None
    wait_k: int = 1
    inputs: tuple[str, ...] = ("system", "user")
    is_strict: bool = True
    judge: Judge | None = field(default=None, compare=False)
    faults: tuple[str, ...] = ()
    judge_model: str | None = None


_CHOICES = {
    "wait_k": "--wait-k",
    "inputs": "--inputs",
    "judge": "--judge",
    "is_strict": "--any-step",
    "faults": "faults",
}
"""Fields of a wish that not every builder heeds → the option that sets them."""


@dataclass(frozen=True)
class Builder:
    """One way to make scores.

    Args:
        name: What it is called.
        summary: What it makes.
        make: Of a wish; yields scores or, from the causality validator, verdicts.
        source: Whether it reads a file: `no`, `may` or `must`.
        splits: That it has.
        heeds: The fields of a wish that it heeds, beside seed, split and source; what is wished for another is refused.
        nth: One example of an endless series by its place, where it can be had without those before it.
    """

    name: str
    summary: str
    make: Callable[[Wish], Iterator[Score | Verdict]]
    source: str = "no"
    splits: tuple[str, ...] = ("train",)
    heeds: tuple[str, ...] = ()
    nth: Callable[[Wish, int], Score] | None = None

    def scores(self, wish: Wish) -> Iterator[Score | Verdict]:
        """The series.

        Raises:
            DataError: The wish does not fit the builder.
        """
        if self.source == "must" and wish.source is None:
            raise DataError(f"{self.name} is built from a file; name it with --source")
        if self.source == "no" and wish.source is not None:
            raise DataError(f"{self.name} has a source of its own, and reads no file")
        if wish.split not in self.splits:
            raise DataError(f"{self.name} has no split {wish.split!r}; {hint(wish.split, self.splits)}")
        for name, option in _CHOICES.items():
            if name not in self.heeds and getattr(wish, name) != getattr(Wish(), name):
                able = [builder.name for builder in BUILDERS.values() if name in builder.heeds]
                raise DataError(f"{self.name} does nothing with {option}; it is for {', '.join(able)}")
        return self.make(wish)


def find_builder(name: str) -> Builder:
    """The builder of a name.

    Raises:
        DataError: There is none.
    """
    if name not in BUILDERS:
        raise DataError(f"there is no builder {name!r}; {hint(name, BUILDERS)}")
    return BUILDERS[name]


# ---- without end


def _story(wish: Wish, index: int) -> Score:
    story = tell(wish.seed, index, _story_split(wish.split))
    return solve_score(story, f"stories-{wish.split}-{wish.seed}-{index}")


def _audit(wish: Wish, index: int) -> Score:
    kinds = wish.faults or (UNSEEN_FAULTS if wish.split == "faults" else FAULTS)
    rng = random.Random(f"{wish.seed}/audit/{wish.split}/{index}")
    story = tell(wish.seed, index, _story_split(wish.split))
    return audit_score(story, f"audit-{wish.split}-{wish.seed}-{index}", rng, kinds)


def _outside(wish: Wish, index: int) -> Score:
    rng = random.Random(f"{wish.seed}/outside/{wish.split}/{index}")
    split = cast("outside.Split", wish.split)
    return outside.outside_score(rng, f"outside-{wish.split}-{wish.seed}-{index}", split)


def _endless(nth: Callable[[Wish, int], Score]) -> Callable[[Wish], Iterator[Score]]:
    return lambda wish: (nth(wish, index) for index in itertools.count())


def _isolation(wish: Wish) -> Iterator[Score]:
    pairs = own_tasks(wish.seed) if wish.source is None else _pairs_of(wish.source)
    for index, (task, other) in enumerate(pairs):
        rng = random.Random(f"{wish.seed}/isolation/{index}/injected")
        yield isolation_score(task, other, f"isolation-{wish.seed}-{index}", rng)


def _reasoning(source: str) -> Callable[[Wish], Iterator[Verdict]]:
    def make(wish: Wish) -> Iterator[Verdict]:
        for index, item in enumerate(reasoning_items(source, wish.seed)):
            yield reasoning_score(source, item, f"{source}-{wish.seed}-{index}")

    return make


def _story_split(split: str) -> Any:
    return "train" if split == "faults" else split


# ---- from a file


def _tasks_of(path: Path) -> Iterator[Task]:
    for _, record in read_records(path):
        task = task_of(record)
        if task is not None:
            yield task


def _pairs_of(path: Path) -> Iterator[tuple[Task, Task]]:
    pairs = paired(_tasks_of(path))
    first = next(pairs, None)
    if first is None:
        raise DataError(
            f"{path} needs two tasks that differ in instruction and answer: one is injected into the other"
        )
    return itertools.chain((first,), pairs)


def _chats(wish: Wish) -> Iterator[Verdict]:
    assert wish.source is not None
    for chat in read_chats(wish.source):
        yield chat_score(chat, wish.wait_k, wish.judge)


def _grids(wish: Wish) -> Iterator[Score | Verdict]:
    return _of_records(wish, lambda record, name: grid_score(record, name, wish.inputs))


def _worked(wish: Wish) -> Iterator[Score | Verdict]:
    return _of_records(wish, lambda record, name: worked_score(record, name, wish.wait_k, wish.judge))


def _of_records(
    wish: Wish, make: Callable[[Mapping[str, Any], str], Score | Verdict]
) -> Iterator[Score | Verdict]:
    """What is made of each record of a table; a fault names its line."""
    assert wish.source is not None
    for place, (line, record) in enumerate(read_records(wish.source)):
        name = str(record.get("id") or f"{wish.source.stem}-{place}")
        try:
            made = make(record, name)
        except JudgeError:
            raise
        except DataError as error:
            raise DataCorruptError(f"{wish.source}, line {line}: {error}") from None
        yield made


_PLACED = ("wait_k", "judge", "is_strict")
"""What builders heed that place the thought along the question."""

_ALL = (
    Builder("stories", "word problems, solved while they are read", _endless(_story), splits=SPLITS, nth=_story),
    Builder("audit", "solutions with planted faults, flagged as soon as they can be known", _endless(_audit),
            splits=(*SPLITS, "faults"), heeds=("faults",), nth=_audit),
    Builder("outside", "questions outside the domain, and the answer that says so", _endless(_outside),
            splits=outside.SPLITS, nth=_outside),
    Builder("isolation", "instructions and documents that contain instructions of their own", _isolation, source="may"),
    Builder("solve", "questions with worked steps, placed along the question", _worked, source="must", heeds=_PLACED),
    Builder("grid", "n streams from a table of text", _grids, source="must", heeds=("inputs",)),
    Builder("chats", "chats with reasoning, the thought placed along the question", _chats, source="must",
            heeds=_PLACED),
    *(Builder(source, f"{source} of reasoning-gym", _reasoning(source),
              heeds=("is_strict",) if source == "gsm_symbolic" else ()) for source in SOURCES),
)  # fmt: skip
BUILDERS: Mapping[str, Builder] = {builder.name: builder for builder in _ALL}
"""All builders by name."""

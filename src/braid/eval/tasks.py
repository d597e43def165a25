"""The evaluations whole: what is asked, in which order, and the one JSON object that comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from braid._version import __version__
from braid.data.tokens import DataTokenizer
from braid.errors import InputError
from braid.eval import audit
from braid.eval.baseline import Baseline
from braid.eval.clock import TYPED_PER_SECOND
from braid.eval.play import Pace
from braid.eval.problems import (
    OUTSIDE,
    SPLITS,
    Problem,
    gsm_problems,
    outside_problems,
    own_problems,
    story_problems,
)
from braid.eval.solve import (
    OnProgress,
    answer_in_streams,
    answer_in_turns,
    by_length,
    compare,
    figures_of,
    label_bounds,
    seconds_of,
    sweep_waits,
)
from braid.eval.statistics import Interval, difference_of_shares
from braid.model.loading import load
from braid.model.model import Model
from braid.streams.presets import topology as preset
from braid.streams.topology import Topology

__all__ = ["PACES", "WAITS", "Contenders", "evaluate_audit", "evaluate_solve"]

PACES: tuple[Pace, ...] = ("paced", "typed", "paste")
WAITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


@dataclass(frozen=True)
class Contenders:
    """Who is evaluated.

    Args:
        model: Of streams.
        topology: Of its streams.
        turns: Its single-stream baseline; None leaves all comparisons out.
    """

    model: Model
    topology: Topology
    turns: Baseline | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Who they are, for a report."""
        return {
            "model": self.model.name,
            "baseline": self.turns.name if self.turns else None,
            "topology": self.topology.name,
            "braid": __version__,
        }


def evaluate_solve(
    who: Contenders,
    *,
    n: int = 4000,
    seed: int = 7,
    files: Sequence[Path] = (),
    gsm: bool = True,
    waits: Sequence[int] = WAITS,
    timed: int = 40,
    per_second: float = TYPED_PER_SECOND,
    limit: int | None = None,
    on_progress: OnProgress = lambda what, done, of: None,
) -> dict[str, Any]:
    """Solve word problems while they arrive.

    Args:
        who: Is evaluated.
        n: Problems in all, spread over the splits.
        seed: Of the generator's series.
        files: Problems of one's own, each file reported by itself and unfiltered.
        gsm: Whether `gsm_symbolic` is asked, too.
        waits: Tokens of the question that the outputs wait for, in a sweep over a fifth of the split `numbers`.
        timed: Problems that are timed, one session alone.
        per_second: Tokens a second of who types, where it is timed.
        limit: Problems of each file at most; None asks all.
        on_progress: Is told how far it is.

    Raises:
        DataCorruptError: A file holds no problems.
        DataError: `gsm_symbolic` is wanted, and `reasoning-gym` is not installed.
    """
    each = max(1, n // len(SPLITS))
    sets: dict[str, list[Problem]] = {split: story_problems(split, each, seed) for split in SPLITS}
    few = sets["numbers"][: max(1, each // 5)]
    if gsm:
        sets["gsm_symbolic"] = gsm_problems(max(1, each // 5), seed)
    for name, split in OUTSIDE.items():
        sets[name] = outside_problems(max(1, each // 5), seed, split)
    for path in files:
        if path.stem in sets:
            raise InputError(f"two sets of problems would be called {path.stem!r}; give {path} another name")
        sets[path.stem] = own_problems(path)[:limit]
        if not sets[path.stem]:
            raise InputError(f"{path} has no problems")
    tokenizer = _tokenizer_of(who.model)
    found: dict[str, Any] = {"task": "solve", **who.about, "n": n, "seed": seed, "splits": {}}
    for name, problems in sets.items():
        found["splits"][name] = _split(who, name, problems, tokenizer, on_progress)
    if who.turns is not None:
        found["wording_gap"] = _wording_gap(found["splits"])
    if waits:
        found["wait_k"] = sweep_waits(who.model, who.topology, few, waits, on_progress)
    if timed:
        plain = None
        if who.turns is not None:
            plain = (load(who.turns.folder), preset("plain"), who.turns.thought_end)
        found["seconds"] = seconds_of(
            who.model, who.topology, plain, sets["numbers"][:timed], per_second, on_progress
        )
    return found


def _tokenizer_of(model: Model) -> DataTokenizer:
    """Problems are laid out with what the model itself takes for silence and for the end of a turn."""
    if model.silence_token_id is None:
        raise InputError(
            f"{model.name} was not trained on streams; only a model that was can be evaluated on them"
        )
    tokenizer = cast("Any", model.codec.hf).backend_tokenizer
    silence, end = (tokenizer.id_to_token(token) for token in (model.silence_token_id, model.turn_end_id))
    return DataTokenizer(tokenizer, silence=silence, end=end)


def _split(
    who: Contenders, name: str, problems: Sequence[Problem], tokenizer: DataTokenizer, on_progress: OnProgress
) -> dict[str, Any]:
    """Figures of one set of problems."""

    def told(what: str, done: int, of: int) -> None:
        on_progress(f"{name}: {what}", done, of)

    answers = {pace: answer_in_streams(who.model, who.topology, problems, pace, told) for pace in PACES}
    found: dict[str, Any] = {
        "what": SPLITS.get(name, name),
        "streams": {
            pace: figures_of(answers[pace], label_bounds(problems, pace, tokenizer)) for pace in PACES
        },
    }
    if who.turns is not None:
        turned = answer_in_turns(who.turns, problems, told)
        found["baseline"] = figures_of(turned)
        found["difference"] = {pace: compare(given, turned) for pace, given in answers.items()}
        found["by_length"] = by_length(answers["paced"], turned)
    return found


def _wording_gap(splits: dict[str, Any]) -> dict[str, Any]:
    """How much accuracy unseen wording costs each of the two, beside unseen numbers."""

    def gap(of: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, float | int]:
        known, unseen = (Interval(**of(splits[name])["accuracy"]) for name in ("numbers", "wording"))
        return difference_of_shares(known, unseen).to_json()

    return {
        "streams": gap(lambda split: split["streams"]["paced"]),
        "baseline": gap(lambda split: split["baseline"]),
    }


def evaluate_audit(
    who: Contenders,
    *,
    n: int = 2000,
    seed: int = 7,
    timed: int = 40,
    per_second: float = TYPED_PER_SECOND,
    on_progress: OnProgress = lambda what, done, of: None,
) -> dict[str, Any]:
    """Flag planted faults while a solution is written.

    Args:
        who: Is evaluated.
        n: Solutions in all, spread over the splits.
        seed: Of the generator's series.
        timed: Solutions of the split `numbers` that are timed, one session alone.
        per_second: Tokens a second of who types, where it is timed.
        on_progress: Is told how far it is.
    """
    found: dict[str, Any] = {"task": "audit", **who.about, "n": n, "seed": seed, "splits": {}}
    each = max(1, n // len(audit.SPLITS))
    for name, what in audit.SPLITS.items():

        def told(doing: str, done: int, of: int, name: str = name) -> None:
            on_progress(f"{name}: {doing}", done, of)

        scores = audit.audit_scores(name, each, seed)
        ours = audit.audit_in_streams(who.model, who.topology, scores, "paced", told)
        figures: dict[str, Any] = {"what": what, "streams": audit.audit_figures(ours)}
        if who.turns is not None:
            theirs = audit.audit_in_turns(who.turns, scores, told)
            figures["baseline"] = audit.audit_figures(theirs)
            figures["difference"] = audit.efficiency(ours, theirs)
        found["splits"][name] = figures
    if timed:
        few = audit.audit_scores("numbers", min(each, timed), seed)
        found["seconds"] = audit.flag_seconds(who.model, who.topology, few, per_second, on_progress)
    return found

"""A baseline that was made from a stock model, whose tokenizer knows no marks around a thought."""

from __future__ import annotations

from pathlib import Path

import pytest

from braid.data.tokens import THINK, THINK_END, place_after
from braid.errors import InputError
from braid.eval.baseline import Baseline
from braid.eval.problems import story_problems
from tests.model.folders import edit_json, save_tiny


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stock")
    save_tiny(folder)
    return folder


def test_marks_of_several_tokens_are_marks(stock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = Baseline(stock)
    assert len(baseline.thought_end) == len(THINK_END)
    score = story_problems("numbers", 1, 5)[0].score
    prompt = baseline.prompt_of(score)
    assert baseline.tokenizer.decode(prompt) == score.part("user").text + THINK
    end = baseline.tokenizer.eos_token_id
    said = [*b"3+4=7;", *baseline.thought_end, *b" 7", end]
    monkeypatch.setattr(Baseline, "_generate", lambda *_: [said])
    ((_, told),) = baseline.play([score])
    assert (told.thought, told.answer, told.is_over) == (f"3+4=7;{THINK_END}", " 7", True)
    assert (told.num_prompt, told.num_answer) == (len(prompt) - len(THINK), 2)
    assert told.num_tokens == len(prompt) + len(said) - 1


def test_a_stock_model_is_asked_and_ends(stock: Path) -> None:
    scores = [each.score for each in story_problems("numbers", 2, 5)]
    for score, told in Baseline(stock).play(scores):
        assert told.num_prompt == len(score.part("user").text)
        assert told.num_tokens > told.num_prompt


def test_a_model_without_an_end_is_refused(stock: Path, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", eos_token=None)
    with pytest.raises(InputError, match="has no end token; set `eos_token`"):
        Baseline(tmp_path)


@pytest.mark.parametrize(
    ("mark", "ids", "place"),
    [
        ((2, 3), [1, 2, 2, 3, 4], 4),
        ((2, 3), [2, 3, 2, 3], 2),
        ((2,), [1], None),
        ((2, 3), [2], None),
        ((), [1], 0),
    ],
)
def test_the_place_after_a_mark(mark: tuple[int, ...], ids: list[int], place: int | None) -> None:
    assert place_after(mark, ids) == place

"""A tokenizer trained on a few stories, and small files of row tables."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from braid.data.builders.audit import audit_score
from braid.data.builders.solve import solve_score
from braid.data.layout import ARRIVALS, lay_out
from braid.data.row_table import RowTable
from braid.data.stories import tell
from braid.data.tokens import DataTokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> DataTokenizer:
    scores = [audit_score(tell(0, i), f"a{i}", random.Random(i)) for i in range(150)]
    return DataTokenizer(train_tokenizer((part.text for score in scores for part in score.parts), size=600))


@pytest.fixture(scope="session")
def table(tokenizer: DataTokenizer) -> RowTable:
    """A story, paced: user, thought, output."""
    return lay_out(solve_score(tell(3, 1), "s-1"), tokenizer, ARRIVALS["paced"])


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Write plain data to a file of JSON lines."""

    def write(*data: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in data))
        return path

    return write

"""What docs/data.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braid.data.builders.isolation import INJECTIONS
from braid.data.rules import RULES
from braid.data.sources import BUILDERS

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_table_of_rules_is_that_of_the_checker() -> None:
    told = dict(
        re.findall(
            r"^\| `([a-z ]+)` \| (.+) \|$", PAGE.partition("## Checks")[2].partition("## Other")[0], re.M
        )
    )
    assert told == RULES


def test_every_builder_and_injection_is_told() -> None:
    assert [name for name in (*BUILDERS, *INJECTIONS) if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("code", re.findall(r"<!-- runnable -->\n```python\n(.*?)^```$", PAGE, re.M | re.S))
def test_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "data.md", "exec"), {})

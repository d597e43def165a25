"""What docs/data.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braid.data.builders.isolation import INJECTIONS
from braid.data.rules import RULES
from braid.data.score_rules import SCORE_RULES
from braid.data.sources import BUILDERS

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_tables_of_rules_are_those_of_the_checker() -> None:
    checks = PAGE.partition("## Checks")[2].partition("## Other")[0]
    of_tables, _, of_scores = checks.partition("### Of scores")
    for text, rules in ((of_tables, RULES), (of_scores, SCORE_RULES)):
        assert dict(re.findall(r"^\| `([a-z ]+)` \| (.+) \|$", text, re.M)) == rules


def test_every_builder_and_injection_is_told() -> None:
    assert [name for name in (*BUILDERS, *INJECTIONS) if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("code", re.findall(r"<!-- runnable -->\n```python\n(.*?)^```$", PAGE, re.M | re.S))
def test_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "data.md", "exec"), {})

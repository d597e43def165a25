"""Reports say the same in Markdown and HTML, and nothing in them can break out of it."""

from __future__ import annotations

from html.parser import HTMLParser

from braid.eval.documents import audit_document, solve_document
from braid.eval.report import Bars, Curve, Heading, Table, Text, to_html, to_markdown

BLOCKS = [
    Heading("A <b>title</b>", 1),
    Text("Less & more."),
    Table(["a", "b|c"], [["1", "2"], ["3", "<script>"]]),
    Bars(
        "Shares.", {"x": {"ours": (0.5, 0.4, 0.6), "theirs": (0.2, 0.1, 0.3)}, "y": {"ours": (1, 1, 1)}}, 1.0
    ),
    Curve("Points.", "k", [(1, 0.5, 0.4, 0.6), (2, 0.6, 0.5, 0.7)], 1.0),
]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_markdown_has_every_block() -> None:
    text = to_markdown(BLOCKS)
    assert text.startswith("# A <b>title</b>\n\nLess & more.\n\n| a | b\\|c |\n")
    assert "| x | 0.5 (0.4 to 0.6) | 0.2 (0.1 to 0.3) |" in text
    assert "| y | 1 |  |" in text


def test_html_is_whole_and_safe() -> None:
    page = to_html(BLOCKS)
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("svg") == 2
    assert tags.seen.count("rect") == 5  # three bars, two keys
    assert "<script>" not in page


def _found(value: float, reach: float = 0.02) -> dict[str, float | int]:
    return {"value": value, "low": value - reach, "high": value + reach, "n": 100}


def _figures(value: float) -> dict[str, object]:
    share = _found(value)
    count = {"value": 4.0, "low": 3.0, "high": 5.0, "n": 100, "median": 3.0}
    return {
        "accuracy": share, "early": 0, "unanswered": 0, "tnft": {**count, "label_bound": 4.2},
        "rows_after_question": count, "rows": 50.0, "tokens": 80.0, "tokens_per_row": 1.6,
        "msl": 40.0, "kv_tokens": 80.0,
    }  # fmt: skip


def test_where_streams_do_not_pay_is_said() -> None:
    split = {
        "what": "unseen numbers",
        "streams": {"paced": _figures(0.5), "typed": _figures(0.5), "paste": _figures(0.5)},
        "baseline": _figures(0.9),
        "difference": {
            pace: {"accuracy": _found(-0.4, 0.05), "rows_after_question_cut": _found(0.8), "msl_ratio": _found(0.5)}
            for pace in ("paced", "typed")
        },
        "by_length": [{"from": 0, "to": 5, "n": 7, "streams": 8.0, "baseline": 7.0}],
    }  # fmt: skip
    seconds = {"ttfat_s": {"value": 0.1}, "whole_answer_s": {"value": 0.2}, "ms_per_row": 3.0}
    found = {
        "task": "solve", "model": "m", "baseline": "b", "topology": "stories", "braid": "1", "n": 100, "seed": 7,
        "splits": {"numbers": split},
        "wait_k": {"by_wait": {"1": {"accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}}}, "spread": _found(0.03)},
        "seconds": {
            "typed": {"tokens_per_second": 8.0, "streams": seconds},
            "paste": {"streams": seconds, "baseline": seconds, "whole_answer_cut": _found(-0.6)},
        },
    }  # fmt: skip
    text = to_markdown(solve_document(found))
    losses = text.partition("## Where streams do not pay")[2]
    assert "paste: the whole answer comes 60 % later" in losses
    assert "thoughts of 0 to 4 tokens (7 problems)" in losses
    assert "-40.0" in losses
    assert "typed is 8 tokens a second, paste is all at once" in text
    assert "lie +3.0 (+1.0 to +5.0) points apart" in text
    assert "| 80.0 % (78.0 to 82.0) |" in text
    assert "| 0.500 (0.480 to 0.520) |" in text
    assert to_html(solve_document(found))


def test_rows_that_are_not_saved_are_said_without_a_clock() -> None:
    cuts = {"paced": 0.75, "typed": 0.89, "paste": 0.026}
    split = {
        "what": "unseen numbers",
        "streams": {pace: _figures(0.9) for pace in cuts},
        "baseline": _figures(0.9),
        "difference": {
            pace: {"accuracy": _found(0.0), "rows_after_question_cut": _found(cut), "msl_ratio": _found(0.5)}
            for pace, cut in cuts.items()
        },
    }
    found = {
        "task": "solve", "model": "m", "baseline": "b", "topology": "stories", "braid": "1", "n": 100, "seed": 7,
        "splits": {"numbers": split, "wording": split},
    }  # fmt: skip
    losses = to_markdown(solve_document(found)).partition("## Where streams do not pay\n\n")[2].splitlines()
    (said,) = losses
    assert said.startswith("paste: hardly a row to the whole answer is saved")
    assert "numbers 2.6 % (0.6 to 4.6), wording 2.6 % (0.6 to 4.6)." in said
    split["difference"]["paste"]["rows_after_question_cut"] = {**_found(0), "value": None, "n": 0}
    assert "Nowhere in what was measured here." in to_markdown(solve_document(found))


def test_an_audit_is_reported_by_kind() -> None:
    share = {"value": 0.9, "low": 0.8, "high": 0.95, "n": 30}
    figures = {
        "flagged": share, "named": share, "by_kind": {"number": share}, "verdict": share, "rows": 50.0, "msl": 40.0,
        "false_alarms": {"of_flags": _found(0.04), "of_sound_steps": _found(0.03), "of_sound_solutions": share},
        "delay_rows": {**_found(1.4), "median": 1.0},
    }  # fmt: skip
    found = {
        "task": "audit", "model": "m", "baseline": None, "topology": "stories", "braid": "1", "n": 100, "seed": 7,
        "splits": {"numbers": {"what": "unseen numbers", "streams": figures}},
        "seconds": {
            "tokens_per_second": 5.0, "flagged": share, "delay_s": {**_found(0.03, 0.01), "median": 0.025},
            "ms_per_row": 9.5,
        },
    }  # fmt: skip
    text = to_markdown(audit_document(found))
    assert "| unseen numbers | number | 90.0 % (80.0 to 95.0) |" in text
    assert "| 4.0 % (2.0 to 6.0) | 3.0 % (1.0 to 5.0) |" in text
    assert (
        "5 tokens a second, 90.0 % (80.0 to 95.0) of the faults are flagged, 30 ms (20 to 40; median 25)"
        in text
    )
    found["seconds"]["delay_s"] = {"value": None, "low": None, "high": None, "n": 0, "median": None}
    assert "tokens a second" not in to_markdown(audit_document(found))

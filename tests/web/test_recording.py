"""A finished run: scrubbed, played, saved, opened, exported; and one of 10,000 rows."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from tests.web.scripted import Scripted
from tests.web.test_talking import QUESTION, SAID, ask, expect

SVG = "{http://www.w3.org/2000/svg}"


def saved(page: Any, button: str, folder: Path) -> Path:
    """The file that a button gives."""
    with page.expect_download() as waiting:
        page.locator(button).click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def slide(page: Any, rows: int) -> None:
    """Move the slider as a person would."""
    page.locator("#scrub").evaluate(
        "(box, rows) => { box.value = rows; box.dispatchEvent(new Event('input', {bubbles: true})); }", rows
    )


def long_run(rows: int) -> str:
    """A saved run of so many rows."""
    streams = {
        name: {"direction": "input" if name == "user" else "output"} for name in ("user", "thought", "output")
    }
    opened = {
        "type": "opened", "id": 1, "session": "s", "model": "m", "topology": {"name": "long", "streams": streams},
        "lanes": list(streams), "inputs": ["user"], "outputs": ["thought", "output"],
    }  # fmt: skip
    entries: list[dict[str, Any]] = [{"sent": False, "at": 0.0, "message": opened}]
    for t in range(rows):
        cells = {
            "thought": {"token": t % 997, "text": f" t{t % 997}"},
            "output": {"token": t % 89, "text": f" o{t}"},
        }
        message = {"type": "row", "id": t + 2, "at": t / 30, "t": t, "cells": cells}
        entries.append({"sent": False, "at": t / 30, "message": message})
    return json.dumps({"format": "braid-run", "version": 1, "entries": entries})


def put(page: Any, text: str, name: str = "run.json") -> None:
    """Choose a file."""
    page.locator("#file").set_input_files(
        {"name": name, "mimeType": "application/json", "buffer": text.encode()}
    )


def test_a_run_is_scrubbed_and_played(page: Any) -> None:
    ask(page)
    expect(page.locator("#scrub-words")).to_have_text("live")
    slide(page, 12)
    expect(page.locator("#lanes-count")).to_contain_text("row 12 of")
    expect(page.locator("#talk-state")).to_have_text("an earlier moment")
    part = page.locator("#log .answer").inner_text()
    assert SAID.startswith(part) and 0 < len(part) < len(SAID)
    slide(page, 0)
    expect(page.locator("#log .answer")).to_have_count(0)
    page.locator("#play").click()
    expect(page.locator("#play")).to_have_attribute("aria-label", "Pause")
    expect(page.locator("#log .answer")).to_have_text(SAID)
    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    expect(page.locator("#scrub-words")).to_have_text("live")


def test_play_goes_at_the_speed_at_which_it_happened(page: Any) -> None:
    put(page, long_run(61))
    slide(page, 0)
    expect(page.locator("#scrub-words")).to_have_text("start")
    seconds = page.evaluate(
        """() => new Promise((resolve) => {
            const began = performance.now();
            document.getElementById("play").click();
            const look = () => document.getElementById("scrub").value === "61"
                ? resolve((performance.now() - began) / 1000) : setTimeout(look, 5);
            look();
        })"""
    )
    assert 1.9 < seconds < 3.5  # 60 pauses of 1/30 s


def test_a_run_is_saved_and_opened_again(page: Any, tmp_path: Path) -> None:
    ask(page)
    path = saved(page, "#save", tmp_path)
    assert path.name.startswith("braid-think-aloud-") and path.suffix == ".json"
    data = json.loads(path.read_text())
    assert (data["format"], data["version"]) == ("braid-run", 1)
    kinds = {entry["message"]["type"] for entry in data["entries"]}
    assert {"open", "opened", "write", "end", "row", "delta", "state", "turn"} <= kinds
    page.locator("#new-session").click()
    expect(page.locator("#lanes-count")).to_have_text("no rows yet")
    put(page, path.read_text(), path.name)
    expect(page.locator("#log .answer")).to_have_text(SAID)
    expect(page.locator("#log .said")).to_have_text(QUESTION)
    expect(page.locator("#connection")).to_contain_text("a saved run")
    expect(page.locator('[data-figure="tnft"]')).to_have_text("0")
    slide(page, 10)
    expect(page.locator("#lanes-count")).to_contain_text("row 10 of")
    again = saved(page, "#save", tmp_path)
    assert json.loads(again.read_text())["entries"] == data["entries"]


def test_a_run_is_dropped_on_the_page(page: Any) -> None:
    page.evaluate(
        """(text) => {
            const data = new DataTransfer();
            data.items.add(new File([text], "dropped.json", {type: "application/json"}));
            for (const kind of ["dragover", "drop"]) {
                document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
            }
        }""",
        long_run(30),
    )
    expect(page.locator("#lanes-count")).to_have_text("30 rows, 60 tokens")
    expect(page.locator("#drop")).to_be_hidden()


DAMAGED = {
    "cut off": (long_run(5)[:-40], "not JSON, or a part of it is missing"),
    "something else": ('{"hello": 1}', "no run that a Braid playground saved"),
    "newer": (
        long_run(5).replace('"version": 1', '"version": 9'),
        "version 9; this page reads up to version 1",
    ),
    "no version": (long_run(5).replace('"version": 1', '"version": null'), "its beginning is damaged"),
    "no entries": ('{"format": "braid-run", "version": 1}', "has no entries"),
    "nothing opened": ('{"format": "braid-run", "version": 1, "entries": []}', "nothing was ever opened"),
    "a damaged row": (
        long_run(5).replace('"text": " o3"', '"text": 3'),
        "entry 5 (row) has no proper “cells”",
    ),
    "a damaged entry": (
        long_run(5).replace('{"sent": false, "at": 0.1', '{"sent": "no", "at": 0.1'),
        "entry 5 is none",
    ),
    "a stream of nothing": (
        long_run(5).replace('"user": {"direction": "input"}', '"user": null'),
        "proper “topology”",
    ),
    "a row over nothing": (long_run(2).replace('"cells": {', '"cells": null, "x": {'), "proper “cells”"),
}


def test_a_damaged_file_is_told_in_words(page: Any) -> None:
    for case, (text, words) in DAMAGED.items():
        put(page, text, f"{case}.json")
        expect(page.locator("#banner")).to_contain_text(f"{case}.json: This")
        expect(page.locator("#banner")).to_contain_text(words)
        page.locator("#banner-close").click()
    expect(page.locator("#connection")).to_contain_text("connected")  # the session goes on


def test_the_picture_holds_every_token(page: Any, scripted: Scripted, tmp_path: Path) -> None:
    scripted.answer = lambda _question: ' Two <b>apples</b> & "three" \x1b[2J' + " more" * 60
    ask(page)
    root = ElementTree.fromstring(saved(page, "#export-svg", tmp_path).read_bytes())
    assert root.tag == f"{SVG}svg"
    texts = [node.text or "" for node in root.iter(f"{SVG}text")]
    for word in [*QUESTION.split(), "They", "Two", "<b>apples</b>", "&", '"three"', "▯[2J"]:
        assert word in texts, word
    assert texts.count("more") == 60
    assert {"input", "thought", "output", "forced"} <= set(texts)  # the legend
    assert texts.count("output") >= 3  # in the legend, and beside each line
    width = float(root.get("width", 0))
    for node in root.iter(f"{SVG}rect"):
        assert float(node.get("x", 0)) + float(node.get("width", 0)) <= width + 0.01
    png = saved(page, "#export-png", tmp_path).read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (2 * width, 2 * float(root.get("height", 0)))


def test_ten_thousand_rows_stay_smooth(page: Any, tmp_path: Path) -> None:
    put(page, long_run(10_000))
    expect(page.locator("#lanes-count")).to_have_text("10000 rows, 20000 tokens")
    times = page.evaluate(
        """() => new Promise((resolve) => {
            const box = document.getElementById("scroll");
            const times = [];
            let before = performance.now();
            const step = (now) => {
                times.push(now - before);
                before = now;
                if (times.length > 90) { resolve(times.slice(2).sort((a, b) => a - b)); return; }
                box.scrollLeft = (box.scrollWidth - box.clientWidth) * (times.length / 90);
                requestAnimationFrame(step);
            };
            requestAnimationFrame(step);
        })"""
    )
    median = times[len(times) // 2]
    print(f"frames while scrolling 10,000 rows: median {median:.1f} ms, worst {times[-1]:.1f} ms")
    assert median < 40  # a frame is 17 ms; the machines that test this are small and shared
    assert page.locator("#frame *").count() < 60  # what is not visible is not there
    slide(page, 5000)
    expect(page.locator("#lanes-count")).to_contain_text("row 5000 of 10000")
    page.locator("#scroll").focus()
    page.keyboard.press("End")
    expect(page.locator("#row-words")).to_contain_text("output “o4999”")
    page.locator("#follow").click()
    page.locator("#export-png").click()
    expect(page.locator("#banner")).to_contain_text("too many for one PNG")
    assert saved(page, "#export-svg", tmp_path).stat().st_size > 1_000_000


def test_the_view_can_be_scrolled_back_while_rows_come(page: Any, scripted: Scripted) -> None:
    scripted.answer = lambda _question: " word" * 150
    page.locator("#words").fill("Talk for a long time please")
    page.keyboard.press("Enter")
    left = "document.getElementById('scroll').scrollLeft"
    expect(page.locator("#log .answer")).to_contain_text("word " * 60)
    assert page.evaluate(left) > 500
    expect(page.locator("#follow")).to_have_attribute("aria-pressed", "true")
    page.evaluate("document.getElementById('scroll').scrollLeft = 100")
    expect(page.locator("#follow")).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#log .answer")).to_contain_text("word " * 90)
    assert page.evaluate(left) == 100
    page.locator("#follow").click()
    expect(page.locator('[data-figure="rows"]')).not_to_have_text("–")
    assert page.evaluate(left) > 2000

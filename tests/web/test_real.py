"""The playground over the real route and the default model: typed slowly, thought along, interrupted, exported."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from braid.sessions.session import Engine
from tests.server.serving import Serving, null_engine
from tests.server.serving import test_settings as settings_for
from tests.web.test_recording import saved
from tests.web.test_talking import expect

if TYPE_CHECKING:
    from braid.model.model import Model

PATIENCE_MS = 90_000
PICTURES = Path(__file__).parents[2] / "docs" / "img"
FIRST = "I have a long train ride tomorrow. What should I pack?"
SECOND = "And what if it rains the whole day, and I have to walk from the stati"
TOPOLOGY = """
name: notes
decoding: views
streams:
  user: {direction: input, feed: burst}
  thought:
    direction: output
    visibility: internal
    wait_k: 4
    max_tokens: 24
    instructions: Take short notes about what the user says.
  output: {direction: output, wait_k: end, max_tokens: 200, instructions: Tell a long story about what the user says.}
"""


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """Instead of the scripted one."""
    model: Model = request.getfixturevalue("smollm2")
    with Serving(Engine(model), settings_for(drain_s=5.0)) as server:
        yield server


def test_a_person_types_and_the_model_thinks_along(page: Any, tmp_path: Path) -> None:
    page.set_default_timeout(PATIENCE_MS)
    page.locator("#open-setup").click()
    page.locator("#topology").select_option("(your own)")
    page.locator("#own").fill(TOPOLOGY)
    page.locator("#setup-apply").click()
    expect(page.locator("#shape")).to_have_text("notes")
    page.locator("#words").press_sequentially("A small fox and an old bear build a boat and sa", delay=120)
    page.wait_for_selector("#inner .thinking")
    assert page.locator("#log .answer").count() == 0  # the input has not ended
    page.locator("#words").press_sequentially("il away.", delay=60)
    page.keyboard.press("Enter")
    page.wait_for_selector("#log .answer")
    page.keyboard.press("Escape")
    page.wait_for_selector('[data-figure="rows"]:not(:text("–"))')
    assert page.locator('[data-figure="ttfat"]').inner_text() != "–"
    data = json.loads(saved(page, "#save", tmp_path).read_text())
    told = [entry["message"] for entry in data["entries"] if not entry["sent"]]
    assert [message["id"] for message in told if message.get("id")] == list(range(1, len(told) + 1))
    ended = next(i for i, entry in enumerate(data["entries"]) if entry["message"]["type"] == "end")
    before = [entry["message"] for entry in data["entries"][:ended]]
    assert any(message["type"] == "delta" and message["stream"] == "thought" for message in before)
    assert not any(message["type"] == "delta" and message["stream"] == "output" for message in before)
    root = ElementTree.fromstring(saved(page, "#export-svg", tmp_path).read_bytes())
    texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"fox", "bear", "boat", "sail"} <= texts


@pytest.mark.slow
@pytest.mark.parametrize(("theme", "name"), [("light", "playground.png"), ("dark", "playground-dark.png")])
def test_the_pictures_of_the_docs(open_page: Callable[..., Any], theme: str, name: str) -> None:
    """They are written anew; look at them before they are committed."""
    page = open_page(color_scheme=theme, device_scale_factor=2)
    page.set_default_timeout(PATIENCE_MS)
    page.locator("#words").press_sequentially(FIRST, delay=90)
    page.keyboard.press("Enter")
    page.wait_for_selector('[data-figure="rows"]:not(:text("–"))')
    page.locator("#compare").click()
    page.wait_for_selector('[data-compared="rows"]:not(:text("–"))')
    page.locator("#words").press_sequentially(SECOND, delay=90)
    page.wait_for_timeout(700)
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / name)
    assert (PICTURES / name).stat().st_size > 50_000


class TestWithoutAModel:
    """The real route over a scripted backend: what the browser asks for is what the server understands."""

    @pytest.fixture
    def serving(self) -> Iterator[Serving]:
        script = {"thought": ["Notes."], "output": ["Two apples.", "Three pears."]}
        with Serving(null_engine(script=script)) as server:
            yield server

    def test_turns_compare_and_reconnect(self, page: Any, serving: Serving) -> None:
        for turn, answer in enumerate(("Two apples.", "Three pears."), 1):
            page.locator("#words").press_sequentially("How many are there?", delay=10)
            page.keyboard.press("Enter")
            expect(page.locator("#figures-title")).to_have_text(f"Turn {turn}")
            expect(page.locator("#log .answer").last).to_have_text(answer)
        page.locator("#compare").click()
        expect(page.locator("#compare-words")).to_contain_text("The same question")
        expect(page.locator('[data-compared="rows"]')).not_to_have_text("–")

    def test_a_session_that_is_refused(self, page: Any, serving: Serving) -> None:
        serving.service.gate._anybody.sees_internal = (
            False  # after the page was told that it may see inner streams
        )
        page.locator("#new-session").click()
        expect(page.locator("#banner")).to_be_visible()
        words = page.locator("#banner-words").inner_text()
        assert "internal" in words or "inner" in words

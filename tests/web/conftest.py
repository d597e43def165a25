"""A Chromium for the tests of the playground, and a page that reports whatever it should not have done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.server.serving import Serving
from tests.web.scripted import Scripted, serve_scripted

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def _missing(what: str) -> None:
    if os.environ.get("BRAID_REQUIRE_BROWSER"):
        pytest.fail(f"BRAID_REQUIRE_BROWSER is set, and {what}")
    pytest.skip(f"{what}: the playground is tested in Chromium")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium, for all tests of this folder; what drives it keeps an event loop, which others could not do with."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    found = os.environ.get("BRAID_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        _missing("no Chromium is installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, headless=True, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def scripted() -> Scripted:
    """What the sessions of `serving` say; tests may change it before a session opens."""
    return Scripted()


@pytest.fixture
def serving(scripted: Scripted) -> Iterator[Serving]:
    """A server whose live sessions are scripted."""
    with serve_scripted(scripted) as server:
        yield server


@dataclass
class Watch:
    """What pages did that they should not."""

    origin: str
    expected: list[str] = field(default_factory=list)
    """Parts of console messages that a test provokes."""
    faults: list[str] = field(default_factory=list)

    def attach(self, page: Any) -> None:
        """Watch a page."""
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._visit(request.url))
        page.on("websocket", lambda socket: self._visit(socket.url))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(part in text for part in self.expected):
            self.faults.append(f"console {kind}: {text}")

    def _visit(self, url: str) -> None:
        split = urlsplit(url)
        if split.scheme not in ("blob", "data") and split.netloc != self.origin:
            self.faults.append(f"a request left the origin: {url}")


@pytest.fixture
def watch(serving: Serving) -> Iterator[Watch]:
    """Fails a test whose page wrote errors to the console or asked another origin for anything."""
    watched = Watch(urlsplit(serving.base_url).netloc)
    yield watched
    assert not watched.faults, watched.faults


@pytest.fixture
def open_page(browser: Any, serving: Serving, watch: Watch) -> Iterator[Callable[..., Any]]:
    """Opens the playground; arguments are those of a browser context."""
    contexts: list[Any] = []

    def opened(**settings: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **settings})
        contexts.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        watch.attach(page)
        page.goto(f"{serving.base_url}/")
        page.wait_for_selector('#connection[data-state="open"]')
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    """The playground on a desk, with a session open."""
    return open_page()

"""How the page looks: contrast in both themes, a phone, motion, landmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.web.conftest import PHONE
from tests.web.scripted import Scripted
from tests.web.test_talking import ask, expect

CONTRASTS = """() => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => {
        const [r, g, b] = rgba(colour).slice(0, 3).map((v) => v / 255)
            .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (a, b) => {
        const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
        return (high + 0.05) / (low + 0.05);
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (rgba(colour)[3] === 255) return colour;
        }
        return getComputedStyle(document.body).backgroundColor;
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
            || element.matches("textarea, input:not([type=range]), select");
        if (!isText || !element.checkVisibility() || element.closest("#ink, .heard")) continue;
        const { parentElement: parent } = element;
        const name = element.id || `${parent.id || parent.className} > ${element.tagName}`;
        found.push([name, ratio(getComputedStyle(element).color, ground(element))]);
        if (!element.placeholder) continue;
        const { color } = getComputedStyle(element, "::placeholder");
        found.push([`${name} placeholder`, ratio(color, ground(element))]);
    }
    const probe = document.body.appendChild(document.createElement("i"));
    const named = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
    for (const role of ["input", "thought", "tool", "output", "audit"]) {
        found.push([`lane ${role}`, ratio(named(role), named(`${role}-tint`))]);
        found.push([`name ${role}`, ratio(named(role), named("card"))]);
    }
    for (const ink of ["ink", "muted", "problem", "warn", "accent"]) {
        found.push([ink, ratio(named(ink), named("card"))]);
    }
    found.push(["problem on its tint", ratio(named("problem"), named("problem-tint"))]);
    found.push(["muted on the page", ratio(named("muted"), named("page"))]);
    probe.remove();
    return found;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_is_legible(open_page: Callable[..., Any], theme: str) -> None:
    page = open_page(color_scheme=theme)
    ask(page)
    page.locator("#compare").click()
    expect(page.locator("#compare-words")).to_contain_text("The same question")
    for opened in (None, "#open-setup", "#open-help"):
        if opened:
            page.locator(opened).click()
        found = page.evaluate(CONTRASTS)
        assert len(found) > 40
        assert {name: round(ratio, 2) for name, ratio in found if ratio < 4.5} == {}
        page.keyboard.press("Escape")
    backdrop = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, backdrop.removeprefix("rgb(").rstrip(")").split(","))) < 60) == (theme == "dark")


def test_the_theme_is_chosen_and_remembered(open_page: Callable[..., Any]) -> None:
    page = open_page(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.locator("#theme").click()
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Theme: dark")
    assert page.evaluate(ground) != light
    page.reload()
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Theme: dark")
    assert page.evaluate(ground) != light


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_has_room_and_large_targets(open_page: Callable[..., Any], width: int) -> None:
    page = open_page(viewport={"width": width, "height": PHONE["height"]}, has_touch=True, is_mobile=True)
    page.locator("#words").tap()
    ask(page, "Sally has three apples and gives one to Tom, averyveryveryverylongwordthatneverends" * 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    targets = "button, select, textarea, input:not([type=file]), summary"
    for opened in (None, "#open-setup", "#open-help"):
        if opened:
            page.locator(opened).tap()
        small = page.evaluate(
            """(targets) => [...document.querySelectorAll(targets)].filter((each) => each.checkVisibility())
                .map((each) => [each.id || each.className, each.getBoundingClientRect()])
                .filter(([, box]) => box.height < 44 || box.width < 44).map(([name]) => name)""",
            targets,
        )
        assert small == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("Escape")
    expect(page.locator("#log .answer")).to_be_visible()


def test_a_phone_shows_lanes_and_box_at_once(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    box = page.locator("#words").bounding_box()
    assert box is not None and box["y"] + box["height"] <= PHONE["height"]


def test_a_desk_shows_everything_without_scrolling(page: Any) -> None:
    ask(page)
    assert page.evaluate("document.documentElement.scrollHeight") <= 800
    for part in ("#canvas", "#send", "#figures tr:last-child"):
        box = page.locator(part).bounding_box()
        assert box is not None and box["y"] + box["height"] <= 800


def test_still_where_motion_is_unwanted(open_page: Callable[..., Any], scripted: Scripted) -> None:
    scripted.answer = lambda _question: " word" * 200
    moving = "document.getAnimations().filter((each) => each.playState === 'running').length"
    for wish, is_moving in (("reduce", False), ("no-preference", True)):
        page = open_page(reduced_motion=wish)
        page.locator("#words").fill("Talk on and on")
        page.keyboard.press("Enter")
        expect(page.locator("#log .is-speaking")).to_be_visible()
        assert (page.evaluate(moving) > 0) == is_moving


def test_landmarks_and_names(page: Any) -> None:
    assert (
        page.locator("main").count() == 1
        and page.locator("h1").count() == 1
        and page.locator("header").count() == 1
    )
    assert page.evaluate("document.documentElement.lang") == "en"
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, [role=region], [role=group]")]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.getAttribute("aria-label") || each.labels?.length || each.textContent.trim()))
            .map((each) => each.id)"""
    )
    assert unnamed == []

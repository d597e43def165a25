"""`braid chat`: the screen, with a scripted session and with a tiny model; and the command without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from textual.content import Content
from textual.events import Paste
from textual.geometry import Size
from textual.pilot import Pilot
from textual.widgets import Static

from braid.cli.talk import ChatController
from braid.cli.talk.app import ChatApp, ThemeName
from braid.cli.talk.help import KEYS, HelpScreen
from braid.cli.talk.line_input import LineInput
from braid.cli.talk.panes import ConversationPane, SideLane
from braid.errors import EmptyInputError, InputError, PoolFullError, PoolTooSmallError, TranscriptError
from braid.model.loading import load
from braid.sessions.session import Engine
from braid.streams.presets import topology
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript
from tests.cli.conftest import Braid, events
from tests.cli.scripted import ScriptedSession

anyio_test = pytest.mark.anyio

NAMES = {" ": "space", "?": "question_mark", ".": "full_stop", ",": "comma"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Screen:
    """The app as a person sees it."""

    def __init__(self, app: ChatApp, pilot: Pilot[None], session: ScriptedSession) -> None:
        self.app, self.pilot, self.session = app, pilot, session

    async def type(self, text: str) -> None:
        await self.pilot.press(*(NAMES.get(letter, letter) for letter in text))
        await self.settle()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Wait for the next picture."""
        for _ in range(2):
            await self.pilot.pause(0.06)

    @property
    def line(self) -> str:
        return self.app.query_one(LineInput).text

    def texts(self, selector: str) -> list[str]:
        """What the widgets say, from top to bottom."""
        return [str(widget.content) for widget in self.app.query(selector).results(Static)]

    @property
    def picture(self) -> str:
        return self.app.export_screenshot().replace("&#160;", " ")


@asynccontextmanager
async def screen(
    *sessions: ScriptedSession,
    size: tuple[int, int] = (100, 30),
    theme: ThemeName = "dark",
    pause_s: float = 60,
    save: Path | None = None,
    is_live: bool = True,
    reads_ahead: bool = False,
) -> AsyncIterator[Screen]:
    left = list(sessions) or [ScriptedSession()]
    session = left[0]
    controller = ChatController(lambda: left.pop(0), save=save, is_live=is_live, reads_ahead=reads_ahead)
    app = ChatApp(controller, name="scripted · think-aloud", theme=theme, pause_s=pause_s)
    async with app.run_test(size=size, notifications=True) as pilot:
        shown = Screen(app, pilot, session)
        await shown.settle()
        yield shown
        controller.leave()
        await shown.settle()
    assert all(each.is_closed for each in sessions[: len(sessions) - len(left)])


@anyio_test
async def test_words_move_from_the_line_into_the_bubble() -> None:
    async with screen() as shown:
        await shown.type("How many app")
        assert shown.line == "app"
        assert shown.session.asked == ["write:How", "write: many"]
        assert shown.texts(".said") == ["you · turn 1\nHow many"]
        await shown.press("backspace", "backspace")
        await shown.type("pples?")
        await shown.press("enter")
        assert shown.line == ""
        assert shown.session.asked[2:] == ["write: apples?", "end"]
        assert shown.texts(".said") == ["you · turn 1\nHow many apples?"]


@anyio_test
async def test_what_was_released_cannot_be_brought_back() -> None:
    async with screen() as shown:
        await shown.type("How many")
        await shown.press("ctrl+z", "ctrl+z", "home", "backspace")
        assert shown.session.asked == ["write:How"]
        assert "How" not in shown.line


@anyio_test
async def test_a_question_that_is_read_ahead_stays_in_the_line() -> None:
    async with screen(reads_ahead=True, pause_s=0.05) as shown:
        await shown.type("Hello you")
        await shown.pilot.pause(0.2)
        assert shown.line == "Hello you"
        assert shown.session.asked[-1] == "snapshot:Hello you"
        await shown.press("backspace")
        await shown.pilot.pause(0.2)
        assert shown.session.asked[-1] == "snapshot:Hello yo"
        await shown.press("enter")
        assert shown.line == ""
        assert shown.session.asked[-2:] == ["snapshot:Hello yo", "commit"]
        assert "write:" not in "".join(shown.session.asked)


@anyio_test
async def test_a_pause_releases_the_last_word() -> None:
    async with screen(pause_s=0.15) as shown:
        await shown.type("Hello")
        await shown.pilot.pause(0.3)
        await shown.settle()
        assert shown.session.asked == ["write:Hello"]
        assert shown.line == ""


@anyio_test
async def test_unread_words_are_dim_until_they_are_read() -> None:
    session = ScriptedSession()
    session.reads_at_once = False
    async with screen(session) as shown:
        await shown.type("How many times d")
        assert dim_text(shown) == "How many times"
        session.row(user="How many")
        await shown.settle()
        assert dim_text(shown) == "times"
        session.row(user=" times")
        await shown.settle()
        assert dim_text(shown) == ""
        assert shown.texts(".said") == ["you · turn 1\nHow many times"]


def dim_text(shown: Screen) -> str:
    """What of the question is dim."""
    (bubble,) = shown.app.query(".said").results(Static)
    content = bubble.content
    assert isinstance(content, Content)
    spans = [span for span in content.spans if "muted" in str(span.style)]
    return "".join(content.plain[span.start : span.end] for span in spans).strip()


@anyio_test
async def test_answers_stream_and_thoughts_stand_beside_them() -> None:
    async with screen() as shown:
        await shown.type("Why?")
        await shown.press("enter")
        assert shown.texts(".answered") == ["output\n…"]
        shown.session.wake("thought", "output")
        shown.session.row(thought="They ask", output="Because")
        await shown.settle()
        assert shown.texts(".answered")[0].endswith("\nBecause▍")
        assert shown.texts(".inner") == ["thought\nThey ask▍"]
        (part,) = shown.app.query(".inner").results(Static)
        assert part.border_title == "turn 1"
        status = shown.texts("#status")[0]
        assert "● output speaking" in status and "○ user waiting" in status
        assert "2 rows" in status and "tokens in KV" in status and "first answer 0." in status
        shown.session.sleep("thought", "output")
        shown.session.end_turn()
        await shown.settle()
        assert shown.texts(".answered")[0].endswith("\nBecause")
        await shown.type("How?")
        await shown.press("enter")
        shown.session.say("so", "thought")
        await shown.settle()
        assert shown.texts(".inner") == ["thought\nThey ask", "thought\nso"]


@anyio_test
async def test_an_aside_stands_below_the_answer_and_is_marked_in_it() -> None:
    async with screen() as shown:
        await shown.type("Why?")
        await shown.press("enter")
        shown.session.wake("output")
        shown.session.row(output="Because")
        await shown.settle()
        await shown.type("And how?")
        await shown.press("enter")
        shown.session.row(output="of it")
        await shown.settle()
        assert shown.texts(".answered")[0].endswith("\nBecause ◂ of it▍")
        order = [line.split("\n")[-1] for line in shown.texts(".bubble")]
        assert order == ["Why?", "Because ◂ of it▍", "And how?"]


@anyio_test
async def test_what_streams_say_cannot_draw_on_the_screen() -> None:
    async with screen() as shown:
        await shown.type("Why?")
        await shown.press("enter")
        shown.session.say("\x1b[31m[bold]red[/]")
        await shown.settle()
        assert "␛[31m[bold]red[/]" in shown.texts(".answered")[0]


@anyio_test
async def test_keys_work_while_one_types() -> None:
    async with screen() as shown:
        await shown.type("Why?")
        await shown.press("enter")
        shown.session.wake("output")
        await shown.settle()
        await shown.type("and")
        await shown.press("escape")
        assert shown.session.asked[-1] == "interrupt"
        assert shown.line == "and"
        lane = shown.app.query_one(SideLane)
        await shown.press("ctrl+t")
        assert not lane.display
        await shown.press("ctrl+t")
        assert lane.display
        await shown.press("f1")
        assert isinstance(shown.app.screen, HelpScreen)
        assert all(key in shown.picture for key in KEYS)
        await shown.type("x")
        shown.session.row(output="meanwhile")
        await shown.settle()
        await shown.press("escape")
        assert not isinstance(shown.app.screen, HelpScreen)
        assert shown.session.asked.count("interrupt") == 1
        assert shown.line == "and"
        assert "meanwhile" in shown.texts(".answered")[0]
        await shown.press("f2")
        assert shown.app.theme == "braid-light"


@pytest.mark.parametrize("key", ["ctrl+d", "ctrl+q"])
@anyio_test
async def test_leaving(key: str) -> None:
    async with screen() as shown:
        await shown.type("Why so")
        await shown.press(key)
        assert shown.session.is_closed
        assert not shown.app.is_running


@anyio_test
async def test_saving_and_a_new_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    second = ScriptedSession()
    async with screen(ScriptedSession(), second) as shown:
        await shown.type("Why?")
        await shown.press("enter")
        await shown.press("ctrl+s")
        (note,) = shown.app._notifications
        name = note.message.removeprefix("Saved to ")
        assert name.startswith("chat-") and Transcript.load(tmp_path / name).text("user") == "Why?"
        await shown.press("ctrl+n")
        assert shown.texts(".bubble") == []
        assert "reads along" in shown.texts("Empty")[0]
        await shown.type("How?")
        await shown.press("enter")
        assert second.asked == ["write:How?", "end"]
        assert shown.texts(".said") == ["you · turn 1\nHow?"]


@anyio_test
async def test_a_failure_is_shown_with_what_to_do_and_nothing_is_lost(tmp_path: Path) -> None:
    saved = tmp_path / "talk.jsonl"
    async with screen(ScriptedSession(), ScriptedSession(), save=saved) as shown:
        await shown.type("Why?")
        await shown.press("enter")
        shown.session.say("Because")
        shown.session.fail(PoolFullError("the pool is full"))
        await shown.settle()
        (error,) = shown.texts(".error")
        assert (
            "the pool is full" in error and "Ctrl-S" in error and "Ctrl-N" in error and "--kv-tokens" in error
        )
        assert "Because" in shown.texts(".answered")[0]
        assert Transcript.load(saved).text("output") == "Because"
        await shown.type("my next question")
        await shown.press("enter")
        assert shown.line == "my next question"
        await shown.press("ctrl+n")
        assert shown.texts(".error") == []
        await shown.type("?")
        await shown.press("enter")
        assert shown.texts(".said") == ["you · turn 1\nmy next question?"]


@anyio_test
async def test_words_that_could_not_be_sent_are_in_the_line_again() -> None:
    async with screen() as shown:
        shown.session.refusal = InputError("not this")
        await shown.type("One tw")
        assert shown.line == "One tw"
        assert shown.texts(".bubble") == []


@anyio_test
async def test_a_text_of_several_lines_can_be_pasted() -> None:
    async with screen() as shown:
        shown.app.post_message(Paste("one two\nthree"))
        await shown.settle()
        assert shown.line == "three"
        await shown.press("enter")
        assert shown.session.asked == ["write:one two", "write:\nthree", "end"]


@anyio_test
async def test_ctrl_j_begins_a_new_line_within_the_turn() -> None:
    async with screen(is_live=False) as shown:
        await shown.type("one")
        await shown.press("ctrl+j")
        await shown.type("two")
        assert shown.line == "one\ntwo"
        assert shown.app.query_one(LineInput).size.height == 2
        await shown.press("enter")
        assert shown.session.asked == ["write:one\ntwo", "end"]
        assert shown.line == ""


@pytest.mark.parametrize(("width", "is_beside"), [(120, True), (84, True), (60, False), (24, False)])
@anyio_test
async def test_the_side_lane_stands_below_where_it_is_narrow(width: int, is_beside: bool) -> None:
    async with screen(size=(width, 24)) as shown:
        await shown.type("Why do you ask?")
        await shown.press("enter")
        shown.session.say("x " * 60, "thought")
        await shown.settle()
        conversation = shown.app.query_one(ConversationPane).region
        lane = shown.app.query_one(SideLane).region
        assert (lane.y == conversation.y) is is_beside
        assert (lane.x == conversation.x) is not is_beside
        assert min(conversation.height, lane.height) >= 4
        assert shown.app.query_one(LineInput).region.bottom <= Size(width, 24).height


@anyio_test
async def test_a_topology_without_inner_streams_has_no_side_lane() -> None:
    async with screen(ScriptedSession(topology("plain"))) as shown:
        assert not shown.app.query_one(SideLane).display


@anyio_test
async def test_long_conversations_follow_what_comes_unless_one_looks_back() -> None:
    async with screen(size=(80, 20)) as shown:
        pane = shown.app.query_one(ConversationPane)
        for number in range(4):
            await shown.type(f"q{number}?")
            await shown.press("enter")
            shown.session.say("word " * 60)
            shown.session.end_turn()
            await shown.settle()
        assert pane.max_scroll_y > 0
        assert pane.scroll_y == pane.max_scroll_y
        await shown.press("pageup")
        await shown.pilot.pause(0.5)
        assert pane.scroll_y < pane.max_scroll_y


@pytest.mark.parametrize("theme", ["light", "dark"])
@anyio_test
async def test_colours(theme: ThemeName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kinds of stream, three colours; none where none are wanted."""
    async with screen(theme=theme) as shown:
        colours = {"light": ("#1d4ed8", "#7e22ce", "#047857"), "dark": ("#60a5fa", "#c084fc", "#34d399")}[
            theme
        ]
        assert all(colour in shown.picture for colour in colours)
    monkeypatch.setenv("NO_COLOR", "1")
    async with screen(theme=theme) as shown:
        assert not any(colour in shown.picture for colour in colours)
        assert "output" in shown.picture


@pytest.mark.parametrize(("value", "name"), [("0;15", "light"), ("15;0", "dark"), ("", "dark")])
@anyio_test
async def test_the_terminal_says_whether_it_is_light(
    value: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLORFGBG", value)
    async with screen(theme="auto") as shown:
        assert shown.app.theme == f"braid-{name}"


@anyio_test
async def test_a_conversation_with_a_model(tiny: Path, duet: Path, tmp_path: Path) -> None:
    """Two turns, words typed while it speaks, an interruption; the transcript has it all."""
    engine = Engine(load(str(tiny), threads=1))
    chosen = _with_latency(topology(str(duet)))
    saved = tmp_path / "talk.jsonl"
    controller = ChatController(partial(engine.open, chosen, seed=1), save=saved, max_rows=100)
    app = ChatApp(controller, name="tiny", pause_s=0.2)

    async def turns_over(number: int) -> None:
        with anyio.fail_after(60):
            while sum(turn.is_over for turn in controller.state.turns) < number:
                await pilot.pause(0.02)

    async with app.run_test(size=(100, 30)) as pilot:
        for text in ("hello you there", "and again"):
            await pilot.press(*(NAMES.get(letter, letter) for letter in text))
            await pilot.pause(0.3)  # the last word is read too
            await pilot.press("enter")
            await turns_over(len(controller.state.turns))
        await pilot.pause(0.1)
        shown = [str(widget.content) for widget in app.query(".said").results(Static)]
        assert shown == ["you · turn 1\nhello you there", "you · turn 2\nand again"]
        assert [turn.num_read for turn in controller.state.turns] == [15, 9]
        first = controller.state.turns[0]
        assert first.outputs["output"].num_tokens == 6
        assert first.outputs["thought"].num_tokens > 0
        assert first.seconds_to_answer is not None
        assert controller.kv_tokens > 0
        await pilot.press("ctrl+n")
        await pilot.pause(0.3)
        await pilot.press("h", "i", "enter")
        await turns_over(1)
        await pilot.press("ctrl+d")
        await pilot.pause(0.2)
    assert controller.error is None
    assert Transcript.load(saved).text("user") == "hello you thereand again"
    assert Transcript.load(tmp_path / "talk-2.jsonl").text("user") == "hi"


def _with_latency(chosen: Topology) -> Topology:
    user = chosen.streams["user"].model_copy(update={"max_latency_ms": 20.0})
    return chosen.model_copy(update={"streams": {**chosen.streams, "user": user}})


# ---- the command


def test_piped_lines_are_turns(braid: Braid, tiny: Path, duet: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.jsonl"
    result = braid("chat", tiny, "-t", duet, "--save", saved, "--threads", "1", stdin=b"Hello\n\nyou there")
    assert result.exit_code == 0, result.stderr
    transcript = Transcript.load(saved)
    assert len(transcript.turns()) == 2
    assert transcript.text("user") == "Helloyou there"
    assert "thought> " in result.stderr
    assert "Loading" in result.stderr
    assert f"braid inspect {saved}" in result.stderr
    assert transcript.topology.streams["user"].max_latency_ms is None


def test_json_is_events(braid: Braid, tiny: Path, short: Path) -> None:
    result = braid("chat", tiny, "-t", short, "--json", "--threads", "1", stdin=b"Hello\nyou\n")
    assert result.exit_code == 0, result.stderr
    kinds = [event["event"] for event in events(result)]
    assert kinds.count("turn") == 2
    assert kinds[-1] == "closed"


def test_an_answer_without_end_is_ended(braid: Braid, tiny: Path) -> None:
    arguments = ("--max-rows", "7", "--json", "--threads", "1")
    result = braid("chat", tiny, "-t", "plain", *arguments, stdin=b"Hello\n")
    assert result.exit_code == 0
    rows = [event for event in events(result) if "output" in event.get("cells", {})]
    assert 7 <= len(rows) <= 10
    assert "7 rows" in result.stderr


def test_a_full_pool_has_its_own_exit_code_and_keeps_what_was_said(
    braid: Braid, tiny: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "talk.jsonl"
    arguments = ("--kv-tokens", "96", "--save", saved, "--json", "--threads", "1")
    result = braid("chat", tiny, "-t", "plain", *arguments, stdin=b"Hello there\n")
    assert result.exit_code == PoolFullError.exit_code
    assert events(result)[-1]["code"] == PoolFullError.code
    assert [event["event"] for event in events(result)].count("error") == 1
    assert len(Transcript.load(saved).rows) > 20


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--save", "no/such/folder/talk.jsonl"], TranscriptError),
        (["--copies", "thought=many"], InputError),
        (["--dtype", "float8"], InputError),
        (["--topology", "agent", "--read-ahead"], InputError),
        (["--topology", "plain", "--read-ahead"], InputError),
        (["--topology", "plain", "--mode", "repair"], InputError),
        (["--kv-tokens", "8"], PoolTooSmallError),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], error: type[EmptyInputError], braid: Braid, tiny: Path
) -> None:
    result = braid("chat", tiny, *arguments, "--threads", "1", stdin=b"Hello\n")
    assert result.exit_code == error.exit_code, result.output
    assert "Error: " in result.stderr


def test_lines_that_are_not_text(braid: Braid, tiny: Path, short: Path) -> None:
    result = braid("chat", tiny, "-t", short, "--threads", "1", stdin=b"good\nbad \xff\n")
    assert result.exit_code == InputError.exit_code
    assert "byte" in result.stderr


def test_a_topology_without_input_is_refused(braid: Braid, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "mute.yaml"
    file.write_text("streams:\n  output: {direction: output}\n")
    result = braid("chat", tiny, "-t", file, stdin=b"Hello\n")
    assert result.exit_code == InputError.exit_code
    assert "nobody can talk" in result.stderr


def test_help_has_examples_and_imports_nothing_heavy(braid: Braid) -> None:
    result = braid("chat", "--help")
    assert result.exit_code == 0
    assert "braid chat " in result.stdout.split("Examples")[1]
    program = "import sys, braid.cli.chat, braid.cli.talk; print({'torch', 'transformers', 'textual'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

"""The conversation without a terminal: which words go when, which turn they belong to, what the keys mean."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.cli.talk import ChatController, TalkState, split_words
from braid.cli.talk.contents import status
from braid.cli.talk.line_mode import LineMode, lines_of
from braid.errors import BraidError, InputError, PoolFullError, UnsupportedByBackend
from braid.streams.events import CellData, Reuse, RowEvent, parse_event
from braid.streams.presets import topology
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript
from tests.cli.scripted import ScriptedSession

TYPED = st.text(alphabet="ab .,\n\t\u3000你好é🙂\u0301", max_size=40)


# ---- words


@given(TYPED)
def test_a_draft_is_whole_words_space_and_one_last_word(draft: str) -> None:
    ready, gap, rest = split_words(draft)
    assert ready + gap + rest == draft
    assert not gap.strip()
    assert ready == ready.rstrip()
    assert split_words(rest)[0] == ""


def test_a_word_goes_when_the_next_one_has_begun() -> None:
    assert split_words("") == ("", "", "")
    assert split_words("How ") == ("", "", "How ")
    assert split_words("How m") == ("How", " ", "m")
    assert split_words("  How  many app") == ("  How  many", " ", "app")
    assert split_words("don't st") == ("don't", " ", "st")


def test_scripts_without_spaces_go_character_by_character() -> None:
    assert split_words("你") == ("", "", "你")
    assert split_words("你好") == ("你", "", "好")
    assert split_words("你好。") == ("你好", "", "。")
    assert split_words("か\u3099") == ("", "", "か\u3099")  # one syllable, with its mark


# ---- the controller


class Talk:
    """A controller that runs, its sessions, and what it told."""

    def __init__(self, sessions: Sequence[ScriptedSession | BraidError], **settings: object) -> None:
        self.sessions = [each for each in sessions if isinstance(each, ScriptedSession)]
        left = list(sessions)

        def open_session() -> ScriptedSession:
            found = left.pop(0)
            if isinstance(found, BraidError):
                raise found
            return found

        self.controller = ChatController(open_session, **settings)  # type: ignore[arg-type]
        self.told: list[str] = []
        self.returned: list[str] = []
        self.line = ""
        self.controller.tell = lambda message, severity: self.told.append(message)
        self.controller.on_returned = self.returned.append

    @property
    def session(self) -> ScriptedSession:
        return self.sessions[0]

    @property
    def state(self) -> TalkState:
        return self.controller.state

    def type(self, text: str) -> None:
        """Type letter by letter at the end of the line."""
        for letter in text:
            self.line = self.controller.type(self.line + letter)

    def pause(self) -> None:
        self.line = self.controller.pause(self.line)

    def enter(self, text: str = "") -> None:
        self.type(text)
        self.line = self.controller.enter(self.line)

    async def ask(self, text: str) -> None:
        self.enter(text)
        await settle()

    @property
    def written(self) -> str:
        """All that the session was told to read."""
        verbs = self.session.asked
        return "".join(verb.removeprefix("write:") for verb in verbs if verb.startswith("write:"))


@asynccontextmanager
async def talking(*sessions: ScriptedSession | BraidError, **settings: object) -> AsyncIterator[Talk]:
    talk = Talk(sessions or [ScriptedSession()], **settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk.controller.run)
        await settle()
        yield talk
        talk.controller.leave()


async def settle() -> None:
    """Let everybody do what there is to do."""
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


anyio_test = pytest.mark.anyio


@given(TYPED.filter(lambda text: text.strip() != ""), st.sets(st.integers(0, 40), max_size=4))
def test_all_that_is_typed_arrives_once_and_in_order(text: str, pauses: set[int]) -> None:
    """Whatever the words and wherever one pauses, the model reads the text, without the space around it."""

    async def scenario() -> None:
        async with talking() as talk:
            for place, letter in enumerate(text):
                talk.type(letter)
                if place in pauses:
                    talk.pause()
                await settle()
                said = talk.written + talk.controller._gap + talk.line
                assert said.lstrip() == text[: place + 1].lstrip()
            await talk.ask("")
            assert talk.written == text.strip()
            assert talk.session.asked[-1] == "end"
            assert talk.state.turns[0].said == text.strip()

    anyio.run(scenario)


@anyio_test
async def test_words_go_one_by_one_and_the_line_keeps_the_last() -> None:
    async with talking() as talk:
        talk.type("How many app")
        assert talk.line == "app"
        await settle()
        assert talk.session.asked == ["write:How", "write: many"]
        talk.pause()
        assert talk.line == ""
        await talk.ask("les?")
        assert talk.session.asked[2:] == ["write: app", "write:les?", "end"]


@anyio_test
async def test_whole_lines_go_at_enter() -> None:
    async with talking(is_live=False) as talk:
        talk.type("How many apples?")
        talk.pause()
        await settle()
        assert talk.session.asked == []
        assert talk.line == "How many apples?"
        await talk.ask("")
        assert talk.session.asked == ["write:How many apples?", "end"]


@anyio_test
async def test_a_question_is_read_ahead_and_committed_at_enter() -> None:
    async with talking(reads_ahead=True) as talk:
        talk.type("Why is")
        talk.controller.look(talk.line)
        await settle()
        talk.type(" it")
        talk.controller.look(talk.line)
        talk.type(" blue?")
        talk.controller.look(talk.line)  # before the one before has gone
        await settle()
        assert talk.line == "Why is it blue?" and not talk.state.turns
        talk.enter()
        await settle()
        assert talk.line == ""
        assert talk.session.asked == [
            "snapshot:Why is",
            "snapshot:Why is it blue?",
            "snapshot:Why is it blue?",
            "commit",
        ]
        talk.controller.look("An aside")  # of what is being answered nothing can change
        talk.enter("An aside")
        await settle()
        assert talk.session.asked[4:] == ["write:\nAn aside", "end"]
        talk.session.say("It is.")
        talk.session.end_turn(Reuse(read=5, reused=4, drafted=9, kept=3, accepted=2))
        await settle()
        assert "ahead of Enter 4 of 5 read, 3 of 9 drafted kept, 2 guessed right" in str(
            status(talk.state, 0)
        )
        assert talk.session.mode == "exact" and "fell back" not in str(status(talk.state, 0))


@anyio_test
async def test_what_is_kept_behind_an_edit_is_told() -> None:
    async with talking(reads_ahead=True, mode="repair") as talk:
        talk.controller.look("Why")
        await settle()
        assert (talk.session.asked, talk.session.mode) == (["snapshot:Why"], "repair")
        talk.session.mode = "exact"
        talk.enter("Why?")
        await settle()
        assert talk.session.asked[1:] == ["snapshot:Why?", "commit"] and talk.session.mode == "repair"
        talk.session.end_turn(
            Reuse(mode="repair", read=90, reused=80, repaired=32, fallbacks=1, drift=0.0625)
        )
        await settle()
        assert "0 guessed right, 32 repaired, 1 fell back, drift 0.062" in str(status(talk.state, 0))


@anyio_test
async def test_a_question_that_is_refused_returns_to_the_line() -> None:
    async with talking(reads_ahead=True) as talk:
        talk.type("Why?")
        talk.session.refusal = InputError("no")
        talk.controller.look(talk.line)
        await settle()
        assert not talk.told and talk.session.asked == []  # Enter will tell
        talk.session.refusal = InputError("no")
        talk.enter()
        await settle()
        assert (talk.told, talk.returned) == (["no"], ["Why?"])
        talk.enter("Why?")
        await settle()
        assert talk.session.asked == ["snapshot:Why?", "commit"]


@anyio_test
async def test_enter_without_words_sends_nothing() -> None:
    async with talking() as talk:
        await talk.ask("   ")
        assert talk.session.asked == []
        assert talk.told == ["There is nothing to send yet."]
        assert talk.state.turns == []


@anyio_test
async def test_answers_and_thoughts_are_kept_apart_by_turn() -> None:
    async with talking() as talk:
        for question, thought, answer in (("Why?", "hm", "Because."), ("How?", "so", "Like this.")):
            await talk.ask(question)
            talk.session.say(thought, "thought")
            talk.session.say(answer)
            talk.session.end_turn()
            await settle()
        first, second = talk.state.turns
        assert [spoken.text for spoken in first.outputs.values()] == ["hm", "Because."]
        assert (second.number, second.said, second.outputs["output"].text) == (2, "How?", "Like this.")
        assert talk.state.kinds == {"user": "input", "thought": "inner", "output": "answer"}


@anyio_test
async def test_a_line_that_comes_while_it_speaks_is_an_aside_of_the_turn() -> None:
    async with talking() as talk:
        await talk.ask("Why is the sky blue?")
        talk.session.wake("output")
        talk.session.row(output="Because")
        await settle()
        await talk.ask("And at night?")
        talk.session.row(output=" of light.")
        talk.session.end_turn()
        await settle()
        (turn,) = talk.state.turns
        assert talk.written == "Why is the sky blue?\nAnd at night?"
        (aside,) = turn.asides
        assert aside.heard_at == len("Because")
        assert [turn.said[start:stop] for start, stop in turn.lines] == [
            "Why is the sky blue?",
            "\nAnd at night?",
        ]


@anyio_test
async def test_rows_need_nothing_between_lines() -> None:
    """They have a token for the end of each."""
    async with talking(ScriptedSession(topology("solve"))) as talk:
        await talk.ask("One")
        await talk.ask("Two")
        assert talk.session.asked == ["write:One", "end", "write:Two", "end"]


@anyio_test
async def test_what_was_not_read_when_the_answer_ends_begins_the_next_turn() -> None:
    async with talking() as talk:
        await talk.ask("Why is the sky blue?")
        talk.session.wake("output")
        talk.type("And at ")
        await settle()
        talk.session.reads_at_once = False
        talk.type("night i")  # written, but not read when the turn ends
        talk.session.end_turn()
        await settle()
        first, second = talk.state.turns
        assert (first.said, first.is_over) == ("Why is the sky blue?\nAnd", True)
        assert second.said == " at night"
        await talk.ask("s it?")
        assert talk.session.asked[-3:] == ["write: is", "write: it?", "end"]
        assert second.said == " at night is it?"
        assert second.entered_at is not None


@anyio_test
async def test_the_rest_of_a_line_is_the_next_question() -> None:
    async with talking() as talk:
        await talk.ask("Why?")
        talk.session.wake("output")
        talk.type("And at n")
        await settle()
        talk.session.end_turn()
        await settle()
        await talk.ask("ight?")
        assert talk.session.asked == ["write:Why?", "end", "write:\nAnd", "write: at", "write:night?", "end"]
        assert [turn.said for turn in talk.state.turns] == ["Why?\nAnd at", "night?"]


@anyio_test
async def test_a_line_that_was_read_too_late_for_an_answer_is_asked_again() -> None:
    async with talking() as talk:
        await talk.ask("Why?")
        talk.session.wake("output")
        talk.type("And then")
        talk.pause()
        await settle()
        talk.session.end_turn()
        await settle()
        await talk.ask("")
        assert talk.session.asked[-2:] == ["write:And then", "end"]
        assert [turn.said for turn in talk.state.turns] == ["Why?\nAnd then", "And then"]


@anyio_test
async def test_esc_ends_what_speaks() -> None:
    async with talking() as talk:
        talk.controller.interrupt()
        assert talk.told == ["Nothing is speaking."]
        await talk.ask("Why?")
        talk.controller.interrupt()  # nothing speaks yet, and nothing shall
        await settle()
        talk.session.wake("output")
        await settle()
        talk.controller.interrupt()
        await settle()
        assert talk.session.asked[2:] == ["cancel", "interrupt"]


@anyio_test
async def test_an_endless_answer_is_ended_once() -> None:
    async with talking(max_rows=5) as talk:
        await talk.ask("Why?")
        talk.session.wake("output")
        for _ in range(4):
            talk.session.row(output="x")
        talk.type("Stop no")  # what comes in between counts anew
        await settle()
        for _ in range(4):
            talk.session.row(output="x")
        await settle()
        assert "interrupt" not in talk.session.asked
        for _ in range(4):
            talk.session.row(output="x")
        await settle()
        assert talk.session.asked.count("interrupt") == 1
        assert any("5 rows" in message for message in talk.told)


@anyio_test
async def test_what_a_session_refuses_comes_back_and_is_not_sent_again_by_itself() -> None:
    async with talking() as talk:
        talk.session.refusal = InputError("not this")
        talk.type("One two three")
        await settle()
        assert talk.returned == ["One two "]
        assert talk.told == ["not this"]
        assert talk.state.turns == []
        talk.line = talk.returned.pop() + talk.line
        talk.type(" four")
        await settle()
        assert talk.session.asked == []
        await talk.ask("")
        assert talk.session.asked == ["write:One two three four", "end"]


@anyio_test
async def test_a_failure_loses_nothing(tmp_path: Path) -> None:
    sessions = ScriptedSession(), ScriptedSession()
    saved = tmp_path / "talk.jsonl"
    async with talking(*sessions, save=saved) as talk:
        await talk.ask("Why?")
        talk.session.wake("output")
        talk.session.row(output="Be")
        talk.session.fail(PoolFullError("no room"))
        await settle()
        assert talk.state.error is not None and talk.state.error.code == "cache.full"
        assert talk.state.word("output") == "stopped"
        assert Transcript.load(saved).text("output") == "Be"  # kept without being asked
        talk.type("a new qu")
        assert talk.line == "a new qu"
        assert talk.controller.enter(talk.line) == "a new qu"
        assert "over" in talk.told[-1]
        talk.controller.new()
        assert talk.state.turns == []
        await talk.ask("estion")
        assert sessions[1].asked == ["write:a new", "write: question", "end"]
        sessions[1].say("Yes.")
        sessions[1].end_turn()
        await settle()
    assert Transcript.load(tmp_path / "talk-2.jsonl").text("output") == "Yes."
    assert talk.controller.keeper.written == [saved, tmp_path / "talk-2.jsonl"]
    assert Transcript.load(saved).text("output") == "Be"


@anyio_test
async def test_words_on_their_way_when_it_fails_return_to_the_line() -> None:
    async with talking() as talk:
        talk.type("One two three")
        talk.session.fail(PoolFullError("no room"))
        await settle()
        assert talk.written + "".join(talk.returned) + talk.line == "One two three"
        assert talk.state.is_closed


@anyio_test
async def test_a_new_conversation_knows_nothing_of_the_old_one() -> None:
    sessions = ScriptedSession(), ScriptedSession()
    async with talking(*sessions) as talk:
        await talk.ask("Why?")
        sessions[0].wake("output")
        talk.type("and the")
        await settle()
        talk.controller.new()
        talk.controller.new()  # as if the key were held
        talk.type("n wh")
        await settle()
        assert sessions[0].is_closed
        assert sessions[0].asked == ["write:Why?", "end", "write:\nand"]
        assert sessions[1].asked == ["write:then"]
        assert [turn.said for turn in talk.state.turns] == ["then"]
        assert talk.state.speaking == []


@anyio_test
async def test_a_conversation_that_cannot_be_opened_is_a_failure_like_another() -> None:
    async with talking(ScriptedSession(), UnsupportedByBackend("not now"), ScriptedSession()) as talk:
        await talk.ask("Why?")
        talk.controller.new()
        await settle()
        assert talk.state.error is not None and talk.state.error.message == "not now"
        talk.controller.new()
        await talk.ask("Why?")
        assert talk.sessions[1].asked == ["write:Why?", "end"]


@anyio_test
async def test_leaving_is_possible_at_any_time() -> None:
    with anyio.fail_after(5):
        async with talking(ScriptedSession(), ScriptedSession()) as talk:
            talk.controller.new()
            talk.controller.leave()
        async with talking() as talk:
            talk.session.fail(PoolFullError("no room"))
        async with talking() as talk:
            talk.type("One two")
    assert talk.session.is_closed


def test_a_first_session_that_cannot_be_opened_raises() -> None:
    with pytest.raises(UnsupportedByBackend):
        Talk([UnsupportedByBackend("never")])


# ---- figures


def test_the_first_answer_is_timed_from_enter_and_by_what_the_model_chose() -> None:
    now = 10.0
    state = TalkState(topology("think-aloud").lanes(), "user", clock=lambda: now)
    state.sent("Why?")
    state.entered()
    for now, label, forced in ((11.0, "thought", False), (12.0, "output", True), (13.5, "output", False)):
        cell = CellData(token=1, text="x", forced=forced)
        state.saw(RowEvent(t=int(now), cells={label: cell}))
    assert state.seconds_to_answer == 3.5
    assert state.rows_per_s == pytest.approx(2 / 2.5)
    assert state.num_rows == 3


def test_text_that_is_held_back_until_the_end_is_shown() -> None:
    session = ScriptedSession()
    session.wake("output")
    session.row(output="Ye")
    session.delta("output", "Yes")
    state = TalkState(session.transcript.lanes, "user")
    for event in session._events:
        state.saw(event)
    assert state.turns[0].outputs["output"].text == "Yes"
    assert state.turns[0].outputs["output"].num_tokens == 1


# ---- lines instead of a screen


class Lines:
    """Line mode with a script: what to answer to each question."""

    def __init__(self, answers: dict[str, str], chosen: Topology | None = None, **settings: bool) -> None:
        self.session = ScriptedSession(chosen)
        self.out, self.err = io.StringIO(), io.StringIO()
        self.controller = ChatController(lambda: self.session, is_live=False)
        self.mode = LineMode(self.controller, self.out, self.err, **settings)
        self._answers = answers

    def run(self, *pieces: str) -> None:
        async def arrive() -> AsyncIterator[str]:
            for piece in pieces:
                await settle()
                yield piece

        async def go() -> None:
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._play)
                    try:
                        await self.mode.run(lines_of(arrive()))
                    except (BraidError, OSError) as error:
                        self.error = error
                    tasks.cancel_scope.cancel()

        self.error: Exception | None = None
        anyio.run(go)

    async def _play(self) -> None:
        done = 0
        while True:
            await anyio.lowlevel.checkpoint()
            if self.session.asked[done:].count("end"):
                question = self.session.asked[-2].removeprefix("write:")
                done = len(self.session.asked)
                self._answer(question)

    def _answer(self, question: str) -> None:
        if question == "fail":
            self.session.fail(PoolFullError("no room"))
            return
        self.session.say("I think\nso", "thought")
        self.session.say(self._answers[question])
        self.session.end_turn()


def test_each_line_is_a_turn() -> None:
    lines = Lines({"Why?": "Because\nof it.", "How?": "So."})
    lines.run("Why", "?\r\n\n  \nHo", "w?")
    assert lines.error is None
    assert lines.out.getvalue() == "Because\nof it.\nSo.\n"
    assert lines.err.getvalue() == "thought> I think\nthought> so\n" * 2
    assert lines.session.asked == ["write:Why?", "end", "write:How?", "end"]


def test_several_answers_are_named() -> None:
    streams = {
        "user": {"direction": "input"},
        "output": {"direction": "output"},
        "b": {"direction": "output"},
    }
    thought = {"thought": {"direction": "output", "visibility": "internal"}}
    lines = Lines({"Why?": "So."}, Topology.from_dict({"streams": {**streams, **thought}}))
    lines.run("Why?\n")
    assert lines.out.getvalue() == "output> So.\n"


def test_a_person_is_prompted() -> None:
    lines = Lines({"Why?": "So."})
    lines.mode._prompt = "user> "
    lines.run("Why?\n")
    assert lines.err.getvalue() == "user> thought> I think\nthought> so\nuser> "


def test_json_has_every_event_and_nothing_else() -> None:
    lines = Lines({"Why?": "So."}, as_json=True)
    lines.run("Why?\n")
    kinds = [parse_event(line).event for line in lines.out.getvalue().splitlines()]
    assert kinds.count("row") == 4  # the question, two words of thought with a line end between, the answer
    assert kinds[-2:] == ["turn", "closed"]
    assert lines.err.getvalue() == ""


def test_what_was_said_before_a_failure_is_written_and_the_failure_raised() -> None:
    lines = Lines({"Why?": "So."})
    lines.run("Why?\nfail\nnever\n")
    assert isinstance(lines.error, PoolFullError)
    assert lines.out.getvalue() == "So.\n"
    assert "write:never" not in lines.session.asked


def test_it_ends_when_nobody_reads_the_answer() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    for as_json in (False, True):
        lines = Lines({"Why?": "So.", "How?": "So."})
        lines.mode = LineMode(lines.controller, Closed(), lines.err, as_json=as_json)
        lines.run("Why?\nHow?\n")
        assert isinstance(lines.error, BrokenPipeError)
        assert "write:How?" not in lines.session.asked


def test_a_terminal_is_kept_safe_and_a_file_gets_what_was_said() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for out, expected in ((Terminal(), "␛[2J\n"), (io.StringIO(), "\x1b[2J\n")):
        lines = Lines({"Why?": "\x1b[2J"})
        lines.mode = LineMode(lines.controller, out, lines.err)
        lines.run("Why?\n")
        assert out.getvalue() == expected

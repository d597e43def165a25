"""`braid bench typing`: the same answers in every way, and each token counted once, where it was computed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from braid.bench.traces.file import Trace, last_edit_of, write_traces
from braid.bench.typing.command import bench_typing, chosen_traces, chosen_ways
from braid.bench.typing.figures import TARGETS, figures_of, is_right
from braid.bench.typing.live import run_live
from braid.bench.typing.llama import LlamaServer
from braid.bench.typing.machine import Machine
from braid.bench.typing.paying import bench_paying
from braid.bench.typing.run import _Replay, kv_tokens_for, replay, run_typing, sized
from braid.bench.typing.table import typing_markdown
from braid.bench.typing.turns import Part, Turn, TypingRun, parts_of, whole_text
from braid.bench.typing.ways import EXACT_WAYS, Way, make_way
from braid.cli import app
from braid.errors import ConnectionLostError, EngineError, InputError
from braid.streams.presets import topology as preset
from tests.engine.harness import stock
from tests.model.folders import save_tiny

LONG = "".join(f"{number} bottles of beer on the wall, " for number in range(8))
EDITED = LONG[:40] + "and gin " + LONG[40:]


def trace(name: str, texts: list[str], commit_at: float, kind: str = "typing", **changes: Any) -> Trace:
    """A snapshot each 0.3 s."""
    events = [{"at": round(0.3 * number + 0.1, 3), "text": text} for number, text in enumerate(texts)]
    meta = {"last_edit": last_edit_of(texts), "changed_fact": False, "pause_before_commit_s": 0.0}
    data = {"id": name, "kind": kind, "question": texts[-1], "events": events, "commit_at": commit_at}
    return Trace.model_validate({**data, "meta": {**meta, **changes.pop("meta", {})}, **changes})


def steered() -> Trace:
    events = [{"at": 2.0, "text": "No"}, {"at": 2.3, "text": "Na"}, {"at": 2.6, "text": "No!"}]
    steer = {"question": "No!", "events": events, "commit_at": 2.9}
    return trace("steered", ["So", "So ut", "So ", "So it goes"], 1.6, "steering", steer=steer)


def middle() -> Trace:
    # The first text is long there before it is edited: machines that test are slow.
    events = [{"at": 0.1, "text": LONG}, {"at": 600.0, "text": EDITED}]
    meta = {"changed_fact": True, "answers": ["gin"], "stale_answers": ["beer"]}
    return trace("edited", [LONG, EDITED], 1200.0, "middle", events=events, meta=meta)


@cache
def measured() -> TypingRun:
    return run_typing(stock(), [steered(), middle()], answer_tokens=5, drift_bound=9.0)


def turns_of(run: TypingRun, way: str) -> list[Turn]:
    return [turn for turns in run.turns[way] for turn in turns or []]


# ---- one turn


def test_every_exact_way_says_what_is_said_without() -> None:
    run = measured()
    expected = [(turn.text, turn.tokens, turn.answer) for turn in turns_of(run, "none")]
    assert [text for text, _, _ in expected] == ["So it goes", "No!", EDITED]
    assert all(tokens for _, tokens, _ in expected)
    for way in EXACT_WAYS:
        assert [(turn.text, turn.tokens, turn.answer) for turn in turns_of(run, way)] == expected, way


def test_without_reading_ahead_all_is_computed_once_and_after_the_commit() -> None:
    for turn in turns_of(measured(), "none"):
        assert turn.forwards >= 1
        assert turn.decode == len(turn.tokens)
        assert turn.prefill >= len(turn.text)
        assert turn.prefill_after_edit == turn.prefill
        assert turn.ttft_s is not None
        assert turn.ttft_s == turn.ttfat_s
        assert 0 < turn.ttft_s < turn.done_s


def test_a_draft_that_is_complete_leaves_no_forward_to_the_commit() -> None:
    (edited,) = measured().turns["ahead"][1] or ()
    assert edited.forwards == 0
    assert edited.reuse is not None
    assert edited.reuse.reused == edited.reuse.read
    assert edited.reuse.kept == len(edited.tokens)
    (alone,) = measured().turns["read-ahead"][1] or ()
    assert alone.forwards == 0, "its first token was drawn when the input was read"
    assert alone.reuse is not None
    assert alone.reuse.kept == 1


def test_what_is_counted_is_what_the_engine_accounts_for() -> None:
    run = measured()
    (ahead,) = run.turns["ahead"][1] or ()
    (none,) = run.turns["none"][1] or ()
    reuse = ahead.reuse
    assert reuse is not None
    assert ahead.computed == reuse.computed
    # What `none` did not compute was computed in vain, and is what the engine calls wasted.
    assert ahead.computed - none.computed == reuse.wasted


def test_a_repair_computes_less_after_the_edit_and_its_drift_is_compared_with_what_is_true() -> None:
    run = measured()
    assert run.turns["repair"][0] is None, "nothing was edited in the middle"
    (repaired,) = run.turns["repair"][1] or ()
    (exact,) = run.turns["ahead"][1] or ()
    assert repaired.reuse is not None
    assert repaired.reuse.repaired == 32
    assert repaired.prefill_after_edit < exact.prefill_after_edit
    assert repaired.drift is not None
    assert 0 < repaired.drift < 1.5


class Twice(Way):
    """Computes everything twice: once for a session that nobody hears."""

    def __init__(self, inner: Way) -> None:
        super().__init__(inner.machine, inner.topology, inner.stream)
        self._inner = inner

    def begin(self) -> None:
        self._inner.begin()
        self._conversation = self._inner.conversation

    def hear(self, text: str) -> None:
        pass

    def commit(self, text: str) -> None:
        other, before = self.machine.open(self.topology, salt="other"), len(self.machine.news)
        self.machine.do(other, "tell", {self.stream: text})
        self.machine.settle(other)
        self.machine.do(other, "close")
        del self.machine.news[before:]
        self._inner.commit(text)


def test_whoever_computes_everything_twice_is_caught() -> None:
    topology = sized(preset("plain"), 5)
    wanted = trace("typed", ["So it", "So it goes"], 1.0)
    computed: dict[str, int] = {}
    for name in ("once", "twice"):
        machine = Machine(stock(), kv_tokens=2048)
        way = make_way("none", machine, topology, "user", 5)
        (turn,) = replay(machine, Twice(way) if name == "twice" else way, wanted)
        computed[name] = turn.computed
        if name == "twice":
            assert turn.forwards > len(turn.tokens)
    assert computed["twice"] == 2 * computed["once"]


def test_the_clock_skips_what_is_idle() -> None:
    turn = turns_of(measured(), "none")[-1]
    assert turn.done_s < 300, "commit at 1200 s; the clock counts from there"
    assert turn.pause_s == 600.0


# ---- all of them


def test_figures_beside_each_other() -> None:
    figures = figures_of(measured(), {"with_over_without": 1.04})
    assert figures["clock"] == "simulated"
    assert figures["kinds"] == {"steering": 1, "middle": 1}
    ways, ratios = figures["ways"], figures["ratios"]
    assert ways["none"]["waste"] == 0
    assert ways["none"]["turns"] == 3
    assert ways["repair"]["turns"] == 1
    assert ways["ahead"]["waste"] > 0
    assert ways["ahead"]["same_answers"] == 3
    assert ratios["same_answers"] == 1
    assert ratios["forwards_when_settled"] == 0
    assert ratios["ttft_over_none"] == pytest.approx(
        ways["ahead"]["ttft_ms"]["median"] / ways["none"]["ttft_ms"]["median"], abs=1e-4
    )
    assert ratios["middle_repair_over_exact"] < 1
    assert ratios["decode_over_each_partial"] <= ratios["decode_over_fresh"]
    assert figures["targets"]["paying_with_over_without"] == {"bound": 1.05, "is_met": True}
    assert set(ratios) <= set(TARGETS)
    assert figures["middle"]["changed_facts"]["turns"] == 1
    assert json.loads(json.dumps(figures)) == figures
    told = typing_markdown(figures)
    assert "simulated clock" in told
    assert "| read-ahead |" in told


def test_an_answer_that_differs_is_named() -> None:
    run = TypingRun("m", "plain", 5, "simulated", ("ahead", "none"))
    (same,) = measured().turns["none"][1] or ()
    other = Turn(same.text, "?", (1,), 0.0, 0.1, 0.1, 0.2, 1, 5, 1, 5)
    run.add(middle(), {"ahead": [other], "none": [same]})
    run.machine = measured().machine
    figures = figures_of(run)
    assert figures["ways"]["ahead"]["differing"] == ["edited"]
    assert not figures["targets"]["same_answers"]["is_met"]
    assert "ahead differs from none in edited" in typing_markdown(figures)


def test_an_answer_is_right_if_it_has_one_of_the_words() -> None:
    (turn,) = measured().turns["none"][1] or ()
    said = Turn(turn.text, "It is GIN.", (1,), 0.0, 0.1, 0.1, 0.2, 1, 5, 1, 5)
    assert is_right(middle(), said)
    assert not is_right(middle(), Turn("No!", "gin", (1,), 0.0, 0.1, 0.1, 0.2, 1, 5, 1, 5))


def test_segments_are_one_text_and_steering_a_second_turn() -> None:
    assert whole_text({"rules": "Be kind.", "document": " ", "question": "Why?"}) == "Be kind.\n\nWhy?"
    first, second = parts_of(steered())
    assert first.pause_s == pytest.approx(0.6)
    assert second == Part(((2.0, "No"), (2.3, "Na"), (2.6, "No!")), 2.9)
    assert kv_tokens_for(stock(), [middle()], 5) > 2 * len(EDITED)


def test_real_time_gives_the_same_answers() -> None:
    run = run_live(stock(), [steered(), trace("m", [LONG, EDITED], 0.8, "middle")], answer_tokens=5,
                   ways=["ahead", "read-ahead", "repair", "append"], speed=2)  # fmt: skip
    assert run.is_complete
    assert run.ways == ("ahead", "read-ahead", "repair", "none", "append")
    expected = [turn.tokens for turn in turns_of(measured(), "none")]
    for way in ("ahead", "read-ahead", "none", "append"):
        assert [turn.tokens for turn in turns_of(run, way)] == expected, way
    assert all(turn.ttft_s is not None and turn.ttft_s >= 0 for turn in turns_of(run, "none"))
    assert sum(turn.decode for turn in turns_of(run, "none")) == sum(map(len, expected))
    assert "real time" in typing_markdown(figures_of(run))


def test_an_interrupt_leaves_what_was_measured() -> None:
    def interrupt(done: int, total: int, which: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    run = run_typing(stock(), [steered(), middle()], ways=["read-ahead"], answer_tokens=3, on_trace=interrupt)
    assert not run.is_complete
    assert [each.id for each in run.traces] == ["steered"]
    assert not figures_of(run)["is_complete"]


def test_a_commit_while_a_draft_waits_has_all_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft waits for a pause in some steps, and in the step in which it is released nothing is computed."""
    machine = SimpleNamespace(now=0.0, forwards=[], news=[])
    steps: list[bool] = []

    class Waiting:
        topology = preset("plain")
        conversation = SimpleNamespace(quiet_at=lambda now: None)
        has_work = True
        committed_after: int | None = None

        def hear(self, text: str) -> None:
            pass

        def commit(self, text: str) -> None:
            self.committed_after = len(steps)

        def step(self, meanwhile: Any) -> bool:
            machine.now += 0.01
            steps.append(self.committed_after is not None and len(steps) > self.committed_after + 2)
            return steps[-1]

        @property
        def is_over(self) -> bool:
            return any(steps)

    monkeypatch.setattr("braid.bench.typing.run.turn_of", lambda *given, **named: "a turn")
    part = Part(((0.0, "So?"),), 0.075)
    replay_of: Any = _Replay
    assert replay_of(machine, Waiting(), part, False).run() == ("a turn", None)
    assert len(steps) == 12


@pytest.mark.parametrize("play", [run_typing, partial(run_live, speed=9)])
def test_a_trace_that_fails_loses_nothing_but_itself(play: Callable[..., TypingRun]) -> None:
    too_long = trace("long", ["so it goes, " * 400], 1.0)
    run = play(stock(), [too_long, steered()], ways=["read-ahead"], answer_tokens=3)
    figures = figures_of(run)
    assert figures["is_complete"]
    assert [each.id for each in run.traces] == ["steered"]
    assert "needs more than the 4096" in figures["failures"]["long"]
    assert "1 more failed: long, read-ahead: " in typing_markdown(figures)
    with pytest.raises(EngineError, match="no trace could be replayed"):
        play(stock(), [too_long], ways=["read-ahead"], answer_tokens=3)


def test_what_drafting_costs_others() -> None:
    figures = bench_paying(stock(), rounds=2)
    assert figures["rows"] == 16
    assert 0 < figures["with_over_without"] < 100
    with pytest.raises(InputError, match="round"):
        bench_paying(stock(), rounds=0)


class LlamaHandler(BaseHTTPRequestHandler):
    """Answers as a llama.cpp server does; what it was asked is kept."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._send(b'{"status": "ok"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/apply-template":
            self._send(json.dumps({"prompt": "|".join(m["content"] for m in body["messages"])}).encode())
            return
        self.asked.append(body)
        told = {"content": "", "timings": {"prompt_n": 7, "predicted_n": body["n_predict"]}}
        if not body.get("stream"):
            self._send(json.dumps(told).encode())
            return
        lines = [{"content": "It "}, {"content": "goes."}, told]
        self._send(b"".join(f"data: {json.dumps(line)}\n\n".encode() for line in lines))

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (as it is called there)
        pass


def test_a_llama_server_is_warmed_with_what_is_typed() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), LlamaHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        first, second = LlamaServer(f"http://127.0.0.1:{server.server_port}", 5).replay(steered())
    finally:
        server.shutdown()
        server.server_close()
    asked = [(body["prompt"], body["n_predict"]) for body in LlamaHandler.asked]
    assert asked[:2] == [("So", 0), ("So ut", 0)]
    assert ("So it goes", 5) in asked
    assert asked[-1] == ("So it goes|It goes.|No!", 5)
    assert first.answer == second.answer == "It goes."
    assert first.ttft_s is not None
    assert 0 < first.ttft_s <= first.done_s
    assert first.prefill == 7 * len([prompt for prompt, _ in asked if "|" not in prompt])
    assert first.decode == 5
    with pytest.raises(InputError, match="no address"):
        LlamaServer("localhost", 5)
    with pytest.raises(ConnectionLostError, match="llama-server"):
        LlamaServer(f"http://127.0.0.1:{server.server_port}", 5)


# ---- the command


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace"):
        run_typing(stock(), [])
    with pytest.raises(InputError, match="'slow'"):
        run_typing(stock(), [middle()], ways=["slow"])
    with pytest.raises(InputError, match="'slow'"):
        chosen_ways("fresh,slow", "exact")
    with pytest.raises(InputError, match="'wild'"):
        chosen_ways("", "wild")
    assert chosen_ways("fresh", "exact") == ("ahead", "fresh")
    with pytest.raises(InputError, match="share"):
        chosen_traces(None, n=1, seed=0, kinds="typing=much")
    with pytest.raises(InputError, match="'singing'"):
        chosen_traces(None, n=1, seed=0, kinds="singing")
    with pytest.raises(InputError, match="above 0"):
        bench_typing(stock(), [middle()], speed=0)
    with pytest.raises(InputError, match="real time"):
        run_live(stock(), [middle()], ways=["fresh"])
    path = tmp_path / "traces.jsonl"
    write_traces(path, [])
    with pytest.raises(InputError, match="no trace in it"):
        chosen_traces(path, n=1, seed=0, kinds=None)
    with pytest.raises(InputError, match="made traces"):
        chosen_traces(path, n=1, seed=0, kinds="typing")


def test_made_traces_are_chosen_by_kind() -> None:
    found = chosen_traces(None, n=3, seed=1, kinds="speech, edits=2")
    assert sorted(each.kind for each in found) == ["edits", "edits", "speech"]


def test_the_command(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    traces = tmp_path / "traces.jsonl"
    write_traces(traces, [trace("a", ["So", "So it goes"], 1.2)])
    arguments = ["--model", str(tmp_path / "model"), "--traces", str(traces), "--answer-tokens", "3"]
    options = ["--baselines", "fresh", "--mode", "exact", "--threads", "1", "--json"]
    done = CliRunner().invoke(app, ["bench", "typing", *arguments, *options])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["answer_tokens"] == 3
    assert set(figures["ways"]) == {"ahead", "none", "fresh"}
    assert figures["ratios"]["same_answers"] == 1
    assert "| ahead" in done.stderr

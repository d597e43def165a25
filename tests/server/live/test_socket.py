"""One connection: what is answered to what, and that nothing it says breaks anything."""

from __future__ import annotations

import json
import random
import string
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from braid.client import protocol
from braid.server.settings import ApiKey
from tests.server.live.talk import EDITABLE, ROWS, Talk, ids, said
from tests.server.serving import Serving, null_engine, test_settings

SCRIPT = {"output": ["Hello there.", "Once more.", "And more."], "thought": ["hm", "ha", "ho"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    keys = (
        ApiKey(key="alice-key-1", name="alice", internal=True),  # pyright: ignore[reportArgumentType]
        ApiKey(key="bob-key-22", name="bob", max_sessions=3),  # pyright: ignore[reportArgumentType]
        ApiKey(key="carol-key-3", name="carol", requests_per_minute=6),  # pyright: ignore[reportArgumentType]
    )
    settings = test_settings(keys=keys, max_rows=500, max_frame_bytes=20_000)
    with Serving(null_engine(script=SCRIPT), settings) as serving:
        serving._server.config.ws_max_size = 200_000
        yield serving


@pytest.fixture
def talk(server: Serving) -> Iterator[Talk]:
    with Talk(server, "alice-key-1") as talking:
        yield talking
        if talking.session:
            httpx.delete(
                f"{server.base_url}/v1/sessions/{talking.session}",
                headers={"Authorization": "Bearer alice-key-1"},
            )


def test_a_turn_is_told_in_order_without_a_gap(talk: Talk) -> None:
    opened = talk.open(id="c1")
    assert (opened["id"], opened["re"], opened["inputs"], opened["outputs"]) == (
        1,
        "c1",
        ["user"],
        ["output"],
    )
    messages = talk.turn("hi")
    assert said(messages) == "Hello there."
    turn = next(m for m in messages if m["type"] == "turn")
    assert turn["tokens"] == {"user": 2, "output": 13}
    assert (turn["rows"], turn["tnft"], turn["turn"]) == (15, 0, 0)
    assert turn["ttft_s"] >= 0
    assert said(talk.turn("again")) == "Once more."
    assert talk.ask("close")["type"] == "done"
    assert talk.until("closed")[-1]["reason"] == "closed"
    assert ids(talk.heard) == list(range(1, len(talk.heard) + 1))


def test_pings_are_answered_before_and_after_a_session_is_there(talk: Talk) -> None:
    assert talk.ask("ping", id="p") == {"type": "pong", "re": "p"}
    talk.open()
    assert talk.ask("ping")["type"] == "pong"


def test_inner_streams_are_told_to_nobody_who_may_not_see_them(server: Serving) -> None:
    with Talk(server, "bob-key-22") as bob:
        refused = bob.open(topology=ROWS, show="all")
        assert refused["code"] == "server.forbidden"
        opened = bob.open(topology=ROWS, rows=True)
        assert opened["lanes"] == ["user", "output"]
        bob.turn()
        told = json.dumps(bob.heard[2:])
        assert "thought" not in told
        assert any(m["type"] == "row" for m in bob.heard)
        key = {"Authorization": "Bearer bob-key-22"}
        record = httpx.get(f"{server.base_url}/v1/sessions/{bob.session}/transcript", headers=key).text
        assert not any("thought" in line for line in record.splitlines()[1:])
        assert '"o"' in record
        bob.ask("close")


def test_inner_streams_are_told_to_whoever_may_see_them_and_wants_to(talk: Talk) -> None:
    assert talk.open(topology=ROWS, show="all", rows=True)["lanes"] == ["user", "thought", "output"]
    messages = talk.turn()
    assert said(messages, "thought") == "hm"
    assert any("thought" in m["cells"] for m in messages if m["type"] == "row")


BEFORE_OPEN: list[dict[str, Any]] = [
    {"type": "write", "stream": "user", "text": "x"},
    {"type": "end"},
    {"type": "flush", "stream": "user"},
    {"type": "snapshot", "streams": {"user": "x"}},
    {"type": "commit"},
    {"type": "rollback"},
    {"type": "suggest", "stream": "output", "text": "x"},
    {"type": "interrupt"},
    {"type": "cancel"},
    {"type": "force", "stream": "output"},
    {"type": "close_stream", "stream": "output"},
    {"type": "tool_result", "call": "call_1", "content": 1},
    {"type": "close"},
]


@pytest.mark.parametrize("command", BEFORE_OPEN, ids=lambda c: c["type"])
def test_a_command_without_a_session_or_after_its_end_is_refused(talk: Talk, command: dict[str, Any]) -> None:
    fields = {name: value for name, value in command.items() if name != "type"}
    assert talk.ask(command["type"], **fields)["code"] == "session"
    talk.open()
    talk.ask("close")
    talk.until("closed")
    assert talk.ask(command["type"], **fields)["code"] == "session.closed"
    talk.ask("resume", session=talk.session, after=0)
    assert talk.ask(command["type"], **fields)["code"] == "session.closed"


MESSAGES = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "go on"},
]
TEMPLATE = {
    **EDITABLE,
    "template": {"segments": [{"id": "rules", "fixed": "Say: "}, {"id": "ask", "room": 8}]},
}
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"type": "write", "stream": "usr", "text": "x"}, "input.unknown_stream"),
    ({}, {"type": "write", "stream": "output", "text": "x"}, "input.direction"),
    ({}, {"type": "end"}, "input.empty"),
    ({}, {"type": "force", "stream": "output"}, "session.nothing_to_force"),
    ({}, {"type": "interrupt", "stream": "user"}, "input.direction"),
    ({}, {"type": "interrupt", "stream": "nobody"}, "input.unknown_stream"),
    ({}, {"type": "cancel", "stream": "nobody"}, "input.unknown_stream"),
    ({}, {"type": "close_stream", "stream": "nobody"}, "input.unknown_stream"),
    ({}, {"type": "flush", "stream": "nobody"}, "input.unknown_stream"),
    ({}, {"type": "snapshot", "streams": {"user": "x"}}, "session.regime"),
    ({}, {"type": "commit"}, "session.regime"),
    ({}, {"type": "rollback"}, "session.regime"),
    ({}, {"type": "tool_result", "call": "call_1", "content": 1}, "server.not_found"),
    ({}, {"type": "open"}, "session"),
    ({}, {"type": "resume", "session": "s_1"}, "session"),
    (EDITABLE, {"type": "write", "stream": "user", "text": "x"}, "session.regime"),
    (EDITABLE, {"type": "end"}, "session.regime"),
    (EDITABLE, {"type": "flush", "stream": "user"}, "session.regime"),
    (EDITABLE, {"type": "commit"}, "input.empty"),
    (EDITABLE, {"type": "snapshot", "streams": {"usr": "x"}}, "input.unknown_stream"),
    (EDITABLE, {"type": "snapshot", "streams": {"output": "x"}}, "input.direction"),
    (EDITABLE, {"type": "snapshot", "streams": {}}, "input"),
    (EDITABLE, {"type": "snapshot", "streams": {"user": "x"}, "mode": "guess"}, "input"),
    (EDITABLE, {"type": "snapshot"}, "input"),
    (EDITABLE, {"type": "commit", "streams": {"usr": "x"}}, "input.unknown_stream"),
    (EDITABLE, {"type": "commit", "streams": {}}, "input"),
    (EDITABLE, {"type": "commit", "messages": [{"role": "robot", "content": "x"}]}, "input"),
    (TEMPLATE, {"type": "commit", "segments": [{"id": "rules", "text": "x"}]}, "input.fixed_segment"),
    (TEMPLATE, {"type": "commit", "segments": [{"id": "ask", "text": ""}]}, "input.empty"),
    (EDITABLE, {"type": "snapshot", "messages": []}, "input"),
    (EDITABLE, {"type": "snapshot", "messages": [{"role": "robot", "content": "x"}]}, "input"),
    (EDITABLE, {"type": "snapshot", "streams": {"user": "x"}, "messages": MESSAGES}, "input"),
    (TEMPLATE, {"type": "snapshot", "segments": [{"id": "asks", "text": "x"}]}, "input.unknown_segment"),
    (TEMPLATE, {"type": "snapshot", "segments": [{"id": "rules", "text": "x"}]}, "input.fixed_segment"),
    (TEMPLATE, {"type": "snapshot", "segments": [{"id": "ask"}, {"id": "ask"}]}, "input.repeated_segment"),
    (TEMPLATE, {"type": "snapshot", "segments": [{"id": "ask"}], "messages": MESSAGES}, "input"),
    (EDITABLE, {"type": "suggest", "stream": "user", "text": "x"}, "input.direction"),
    ({}, {"type": "suggest", "stream": "nobody", "text": "x"}, "input.unknown_stream"),
]


@pytest.mark.parametrize(("opening", "command", "code"), WRONG)
def test_what_the_session_does_not_allow_is_refused_and_the_session_goes_on(
    talk: Talk, opening: dict[str, Any], command: dict[str, Any], code: str
) -> None:
    talk.open(**opening)
    fields = {name: value for name, value in command.items() if name != "type"}
    answer = talk.ask(command["type"], **fields)
    assert (answer["type"], answer["code"], answer["id"]) == ("error", code, None)
    assert answer["message"]
    if opening:
        talk.ask("snapshot", streams={"user": "hi"})
        talk.ask("commit")
        assert said(talk.until("turn")) or said(talk.heard) == "Hello there."
    else:
        assert said(talk.turn()) == "Hello there."


WRONG_OPENINGS: list[tuple[dict[str, Any], str]] = [
    ({"topology": "nothing"}, "topology.unknown_preset"),
    ({"topology": {"streams": {}}}, "topology"),
    ({"topology": {"streams": {"a": {"direction": "input"}}, "nonsense": 1}}, "topology.unknown_key"),
    ({"model": "gpt-99"}, "model.not_found"),
    ({"copies": {"output": 9}}, "input"),
    ({"sampling": {"nobody": {}}}, "input.unknown_stream"),
    ({"sampling": {"output": {"temperature": -1}}}, "input.sampling"),
    ({"max_rows": 501}, "input"),
    ({"most_drafted": 257}, "input"),
    ({"most_drafted": -1}, "input"),
    ({"draft_after": -0.1}, "input"),
    ({"drift_bound": 1.5}, "input"),
    ({"guesses": "everybody"}, "input"),
    ({"guesses": "tenant"}, "server.forbidden"),
    ({"tools": [{"name": "f"}]}, "input"),
    ({"history": [{"content": "x"}]}, "input"),
    ({"topology": ROWS, "history": [{"role": "user", "content": "x"}]}, "input"),
    ({"input": "sometimes"}, "input"),
    ({"seed": -1}, "input"),
    ({"wishes": 1}, "input"),
]


@pytest.mark.parametrize(("fields", "code"), WRONG_OPENINGS)
def test_an_opening_that_cannot_be_is_refused_and_costs_no_seat(
    talk: Talk, fields: dict[str, Any], code: str
) -> None:
    answer = talk.open(**fields)
    assert (answer["type"], answer["code"]) == ("error", code)
    assert talk.open()["type"] == "opened"


def test_editable_input_counts_when_it_is_committed(talk: Talk) -> None:
    talk.open(**EDITABLE)
    talk.ask("snapshot", streams={"user": "Sally has 3"})
    talk.ask("rollback")
    assert talk.ask("commit")["code"] == "input.empty"
    talk.ask("snapshot", streams={"user": "Sally had"})
    talk.ask("snapshot", streams={"user": "hi"})
    talk.ask("commit")
    talk.until("turn")
    turn = talk.heard[-1]
    assert turn["tokens"]["user"] == 2
    assert said(talk.heard) == "Hello there."


@pytest.mark.parametrize(
    ("opening", "told", "text"),
    [
        (EDITABLE, {"streams": {"user": "hi"}}, "hi"),
        (
            EDITABLE,
            {"messages": [{"role": "system", "content": "So."}, {"role": "user", "content": "hi"}]},
            "hi",
        ),
        (TEMPLATE, {"segments": [{"id": "ask", "text": "hi you"}]}, "Say: hi you  "),
    ],
)
def test_a_commit_may_tell_a_last_snapshot(
    talk: Talk, opening: dict[str, Any], told: dict[str, Any], text: str
) -> None:
    talk.open(**opening)
    talk.ask("snapshot", streams={"user": "Sally"})
    assert talk.ask("commit", mode="repair", **told)["type"] == "done"
    turn = turn_of(talk)
    assert (turn["tokens"]["user"], turn["reuse"]["mode"]) == (len(text), "repair")


def drafted(server: Serving, session: str) -> bool:
    """Whether the newest snapshot is read, and its answer drafted to the end."""
    number = server.app.state.hub._live[session].handle.number
    loop: Any = server.engine.backend
    conversation = loop.core.conversations[number]
    return conversation.edit is not None and not conversation.edit.is_outdated and not conversation.has_work


def turn_of(talk: Talk) -> dict[str, Any]:
    """The figures of the first turn, which may be over before its commit is answered."""
    return next((m for m in talk.heard if m["type"] == "turn"), None) or talk.until("turn")[-1]


def wait_for(holds: Any) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_is_drafted_is_heard_at_the_commit_and_what_that_was_worth_is_told(
    server: Serving, talk: Talk
) -> None:
    talk.open(**EDITABLE)
    talk.ask("snapshot", streams={"user": "Sally has 3"})
    wait_for(lambda: drafted(server, talk.session))
    talk.ask("snapshot", streams={"user": "Sally had 4"}, mode="repair")
    wait_for(lambda: drafted(server, talk.session))
    assert {m["type"] for m in talk.heard} <= {"opened", "done", "state"}
    talk.ask("commit")
    turn = turn_of(talk)
    assert said(talk.heard) == "Hello there."
    reuse = turn["reuse"]
    assert reuse["mode"] == "repair" and reuse["snapshots"] == 2
    assert reuse["read"] == reuse["reused"] > 0 and reuse["recomputed"] == 0
    assert reuse["kept"] == len("Hello there.") + 1 and reuse["drafted"] > reuse["kept"]
    assert reuse["wasted"] > 0


def test_a_session_may_read_ahead_and_draft_nothing(server: Serving, talk: Talk) -> None:
    talk.open(**EDITABLE, most_drafted=0)
    talk.ask("snapshot", streams={"user": "Sally has 3"})
    wait_for(lambda: drafted(server, talk.session))
    talk.ask("commit")
    turn = turn_of(talk)
    assert said(talk.heard) == "Hello there."
    assert turn["reuse"]["drafted"] <= 1 < turn["reuse"]["reused"]  # what is read last is asked for a token


def history_of(server: Serving, session: str) -> list[str]:
    """What stands before the input, in the engine."""
    number = server.app.state.hub._live[session].handle.number
    loop: Any = server.engine.backend
    return [message.content for message in loop.core.conversations[number].stage.preamble.history]


def test_a_conversation_may_change_until_it_is_committed(server: Serving, talk: Talk) -> None:
    talk.open(**EDITABLE)
    talk.ask("snapshot", messages=[{"role": "user", "content": "hi"}])
    talk.ask("snapshot", messages=[*MESSAGES[:1], {"role": "assistant", "content": "No."}, MESSAGES[2]])
    wait_for(lambda: drafted(server, talk.session))
    talk.ask("snapshot", messages=MESSAGES)
    talk.ask("commit")
    assert turn_of(talk)["tokens"]["user"] == len("go on")
    assert history_of(server, talk.session) == ["hi", "Yes?", "go on", "Hello there."]


def test_segments_are_filled_into_the_template(server: Serving, talk: Talk) -> None:
    talk.open(**TEMPLATE)
    talk.ask("snapshot", segments=[{"id": "ask", "text": "hi"}])
    wait_for(lambda: drafted(server, talk.session))
    talk.ask("snapshot", segments=[{"id": "ask", "text": ""}])
    assert talk.ask("commit")["code"] == "input.empty"
    talk.ask("snapshot", segments=[{"id": "ask", "text": "hi you"}])
    talk.ask("commit")
    assert turn_of(talk)["tokens"]["user"] == len("Say: hi you  ")
    assert history_of(server, talk.session)[0] == "Say: hi you  "


def test_what_is_suggested_changes_no_answer(talk: Talk) -> None:
    talk.open()
    talk.ask("suggest", stream="output", text="Hello there!")
    messages = talk.turn()
    assert said(messages) == "Hello there."
    assert next(m for m in messages if m["type"] == "turn")["reuse"] is None


def test_a_command_that_is_repeated_is_answered_and_not_done_twice(talk: Talk) -> None:
    talk.open()
    first = talk.ask("write", id="w", stream="user", text="hi")
    assert talk.ask("write", id="w", stream="user", text="hi") == first
    talk.ask("end")
    talk.until("turn")
    assert talk.heard[-1]["tokens"]["user"] == 2


def test_history_goes_before_the_first_turn(talk: Talk, server: Serving) -> None:
    talk.open(
        history=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ]
    )
    talk.turn()
    key = {"Authorization": "Bearer alice-key-1"}
    text = httpx.get(f"{server.base_url}/v1/sessions/{talk.session}/transcript", headers=key).text
    assert "Be brief." in text


def test_rows_are_limited(talk: Talk) -> None:
    talk.open(max_rows=5)
    talk.ask("write", stream="user", text="hi")
    talk.ask("end")
    assert talk.until("closed")[-1]["reason"] == "max_rows"


def test_somebody_elses_session_looks_unknown(server: Serving, talk: Talk) -> None:
    talk.open()
    with Talk(server, "bob-key-22") as bob:
        other = bob.ask("resume", session=talk.session)
        nobody = bob.ask("resume", session="s_none")
        assert other["code"] == nobody["code"] == "server.not_found"
        assert other["message"].replace(talk.session, "s_none") == nobody["message"]
    key = {"Authorization": "Bearer bob-key-22"}
    own = httpx.get(f"{server.base_url}/v1/sessions", headers=key).json()["data"]
    assert talk.session not in [each["name"] for each in own]
    for method, path in (("GET", "/transcript"), ("DELETE", "")):
        url = f"{server.base_url}/v1/sessions/{talk.session}{path}"
        assert httpx.request(method, url, headers=key).status_code == 404


def test_a_key_has_so_many_sessions_and_gets_them_back(server: Serving) -> None:
    talks = [Talk(server, "bob-key-22") for _ in range(4)]
    answers = [talk.open()["type"] for talk in talks]
    assert answers == ["opened", "opened", "opened", "error"]
    assert talks[3].heard[-1]["code"] == "server.rate_limit"
    assert talks[3].heard[-1]["retry_after_s"] > 0
    talks[0].ask("close")
    talks[0].until("closed")
    assert talks[3].open()["type"] == "opened"
    for talk in talks:
        talk.ask("close")
        talk.close()


def test_sessions_that_are_opened_too_fast_are_refused(server: Serving) -> None:
    with Talk(server, "carol-key-3") as carol:
        answers = [carol.open(model="none")["code"] for _ in range(8)]
    assert answers[:2] == ["model.not_found"] * 2
    assert answers[-1] == "server.rate_limit"


def test_without_a_key_or_from_another_origin_nobody_gets_in(server: Serving) -> None:
    for key, origin, status in (
        (None, None, 401),
        ("wrong-key-9", None, 401),
        ("alice-key-1", "https://evil.example", 403),
    ):
        with pytest.raises(InvalidStatus) as refused:
            Talk(server, key, origin=origin)
        assert refused.value.response.status_code == status
    with Talk(server, "alice-key-1", origin=server.base_url) as same:  # pyright: ignore[reportArgumentType]
        assert same.ask("ping")["type"] == "pong"


def test_a_browser_that_sends_its_key_as_a_subprotocol_is_given_one_that_is_no_secret(
    server: Serving,
) -> None:
    with Talk(server, subprotocols=["braid", "braid-key.alice-key-1"]) as talk:
        assert talk.socket.subprotocol == "braid"
        assert talk.ask("ping")["type"] == "pong"


def test_the_schema_is_served_and_fits(server: Serving, talk: Talk) -> None:
    schema = httpx.get(
        f"{server.base_url}/v1/live/schema", headers={"Authorization": "Bearer alice-key-1"}
    ).json()
    assert schema == protocol.protocol_schema()


# ---- bad frames


def bad_frames(seed: int) -> Iterator[str | bytes]:
    """Frames that are wrong, each in its own way."""
    rng = random.Random(seed)
    kinds = [c["type"] for c in BEFORE_OPEN] + ["open", "resume", "ping", "nonsense"]
    good = [
        *BEFORE_OPEN,
        {"type": "open", "topology": "plain"},
        {"type": "resume", "session": "s_1", "after": 1},
    ]
    values: list[Any] = [
        None,
        True,
        -1,
        2**70,
        1e300,
        "",
        "x" * 300,
        [],
        [1],
        {},
        {"a": {}},
        "\ud800",
        "\x00",
        [[[]]],
    ]
    while True:
        match rng.randrange(9):
            case 0:
                yield "".join(rng.choices(string.printable, k=rng.randrange(40)))
            case 1:
                yield rng.randbytes(rng.randrange(60))
            case 2:
                yield json.dumps(rng.choice(values))
            case 3:
                yield json.dumps(
                    {"type": rng.choice(kinds), rng.choice(["x", "id", "stream"]): rng.choice(values)}
                )
            case 4:
                command = dict(rng.choice(good))
                command[rng.choice([*command, "id", "extra"])] = rng.choice(values)
                yield json.dumps(command)
            case 5:
                text = json.dumps(rng.choice(good))
                cut = rng.randrange(1, len(text))
                yield (
                    text[:cut]
                    + rng.choice(["", "}", '"', "\\u", "\x01", "[" * 50])
                    + text[cut + rng.randrange(2) :]
                )
            case 6:
                depth = rng.choice([5, 200, 6000])
                yield "[" * depth + "]" * depth
            case 7:
                fields = {name: rng.choice(values) for name in rng.sample([*protocol.Open.model_fields], 3)}
                yield json.dumps({**fields, "type": "open"})
            case _:
                yield json.dumps({"type": "write", "stream": "user", "text": "y" * 30_000})


def test_five_thousand_bad_frames_are_each_answered_and_none_is_a_servers_error(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    frames = bad_frames(seed=4)
    answered = 0
    with Talk(server, "alice-key-1") as bystander:
        bystander.open()
        for _ in range(10):
            with Talk(server, "alice-key-1") as talk:
                for _ in range(500):
                    talk.send(next(frames))
                talk.send({"type": "ping", "id": "the end"})
                heard = talk.until(lambda message: message.get("re") == "the end")
                answered += sum(message["type"] == "error" for message in heard)
                assert not [m for m in heard if m.get("code") in ("internal", "server", "error", "engine")], (
                    heard
                )
                talk.send({"type": "close"})
        assert said(bystander.turn()) == "Hello there."
    assert answered > 4000
    assert not [record for record in caplog.records if record.levelname == "ERROR"]

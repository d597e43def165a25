"""The judge, against a tiny server that speaks chat completions."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from braid.data.judge import ModelJudge
from braid.errors import DataError, JudgeError

_NEVER = 0
"""Status of a reply that does not come."""


class _Server(ThreadingHTTPServer):
    """Answers what `replies` says, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        self.late = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, self.headers["authorization"], body))
        status, reply = self.server.replies.pop(0)
        if status == _NEVER:
            self.server.late.wait(10)
            return
        data = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.late.set()
        server.shutdown()
        thread.join()


def _says(text: str) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_it_asks_and_understands(server: _Server) -> None:
    server.replies = [_says("YES, since …"), _says("**No**: the 4 was not read yet")]
    with ModelJudge(server.url, "tiny", key="k") as judge:
        assert judge("Mia has 3 pens.", "She has 3.") is True
        assert judge("Mia has 3 pens.", "3+4=7") is False
        assert judge("Mia has 3 pens.", "3+4=7") is False  # remembered, not asked again
        assert judge.num_asked == 2
    path, key, body = server.asked[1]
    assert (path, key, body["model"], body["temperature"]) == ("/v1/chat/completions", "Bearer k", "tiny", 0)
    assert "Mia has 3 pens." in body["messages"][1]["content"]
    assert "3+4=7" in body["messages"][1]["content"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, {"error": "no key"}), "refused with 401"),
        ((200, "<html>"), "no chat completion"),
        ((200, {"choices": []}), "no chat completion"),
        ((200, [1]), "no chat completion"),
    ],
)
def test_what_it_cannot_use_is_told(server: _Server, reply: tuple[int, Any], message: str) -> None:
    server.replies = [reply]
    with ModelJudge(server.url, "tiny") as judge, pytest.raises(JudgeError, match=message):
        judge("a", "b")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("<think>\nNo number is missing.\n</think>\n\nYES", True),
        ("Yes, it might seem so.</think>No.", False),
    ],
)
def test_the_verdict_stands_below_the_reasoning(server: _Server, answer: str, wanted: bool) -> None:
    server.replies = [_says(answer)]
    with ModelJudge(server.url, "tiny") as judge:
        assert judge("a", "b") is wanted


@pytest.mark.parametrize("trouble", [(429, "slow down"), (503, "busy"), (_NEVER, None)])
def test_what_passes_is_waited_out_but_not_for_ever(server: _Server, trouble: tuple[int, Any]) -> None:
    server.replies = [trouble, trouble, _says("yes")]
    with ModelJudge(server.url, "tiny", timeout_s=0.5, pause_s=0.01) as judge:
        assert judge("a", "b") is True
        assert judge.num_asked == 3
        server.replies = [trouble] * 9
        with pytest.raises(JudgeError, match=r"refused with|cannot be reached"):
            judge("c", "d")
        assert judge.num_asked == 7


def test_an_unclear_answer_is_asked_about_once_more(server: _Server) -> None:
    with ModelJudge(server.url, "tiny") as judge:
        server.replies = [_says("Perhaps."), _says("No")]
        assert judge("a", "b") is False
        said = [(each["role"], each["content"]) for each in server.asked[1][2]["messages"][2:]]
        assert said == [("assistant", "Perhaps."), ("user", "Answer with one word: YES or NO.")]
        server.replies = [_says(""), _says("<think>so long that it was cut off"), _says("yes")]
        with pytest.raises(JudgeError, match="neither yes nor no"):
            judge("c", "d")


def test_nobody_there_and_no_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ModelJudge("http://127.0.0.1:9/v1", "tiny", timeout_s=2, pause_s=0) as judge,
        pytest.raises(JudgeError, match="reached"),
    ):
        judge("a", "b")
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(DataError, match="pip install httpx"):
        ModelJudge("http://127.0.0.1:9/v1", "tiny")

"""What a workflow may be, and how it is drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from braid.errors import InputError, WorkflowError
from braid.sessions.workflow import Endpoint, Function, Prompt, Workflow
from braid.sessions.workflow.stages import Reference
from braid.streams.sampling import SamplingSpec

SERVER = Endpoint("http://127.0.0.1:1/v1", "m", key="secret")


def three() -> Workflow:
    return Workflow(
        Function("send", lambda answer: None, pure=False),
        Prompt("answer", "{question} {plan.city} {plan}", endpoint=SERVER),
        Prompt("plan", 'Say {{"city": …}} for {question}'),
        inputs=["question"],
        result="answer",
    )


def test_stages_are_brought_into_order() -> None:
    workflow = three()
    assert workflow.order == ("plan", "answer", "send")
    assert workflow.upstream("answer") == ("question", "plan")
    assert workflow.fields_of("plan") == (("city",),)
    assert workflow.before_effects == {"plan", "answer"}
    assert [workflow.kind(name) for name in workflow.order] == ["prompt", "endpoint", "effect"]


def test_templates_are_filled() -> None:
    prompt = Prompt("p", "{{{a}}} and {b.c.0}: {a}")
    assert prompt.rendered({"a": "x{a}", "b.c.0": {"d": "ü"}}) == '{x{a}} and {"d": "ü"}: x{a}'
    assert list(prompt.reads.values()) == [Reference("a"), Reference("b", ("c", "0"))]


def test_functions_say_what_they_read() -> None:
    def count(plan: str, most: int = 3) -> int:
        return len(plan) + most

    assert Function("n", count).reads == {"plan": Reference("plan")}
    assert Function("n", count, reads={"plan": "plan.city"}).reads == {"plan": Reference("plan", ("city",))}
    assert Function("n", partial(count, most=1), reads=["plan"]).reads == {"plan": Reference("plan")}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Workflow(Prompt("a", "{b}"), Prompt("b", "{c}"), Prompt("c", "{a}"), inputs=[]),
            "a → b → c → a",
        ),
        (lambda: Workflow(Prompt("a", "{a}"), inputs=["q"]), "a → a"),
        (
            lambda: Workflow(Prompt("a", "{b}"), Prompt("b", "{questoin}"), inputs=["question"]),
            r"stage b reads 'questoin' \(a → b → questoin\).*did you mean 'question'",
        ),
        (lambda: Workflow(Prompt("a", "{q}"), Prompt("a", "{q}"), inputs=["q"]), "two of the name 'a'"),
        (lambda: Workflow(Prompt("q", "{q}"), inputs=["q"]), "two of the name 'q'"),
        (lambda: Workflow(Prompt("a", "x"), inputs=[], result="b"), "no stage 'b'"),
        (lambda: Workflow(inputs=["q"]), "at least one stage"),
        (lambda: Prompt("a", 'Say {"city": 1}'), "double"),
        (lambda: Prompt("a", "{q!r}"), "format"),
        (lambda: Prompt("a", "{q"), "double its own braces"),
        (lambda: Prompt("a", "{}"), "names nothing"),
        (lambda: Prompt("a b", "{q}"), "letters, digits"),
        (lambda: Prompt("a", "{q}", output="thought"), "'thought'"),
        (lambda: Prompt("a", "{q}", topology="chat", endpoint=SERVER), "for Braid"),
        (lambda: Prompt("a", "{q}", endpoint=SERVER, sampling=SamplingSpec(temperature=1, top_k=3)), "top_k"),
        (lambda: Function("a", lambda *words: words), "any arguments"),
        (lambda: Function("a", print), "any arguments"),
        (lambda: Function("a", len, reads=["q..x"]), "names nothing"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        make()


def test_the_engine_must_be_there_and_able() -> None:
    with pytest.raises(WorkflowError, match="stage plan runs on Braid"):
        three().open()
    with pytest.raises(InputError, match="max_parallel"):
        Workflow(Function("n", len, reads=["q"]), inputs=["q"]).open(max_parallel=0)


def test_it_is_drawn() -> None:
    drawn = three().draw().splitlines()
    assert drawn[0] == "graph LR"
    assert '    n_question(["question"])' in drawn
    assert "    n_plan -->|city| n_answer" in drawn
    assert "    n_plan --> n_answer" in drawn
    assert '    n_send[["send"]]' in drawn
    assert "secret" not in repr(three().stages["answer"])

"""What the figures of an engine say of real turns: live, drafted, taken back, and cut short."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from braid.engine.backend import Backend
from braid.engine.core import EngineCore
from braid.engine.guessing.guesses import MAX_TOKENS
from braid.engine.local import LocalBackend
from braid.engine.metrics import EngineMetrics
from braid.engine.session.conversation import Conversation
from braid.errors import EngineError
from braid.streams.topology import Topology
from braid.testing import NullBackend, NullModel
from tests.engine.editing.test_editable import TOPOLOGIES, plain
from tests.engine.harness import codec, stock, trained

TEXT = "Say it."


class Bench:
    """A core on a small network, its figures, and a clock of one second a step."""

    def __init__(self, topology: Topology | None = None, backend: Backend | None = None) -> None:
        self.topology = topology or plain()
        self.metrics = EngineMetrics()
        model = stock() if self.topology.decoding == "views" else trained(self.topology)
        self.core = EngineCore(backend or LocalBackend(model, kv_tokens=2048), metrics=self.metrics)
        self.now = 0.0
        self.num_computed = 0
        """Tokens in all forwards."""

    def open(self) -> Conversation:
        return self.core.open(self.topology, seed=9)

    def do(self, conversation: Conversation, verb: str, *arguments: object) -> None:
        self.core.do(conversation, verb, *arguments, now=self.now)

    def step(self, conversation: Conversation) -> bool:
        report = self.core.step([conversation], now=self.now)
        assert not report.failures
        self.now += 1
        self.num_computed += report.num_tokens
        return report.worked

    def rest(self, conversation: Conversation) -> None:
        """Step as long as it has anything to do."""
        for _ in range(200):
            if not (conversation.has_work or not conversation.turn_is_over):
                return
            self.step(conversation)
        raise AssertionError("it does not come to rest")

    def draft(self, conversation: Conversation, texts: Sequence[str] = (TEXT,)) -> None:
        """Snapshots, each drafted to its end."""
        for text in texts:
            self.do(conversation, "snapshot", {"user": text})
            self.rest(conversation)

    def figures(self, *names: str) -> list[float]:
        found = self.metrics.snapshot()
        return [found[name] for name in names]

    def fates(self) -> dict[str, float]:
        kinds = ("drafted", "kept", "accepted", "wasted")
        found = self.figures(*(f'braid_draft_tokens_total{{fate="{kind}"}}' for kind in kinds))
        return dict(zip(kinds, found, strict=True))


HEARD = ("braid_rows_total", 'braid_tokens_total{kind="output"}')
FIRST = ("braid_first_token_seconds_count", "braid_first_answer_token_seconds_count")
FIRST_SECONDS = ("braid_first_token_seconds_sum", "braid_first_answer_token_seconds_sum")


def test_a_turn_that_was_drafted_to_its_end_has_its_first_tokens_at_the_commit() -> None:
    bench = Bench()
    conversation = bench.open()
    bench.draft(conversation)
    assert bench.figures(*FIRST) == [0, 0]
    bench.now += 60
    bench.do(conversation, "commit")
    bench.rest(conversation)
    assert bench.figures(*FIRST) == [1, 1]
    assert bench.figures(*FIRST_SECONDS) == [0, 0]


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_first_tokens_are_counted_once_a_turn_from_its_commit_on(num_steps: int) -> None:
    bench = Bench()
    conversation = bench.open()
    for turn in (1, 2):
        bench.do(conversation, "snapshot", {"user": TEXT})
        for _ in range(num_steps):
            bench.step(conversation)
        bench.do(conversation, "commit", {"user": TEXT})
        bench.now += 5  # as a forward that was under way
        bench.rest(conversation)
        assert bench.figures(*FIRST) == [turn, turn]
    waited = bench.figures(*FIRST_SECONDS)[0]
    if num_steps == 0:
        assert waited >= 10
    if num_steps == 3:
        assert waited == 0, "what is drafted is heard at the commit"


def test_a_live_turn_is_counted_as_before() -> None:
    bench = Bench()
    conversation = bench.open()
    bench.do(conversation, "tell", {"user": TEXT})
    bench.rest(conversation)
    assert bench.figures(*FIRST) == [1, 1]
    assert bench.fates() == {"drafted": 0, "kept": 0, "accepted": 0, "wasted": 0}


def test_suggestions_are_counted_in_live_turns_too() -> None:
    said = "An answer."
    for suggested in (said, "Something else."):
        bench = Bench(backend=NullBackend(NullModel(codec()), script={"output": [said]}))
        conversation = bench.open()
        bench.do(conversation, "suggest", "output", suggested)
        bench.do(conversation, "tell", {"user": TEXT})
        bench.rest(conversation)
        fates = bench.fates()
        assert (fates["accepted"] > 0) is (suggested == said)
        assert (fates["wasted"] > 0) is (suggested != said)
        assert (fates["drafted"], fates["kept"]) == (0, 0)


@pytest.mark.parametrize("how", ["rollback", "close", "fail"])
def test_a_draft_that_comes_to_nothing_is_counted_as_wasted(how: str) -> None:
    bench = Bench()
    conversation = bench.open()
    bench.draft(conversation, ("Say", TEXT))
    assert bench.fates()["wasted"] == 0
    if how == "fail":
        bench.core.fail(conversation, EngineError("it is broken"))
    else:
        bench.do(conversation, how)
        bench.step(conversation)
    fates = bench.fates()
    assert fates["drafted"] > 0
    assert fates["kept"] == 0
    preamble = conversation.stage.preamble
    assert preamble is not None
    assert fates["wasted"] == bench.num_computed - preamble.num_cached, "all but the template's beginning"
    assert bench.figures(*HEARD, 'braid_committed_tokens_total{how="reused"}') == [0, 0, 0]


def test_what_is_counted_of_a_committed_turn_is_not_lost_with_its_session() -> None:
    bench = Bench()
    conversation = bench.open()
    bench.draft(conversation, ("Say",))
    bench.do(conversation, "commit", {"user": TEXT})
    bench.step(conversation)
    bench.do(conversation, "close")
    assert bench.fates()["drafted"] > 0
    assert bench.fates()["wasted"] > 0
    assert bench.figures('braid_committed_tokens_total{how="recomputed"}')[0] > 0


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rows_and_tokens_said_are_those_that_can_be_heard_each_once(name: str) -> None:
    """The same however a turn came about: told at once, or drafted, edited and taken back before."""
    found: list[list[float]] = []
    for is_drafted in (False, True):
        bench = Bench(TOPOLOGIES[name](1.0))
        conversation = bench.open()
        for _ in range(2):
            if is_drafted:
                bench.draft(conversation, ("Say", "Say then", TEXT, "Sa", TEXT))
                bench.do(conversation, "commit")
            else:
                bench.do(conversation, "tell", {"user": TEXT})
            bench.rest(conversation)
        outputs = conversation.stage.outputs
        said = sum(lane.num_said for lane in outputs)
        assert said > 0
        assert bench.figures(*HEARD) == [conversation.t, said]
        found.append(bench.figures(*HEARD))
        assert bench.figures("braid_step_tokens_sum") == [bench.num_computed]
    assert found[0] == found[1]


def test_what_is_read_for_a_draft_kept_nobody_waiting() -> None:
    bench = Bench()
    conversation = bench.open()
    bench.draft(conversation, ("Say",))
    assert bench.figures("braid_input_read_rows_count") == [0]
    bench.do(conversation, "commit", {"user": TEXT})
    bench.rest(conversation)
    count, rows = bench.figures("braid_input_read_rows_count", "braid_input_read_rows_sum")
    assert count > 0
    assert rows >= count, "1 is the very next row"


def test_of_a_suggestion_beyond_the_bound_no_more_is_tokenised_than_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversation = Bench().open()
    encode, lengths = codec().encode, list[int]()

    def watched(text: str) -> object:
        lengths.append(len(text))
        return encode(text)

    monkeypatch.setattr(codec(), "encode", watched)
    text = "The very long one. " * 50_000
    conversation.suggest("output", text)
    assert lengths == [MAX_TOKENS * codec().longest_piece]
    assert lengths[0] < len(text)
    drafts = conversation.guesses._drafts
    assert drafts is not None
    cursor = drafts.cursor("output")
    assert cursor.ahead(MAX_TOKENS) == encode(text)[0][:MAX_TOKENS]

"""Many contexts answered by one output stream, as many sessions at once as the cache has room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid.engine.core import EngineCore
from braid.engine.local import LocalBackend
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.model.model import Model
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology

__all__ = ["Answering", "Wish", "wished"]

_CACHE = 16_384
"""Tokens that the cache holds at most where nobody chooses."""
_PATIENCE = 256
"""Rows beyond the input and the longest answer, after which an output that has not finished is taken as it is."""
_FRAME = 128
"""Tokens of template and instructions that each output is taken to have around it."""


@dataclass(frozen=True)
class Wish:
    """How an answer is to be generated.

    Args:
        until: Texts at which it is cut; the first to come counts.
        max_tokens: Its longest.
        sampling: How tokens are chosen.
    """

    until: tuple[str, ...]
    max_tokens: int
    sampling: SamplingSpec


def wished(topology: Topology, output: str, wish: Wish) -> Topology:
    """The topology whose output answers as it is wished; its own limits and biases hold beside that."""
    spec = topology.streams[output]
    longest = wish.max_tokens if spec.max_tokens is None else min(spec.max_tokens, wish.max_tokens)
    own = spec.sampling
    biases = {"logit_bias": own.logit_bias, "silence_bias": own.silence_bias}
    sampling = wish.sampling.model_copy(update=biases)
    update = {"stop": (*spec.stop, *wish.until), "max_tokens": longest, "sampling": sampling}
    return topology.with_specs({output: spec.model_copy(update=update)})


@dataclass
class _Sitting:
    """One request, under way."""

    conversation: Conversation
    room: int
    """Tokens of the cache that it may come to need."""
    last_row: int


class Answering:
    """Runs requests to the end of their answers.

    Args:
        model: Answers.
        topology: Of its streams; the context goes to the first input.
        output: The stream that answers.
        asked: Contexts, none of them empty, and how each is to be answered.
        chat: In views, the conversation that each goes on with.
        at_once: Sessions at the same time.
        kv_tokens: Size of the cache; None chooses.
        seed: Of the first request's noise; each has its own.
        on_progress: Is told how many are done, and of how many.
    """

    def __init__(
        self,
        model: Model,
        topology: Topology,
        output: str,
        asked: Sequence[tuple[str, Wish]],
        *,
        chat: Mapping[str, Any] | None = None,
        at_once: int = 32,
        kv_tokens: int | None = None,
        seed: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._topology, self._output, self._asked = topology, output, asked
        self._chat, self._at_once, self._seed = chat, at_once, seed
        self._on_progress = on_progress
        kv_tokens = kv_tokens or min(at_once * model.max_positions, _CACHE)
        backend = LocalBackend(model, kv_tokens=kv_tokens, prefix_share=0.0)
        self._core = EngineCore(backend, policy=SchedulerPolicy(step_tokens=4096, chunk_tokens=2048))
        usage = backend.usage()
        self._room = usage.pages_total * usage.page_size
        self._sizes = [len(model.codec.encode(context)[0]) for context, _ in asked]
        self._live: dict[int, _Sitting] = {}
        self._answers: dict[int, str] = {}

    def run(self) -> list[str]:
        """Answer all, in their order.

        Raises:
            ContextOverflowError, PoolFullError, PoolTooSmallError: There is no room.
        """
        waiting = deque(range(len(self._asked)))
        try:
            while waiting or self._live:
                while waiting and self._has_room(waiting[0]):
                    self._open(waiting.popleft())
                self._step()
        finally:
            self._core.close()
        return [self._answers[number] for number in range(len(self._asked))]

    def _has_room(self, number: int) -> bool:
        """Whether a request can go on to its end beside those under way; one alone is always tried."""
        if not self._live:
            return True
        taken = sum(sitting.room for sitting in self._live.values())
        return len(self._live) < self._at_once and taken + self._room_for(number) <= self._room

    def _room_for(self, number: int) -> int:
        """Tokens of the cache that a request may come to need: its context, the template, what all outputs say."""
        longest = self._asked[number][1].max_tokens
        return self._sizes[number] + (longest + _FRAME) * len(self._topology.output_names)

    def _open(self, number: int) -> None:
        context, wish = self._asked[number]
        topology = wished(self._topology, self._output, wish)
        conversation = self._core.open(topology, seed=self._seed + number, chat=self._chat)
        conversation.write(topology.input_names[0], context)
        conversation.end()
        last_row = conversation.num_queued + wish.max_tokens + _PATIENCE
        self._live[number] = _Sitting(conversation, self._room_for(number), last_row)

    def _step(self) -> None:
        report = self._core.step([sitting.conversation for sitting in self._live.values()])
        for _, error in report.failures:
            raise error
        for number, sitting in list(self._live.items()):
            conversation = sitting.conversation
            conversation.take_news()  # nobody listens
            if not self._is_over(sitting):
                continue
            self._answers[number] = conversation.transcript.text(self._output)
            self._core.do(conversation, "close")
            del self._live[number]
            if self._on_progress is not None:
                self._on_progress(len(self._answers), len(self._asked))

    def _is_over(self, sitting: _Sitting) -> bool:
        conversation = sitting.conversation
        lane = conversation.stage.output(self._output)
        if lane.phase == "asleep" and lane.has_answered:
            return True
        if not conversation.has_work:
            conversation.demand()  # where all are silent, an output that owes an answer is made to speak
        return conversation.turn_is_over or conversation.t > sitting.last_row or not conversation.has_work

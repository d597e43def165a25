"""What the settings make of the engine."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from braid.model.model import Model
from braid.server import run
from tests.engine.harness import stock
from tests.server.serving import test_settings as settings_of


def test_the_engine_drafts_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(name: str, **_: Any) -> Model:
        loaded.append(name)
        return stock()

    monkeypatch.setattr(run, "load", load)
    for drafter in (None, "small"):
        loaded.clear()
        engine = run.build_engine(
            settings_of(model="large", drafter=drafter, draft_share=0.25, kv_tokens=512, max_sessions=3)
        )
        assert loaded == ["large", *([drafter] if drafter else [])]
        loop: Any = engine.backend
        assert loop.core.scheduler.policy.draft_share == 0.25
        assert (engine._drafter is not None) == (drafter is not None)
        if engine._drafter is not None:
            small: Any = engine._drafter.backend
            assert small.core.scheduler.policy.draft_share == 0.25
            assert small.limits.max_sessions == 3
        anyio.run(engine.aclose)

"""What computing costs is measured on the steps that a request would take."""

from __future__ import annotations

from itertools import count

import pytest

from braid.engine import costs
from braid.engine.backend import Item, ItemResult
from braid.engine.local import LocalBackend
from braid.model.model import Model
from tests.engine.harness import stock


class Clocked(LocalBackend):
    """A backend whose clock goes on by what it computes: 5 seconds a forward, and 1 for each token."""

    now = 0.0

    def step(self, items: list[Item]) -> list[ItemResult]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.now += 5.0 + sum(item.num_tokens for item in items)
        return super().step(items)


def test_costs_are_those_of_rows_and_of_reading() -> None:
    backend = Clocked(stock(), kv_tokens=2048, prefix_share=0.0)
    found = costs.measure_costs(backend, repeat=3, clock=lambda: backend.now)
    assert found.row_ms == {1: 6000.0, 2: 7000.0, 4: 9000.0}
    assert found.token_ms == pytest.approx(1000.0)
    assert found.closer_tokens == len("<\n<assistant\n")
    assert backend.cache.pool.num_used == 0  # nothing is left behind


def test_a_small_context_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "max_positions", property(lambda _: 250))
    backend = Clocked(stock(), kv_tokens=512, prefix_share=0.0)
    assert costs.measure_costs(backend, repeat=1, clock=lambda: backend.now).token_ms == pytest.approx(1000.0)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often costs were measured."""
    measured: list[int] = []
    numbers = count()

    def measure(backend: LocalBackend) -> costs.Costs:
        measured.append(next(numbers))
        return costs.Costs({1: 1.0}, 1.0)

    monkeypatch.setattr(costs, "measure_costs", measure)
    return measured


def test_a_model_is_measured_once(fresh: list[int]) -> None:
    first, second = stock(), stock()
    assert costs.costs_of(first) is costs.costs_of(first)
    assert fresh == [0]
    costs.costs_of(second)
    assert fresh == [0, 1]

"""A soak: random sessions at capacity for a while; nothing leaks, no event is lost, and all of it can be replayed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.engine.soak import Report, Soak, replayed


def soak(seconds: float, seed: int, journal: Path) -> Report:
    """Live, check what is left, replay; see `tests.engine.soak`."""
    report = anyio.run(Soak(seconds, seed, journal).run)
    print(report)
    assert report.growth < 4 * 2**20, "memory grows"
    again = replayed(seed, journal)
    digests = report.digests.all()
    different = [number for number, digest in digests.items() if again.get(number) != digest]
    assert not different, (
        f"{len(different)} of {len(again)} sessions were otherwise when replayed: {different[:9]}"
    )
    assert set(again) == set(digests)
    return report


def test_a_soak_of_half_a_minute(tmp_path: Path) -> None:
    report = soak(18, seed=1, journal=tmp_path / "journal.jsonl")
    assert report.sessions > 60
    for verb in (
        "write",
        "fork",
        "evict",
        "close_stream",
        "cancelled",
        "EngineBusyError",
        "failed: EngineError",
    ):
        assert report.counts[verb], f"{verb} never happened"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_soak_of_half_an_hour(tmp_path: Path) -> None:
    report = soak(1800, seed=2, journal=tmp_path / "journal.jsonl")
    assert report.sessions > 5000

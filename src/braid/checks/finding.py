"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CheckReport", "Finding"]


@dataclass(frozen=True)
class Finding:
    """One invariant on one model."""

    name: str
    ok: bool | None
    """Whether it holds; None when it was skipped, and `detail` says why."""
    value: float | None
    """The figure: a largest difference, or a count of what went wrong."""
    bound: float | None
    """The largest value that is right."""
    detail: str
    """What was compared, in one line."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = {"ok": self.ok, "value": self.value, "bound": self.bound}
        return {**data, "seconds": round(self.seconds, 2), "detail": self.detail}


@dataclass(frozen=True)
class CheckReport:
    """All invariants on one model."""

    model: str
    dtype: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no invariant fails."""
        return all(finding.ok is not False for finding in self.findings)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the invariants that do not hold."""
        return tuple(finding.name for finding in self.findings if finding.ok is False)

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    @property
    def max_abs_diff(self) -> float | None:
        """The largest difference between a logit and the oracle's."""
        compared = [self[name].value for name in ("rows_equal_oracle", "views_equal_oracle")]
        return max((value for value in compared if value is not None), default=None)

    @property
    def greedy_equal(self) -> bool | None:
        """Whether greedy tokens equal those of `transformers.generate`; None when that was skipped."""
        return self["plain_equals_generate"].ok

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the verdicts, then every invariant by name."""
        return {
            "ok": self.ok,
            "max_abs_diff": self.max_abs_diff,
            "greedy_equal": self.greedy_equal,
            "model": self.model,
            "dtype": self.dtype,
            **{finding.name: finding.to_dict() for finding in self.findings},
        }

"""How fast drafts may spend time that nobody else wants: a purse that idle time fills and drafts empty.

    nobody pays   ░░░░░░░░░░░░░░░░░░░░   earns `share` seconds a second, up to a second's worth
    a draft step       ▓▓▓▓              costs the seconds that it took; may leave a debt, which is earned back first
    somebody pays          ████████      earns nothing

So in any stretch in which nobody pays, drafts compute for at most `share` of it, and of one second more, and one step.
The moments and the seconds are told, so that an engine that is replayed decides as it did.
"""

from __future__ import annotations

__all__ = ["SAVED_S", "DraftPace"]

SAVED_S = 1.0
"""Seconds of idle time whose share is saved up while there is nothing to draft."""

_ROUNDING_S = 1e-6


class DraftPace:
    """Decides when drafts may compute.

    Args:
        share: Of the time in which nobody pays, above 0; at 1 they always may.

    >>> pace = DraftPace(0.5)
    >>> pace.took(0.0, seconds=1.0, is_draft=True)  # half a second was saved, half of one was earned meanwhile
    >>> pace.due(1.0)
    1.0
    >>> pace.took(1.0, seconds=0.2, is_draft=True)
    >>> round(pace.due(1.2), 3)
    1.4
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._saved = share * SAVED_S
        self._at = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether drafts ever have to wait."""
        return self.share < 1

    def took(self, began: float, *, seconds: float, is_draft: bool) -> None:
        """A step was made.

        Args:
            began: When, on the engine's clock.
            seconds: That it took.
            is_draft: Whether nobody waited for anything in it.
        """
        self._earn(began)
        if is_draft:
            self._saved -= seconds
            self._earn(began + seconds)
        self._at = max(self._at, began + seconds)

    def due(self, now: float) -> float:
        """When a draft may compute: now, or later."""
        self._earn(now)
        if not self.is_limited or self._saved >= -_ROUNDING_S:
            return now
        return now - self._saved / self.share

    def _earn(self, until: float) -> None:
        idle = max(0.0, until - self._at)
        self._saved = min(self.share * SAVED_S, self._saved + self.share * idle)
        self._at = max(self._at, until)

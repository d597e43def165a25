"""The conformance suite: is this backend a backend? It sees nothing but the `Backend` protocol.

    scenes    real sessions, recorded on a backend that computes nothing      ─▶ tapes
    stand     plays tapes to fresh backends: alone, in batches, after forks, into full pools
    oracle    the same weights in this process, recomputed densely

    equality  lifetimes  drafts  draws  room  refusals                        the checks

Logits never leave a backend; what is compared are tokens, the likeliest classes with their log-probabilities, entropy
and confidence. Two checks compare with the oracle, and all others with what the same backend says when nothing
happens to a session: so one mistake fails one check, which says where to look.

    >>> from braid.checks.conformance import run_conformance
    >>> from braid.engine.local import LocalBackend
    >>> findings = run_conformance(LocalBackend, model)                       # doctest: +SKIP
"""

from __future__ import annotations

from braid.checks.conformance.oracle import Oracle
from braid.checks.conformance.run import CONFORMANCE, run_conformance
from braid.checks.conformance.stand import MakeBackend

__all__ = ["CONFORMANCE", "MakeBackend", "Oracle", "run_conformance"]

"""Scores and ways of arriving, drawn."""

from __future__ import annotations

import math
import random

from hypothesis import strategies as st

from braid.data.builders.audit import FAULTS, UNSEEN_FAULTS, audit_score
from braid.data.builders.isolation import isolation_score, own_tasks
from braid.data.builders.outside import outside_score
from braid.data.builders.solve import solve_score
from braid.data.layout import Arrival
from braid.data.score import Score
from braid.data.stories import SPLITS, tell

arrivals = st.builds(
    Arrival,
    gap=st.sampled_from((1, 2, 5, math.inf)),
    jitter=st.sampled_from((0.0, 0.3, 1.0)),
    bursts=st.sampled_from((0.0, 0.2, 1.0)),
    longest=st.sampled_from((2, 12, 1_000_000)),
    wait_k=st.integers(1, 60),
)


@st.composite
def scores(draw: st.DrawFn) -> Score:
    kind = draw(st.sampled_from(("solve", "audit", "outside", "isolation")))
    seed, index = draw(st.integers(0, 3)), draw(st.integers(0, 200))
    rng = random.Random(f"{seed}/{index}")
    story = tell(seed, index, draw(st.sampled_from(SPLITS)))
    if kind == "solve":
        return solve_score(story, "x")
    if kind == "audit":
        return audit_score(story, "x", rng, draw(st.sampled_from((FAULTS, UNSEEN_FAULTS))))
    if kind == "outside":
        return outside_score(rng, "x")
    return isolation_score(*next(own_tasks(seed, index)), "x", rng)

"""Views function on the default model: the writer repeats what only another stream holds."""

from __future__ import annotations

import json

import pytest

from braid.checks.codewords import PLACES, measure_codewords
from braid.model.model import Model

CASES = 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_writer_repeats_a_code_word_of_another_stream(
    smollm2: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = measure_codewords(smollm2, cases=CASES)
    with capsys.disabled():
        print("\n" + json.dumps({place: found.to_dict() for place, found in figures.items()}))
    for place in PLACES:
        found = figures[place]
        assert found.cases == CASES
        assert found.sequential >= CASES // 2, "the cases must be ones that the model can do"
        assert found.rate >= 0.8
        assert found.blocked / found.cases <= 2 * found.chance, (
            "without reading, no better than a blind guess"
        )
        assert found.max_abs_diff == 0.0

"""The public face: `import braid` gives these names, each imported when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import braid


def test_the_face_is_deliberate() -> None:
    assert braid.__all__ == [
        "Engine",
        "Result",
        "SamplingSpec",
        "Session",
        "Topology",
        "Transcript",
        "Workflow",
        "__version__",
        "errors",
        "generate",
        "load",
        "topology",
    ]
    assert set(braid.__all__) <= set(dir(braid))


@pytest.mark.parametrize("name", braid.__all__)
def test_every_name_is_where_it_comes_from(name: str) -> None:
    value = getattr(braid, name)
    home = getattr(value, "__module__", "braid")
    assert home.startswith("braid")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'telepathy'"):
        _ = braid.telepathy  # type: ignore[attr-defined]


def test_light_names_bring_no_torch() -> None:
    program = """
import sys, braid
braid.topology("plain"), braid.Topology, braid.Transcript, braid.SamplingSpec, braid.errors.BraidError
assert "torch" not in sys.modules
import braid.streams.topology
assert braid.streams.topology.Topology is braid.Topology
import braid.engine.loop, braid.engine.journal, braid.testing.null
assert not {"torch", "transformers"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)

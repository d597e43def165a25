"""Topologies that come with Braid, and the one function that turns whatever names a topology into one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from braid.errors import TopologyError, UnknownPresetError
from braid.streams.strict import hint, shown
from braid.streams.topology import Topology

__all__ = ["preset_names", "topology"]


@cache
def preset_names() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    found = (entry.name for entry in files("braid.streams").joinpath("presets").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml")))


def topology(source: str | os.PathLike[str] | Mapping[str, Any] | Topology) -> Topology:
    """The topology that is meant.

    Args:
        source: the name of a preset, the path of a YAML file, plain data, or a topology, which is returned as is.

    Raises:
        UnknownPresetError: neither a preset nor a file has this name.
        TopologyError: the file or the data make no topology; the message starts with the file's name.

    >>> topology("solve").output_names
    ('thought', 'output')
    """
    if isinstance(source, Topology):
        return source
    if isinstance(source, Mapping):
        return Topology.from_dict(source)
    if isinstance(source, str) and source in preset_names():
        return _preset(source)
    return _from_file(Path(source))


@cache
def _preset(name: str) -> Topology:
    text = files("braid.streams").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    return Topology.from_yaml(text)


def _from_file(path: Path) -> Topology:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TopologyError(f"{path}: this is not UTF-8 text; a topology file is YAML") from None
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
        presets = hint(str(path), preset_names())
        raise UnknownPresetError(f"{shown(str(path))} is neither a preset nor a file; {presets}") from None
    except OSError as error:
        raise TopologyError(f"{shown(str(path))} cannot be read ({error.strerror})") from None
    try:
        return Topology.from_yaml(text)
    except TopologyError as error:
        error.args = (f"{path}: {error}",)  # in place, so that the class and its attributes stay
        raise

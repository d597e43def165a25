"""Promises about the package as a whole: what importing costs, what is exported, what the build says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import braid
from braid import errors

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "safetensors", "huggingface_hub"}
LIGHT_ROOMS = ("braid", "braid.errors", "braid.streams", "braid.client", "braid.data")


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _rooms(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is not None]


def _modules() -> list[str]:
    return [info.name for info in pkgutil.walk_packages(braid.__path__, "braid.")]


@pytest.mark.parametrize("room", _rooms(LIGHT_ROOMS))
def test_light_rooms_import_nothing_heavy(room: str) -> None:
    modules = [name for name in _modules() if name.startswith(f"{room}.")] if room != "braid" else []
    program = f"""
import importlib, sys
for name in {[room, *modules]!r}:
    importlib.import_module(name)
print(sorted({HEAVY!r} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_check_for_heavy_imports_can_fail() -> None:
    program = f"import sys, braid.model.machine; print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "torch" in done.stdout


def test_the_contracts_cover_every_light_room() -> None:
    contracts = {contract["id"]: contract for contract in _project()["tool"]["importlinter"]["contracts"]}
    covered = contracts["no-torch"]["source_modules"]
    assert [room for room in _rooms(LIGHT_ROOMS) if room not in covered and room != "braid"] == []
    layers = {name.strip(" ()") for line in contracts["layers"]["layers"] for name in line.split("|")}
    rooms = {info.name for info in pkgutil.iter_modules(braid.__path__) if info.ispkg}
    assert rooms - {"web", "testing"} <= layers


@pytest.mark.parametrize("name", _modules())
def test_every_exported_name_is_there(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert [each for each in exported if not hasattr(module, each)] == []
    assert len(set(exported)) == len(exported)


def _all_errors() -> list[type[errors.BraidError]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.BraidError)
    ]


def test_the_tree_of_errors_is_in_step_with_its_classes() -> None:
    classes = _all_errors()
    assert sorted(errors.__all__) == sorted(each.__name__ for each in classes)
    drawn = re.findall(r"^.*?([A-Za-z]+)(?: {2,}.*)?$", errors.__doc__ or "", re.MULTILINE)
    names = [each.__name__ for each in classes]
    assert sorted(name for name in drawn if name in names) == sorted(names)


def test_errors_have_codes_of_their_own() -> None:
    classes = _all_errors()
    assert len({each.exit_code for each in classes}) == len(classes)
    assert len({each.code for each in classes}) == len(classes)
    assert all(0 < each.exit_code < 126 for each in classes)


def test_every_error_is_documented() -> None:
    assert [each.__name__ for each in _all_errors() if not each.__doc__] == []


def test_errors_are_only_raised_from_the_tree() -> None:
    """A bare ValueError or RuntimeError would reach the user without a name or an exit code."""
    bare = {"Exception", "RuntimeError", "ValueError", "OSError"}
    found: list[str] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = getattr(node.exc.func, "id", "")
                if name in bare:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert found == []


def test_constraints_pin_what_the_project_asks_for() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "only plain pins, no local versions"
    pinned = {_normal(line.split("==")[0]) for line in lines}
    project = _project()["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {_normal(re.split(r"[<>=\[]", requirement)[0]) for requirement in wanted}
    assert names - pinned - {"pip"} == set()


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def test_no_machine_leaks_into_the_repository() -> None:
    """Paths and hosts of one machine have no place in what others clone."""
    tracked = [path for pattern in ("*.toml", "*.txt", "Makefile", ".ci/run") for path in ROOT.glob(pattern)]
    suspicious = re.compile(r"/work/|/opt/|/root/|https?://(?!127\.0\.0\.1|localhost)")
    assert [path.name for path in tracked if suspicious.search(path.read_text())] == []

"""What the documentation says is so: tables, examples, files, commands and the picture of the house."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import typer.main

import braid
from braid import errors
from braid.cli import COMMANDS
from braid.streams import Topology, preset_names
from braid.streams.entries import LifeKind
from braid.streams.events import event_schema
from braid.streams.stream_spec import StreamSpec

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


class Example(NamedTuple):
    page: str
    mark: str
    language: str
    text: str


def _examples() -> list[Example]:
    return [
        Example(str(page.relative_to(ROOT)), found["mark"] or "", found["language"], found["text"])
        for page in PAGES
        for found in BLOCK.finditer(page.read_text())
    ]


def _marked(mark: str, language: str) -> list[Any]:
    found = [each for each in _examples() if each.mark.startswith(mark) and each.language == language]
    return [pytest.param(each, id=f"{each.page}-{number}") for number, each in enumerate(found)]


def _rows_of_table(page: Path, width: int) -> list[list[str]]:
    """The cells of all table rows with so many columns."""
    lines = [
        line.strip().strip("|").split(" | ") for line in page.read_text().splitlines() if line[:1] == "|"
    ]
    return [[cell.strip() for cell in cells] for cells in lines if len(cells) == width]


def test_the_table_of_errors_is_that_of_the_classes() -> None:
    rows = _rows_of_table(DOCS / "transcripts-and-events.md", 4)
    told = {cells[2]: (cells[0], cells[1]) for cells in rows if cells[0].isdecimal()}
    classes = [getattr(errors, name) for name in errors.__all__]
    assert told == {f"`{each.__name__}`": (str(each.exit_code), f"`{each.code}`") for each in classes}


def test_the_table_of_events_is_that_of_the_union() -> None:
    rows = _rows_of_table(DOCS / "transcripts-and-events.md", 3)
    told = {cells[0].strip("`"): set(re.findall(r"`(\w+)`", cells[1])) for cells in rows}
    schema = event_schema()
    for kind, reference in schema["discriminator"]["mapping"].items():
        fields = set(schema["$defs"][reference.rpartition("/")[2]]["properties"]) - {"event"}
        assert fields <= told[kind], kind
    assert told.keys() - {"event", "---"} == schema["discriminator"]["mapping"].keys()


def test_every_kind_of_life_event_is_told() -> None:
    told = {cells[0].strip("`") for cells in _rows_of_table(DOCS / "transcripts-and-events.md", 2)}
    assert set(get_args(LifeKind)) <= told


def test_every_key_of_a_topology_is_told() -> None:
    page = DOCS / "topologies.md"
    of_stream = {cells[0].strip("`") for cells in _rows_of_table(page, 4)}
    assert set(StreamSpec.model_fields) <= of_stream
    of_whole = {name for cells in _rows_of_table(page, 3) for name in re.findall(r"`(\w+)`", cells[0])}
    assert set(Topology.model_fields) <= of_whole
    assert set(preset_names()) <= of_stream


@pytest.mark.parametrize("example", _marked("runnable", "python"))
def test_python_examples_parse(example: Example) -> None:
    compile(example.text, example.page, "exec")


@pytest.mark.parametrize("example", _marked("runnable", "yaml"))
def test_topologies_load(example: Example) -> None:
    topology = Topology.from_yaml(example.text)
    assert Topology.from_yaml(topology.to_yaml()) == topology


@pytest.mark.parametrize("example", _marked("refused", "yaml"))
def test_topologies_that_are_refused(example: Example) -> None:
    error = getattr(errors, example.mark.partition(": ")[2])
    with pytest.raises(error) as refusal:
        Topology.from_yaml(example.text)
    page = (ROOT / example.page).read_text().replace("\n> ", " ")
    assert str(refusal.value) in page, "the page quotes the message"


@pytest.mark.parametrize("path", sorted((DOCS / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_example_files_load(path: Path) -> None:
    assert braid.topology(str(path)).name == path.stem


def test_there_are_examples() -> None:
    assert min(len(_marked("runnable", kind)) for kind in ("python", "yaml")) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    links = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    missing = [target for target in links if not (page.parent / target).exists()]
    named = re.findall(r"(?<![\w./])(?:src|docs|tests|bench)/[\w./-]*\w", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    rooms = "|".join(info.name for info in pkgutil.iter_modules(braid.__path__) if info.ispkg)
    modules = re.findall(rf"(?<![\w./])(?:{rooms})/\w+\.py", text)
    tops = (ROOT / "src/braid", ROOT / "tests")
    missing += [name for name in modules if not any((top / name).exists() for top in tops)]
    assert missing == []


def _commands(text: str) -> Iterator[list[str]]:
    """Each `braid …` of a page's shell blocks and code spans, in words."""
    shell = [
        found["text"].replace("\\\n", " ") for found in BLOCK.finditer(text) if found["language"] == "sh"
    ]
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    for line in (line for block in [*shell, *spans] for line in block.splitlines()):
        for command in re.findall(
            r"(?:^|[\s(/])braid ([a-z]+\b(?:\"[^\"]*\"|'[^']*'|[^|>;)'\"])*)", line.partition(" #")[0]
        ):
            yield shlex.split(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_named_exist(page: Path) -> None:
    for words in _commands(page.read_text()):
        assert words[0] in COMMANDS, words
        command: Any = typer.main.get_command(importlib.import_module(f"braid.cli.{words[0]}").app)
        if hasattr(command, "commands") and len(words) > 1:
            assert words[1] in command.commands, words
            command = command.commands[words[1]]
        known = {option for each in command.params for option in each.opts} | {"--help"}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, words


def test_the_check_for_commands_can_fail() -> None:
    assert list(_commands("`braid fly --high`")) == [["fly", "--high"]]
    block = "```sh\ncat x | braid run \\\n  --user 'a; b' > out\n```\n"
    assert list(_commands(block)) == [["run", "--user", "a; b"]]


def test_every_command_and_option_is_told() -> None:
    page = (DOCS / "command-line.md").read_text()
    for name in COMMANDS:
        command: Any = typer.main.get_command(importlib.import_module(f"braid.cli.{name}").app)
        for each in [command, *getattr(command, "commands", {}).values()]:
            options = [option for parameter in each.params for option in parameter.opts if option[:2] == "--"]
            assert [option for option in options if option != "--help" and option not in page] == []


def test_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?:^|`|time |-v )make ([a-z]+)", page.read_text(), re.M)
    }
    assert {"demo", "test"} <= named <= targets


def test_the_picture_has_every_room() -> None:
    page = (DOCS / "architecture.md").read_text()
    picture = next(BLOCK.finditer(page))["text"]
    rooms = [info.name for info in pkgutil.iter_modules(braid.__path__) if info.ispkg]
    assert [room for room in rooms if f"{room}/" not in picture] == []
    assert set(re.findall(r"\b(\w+)/ ", picture)) == set(rooms)

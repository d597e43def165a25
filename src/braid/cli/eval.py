"""`braid eval`: what streams brought, beside the same model without them."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braid.cli.machine import ThreadsOption, load_model
from braid.cli.progress import progress_bar
from braid.cli.report import JsonOption, print_json
from braid.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Generator

    from braid.eval.tasks import Contenders

__all__ = ["app", "audit", "solve"]

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    help="Measure what streams brought: accuracy, waiting, rows, seconds, beside a single-stream baseline.",
)

_SOLVE_EXAMPLES = """[bold]Examples[/]

braid eval solve --n 300

braid eval solve --n 4000 --problems tests/eval/own_words.jsonl --out report --json

braid eval solve --model runs/mine/2-streams/model --baseline runs/mine/2-turns/model"""

_AUDIT_EXAMPLES = """[bold]Examples[/]

braid eval audit --n 400

braid eval audit --n 2000 --out report --json"""

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A model that was trained on streams.", metavar="NAME")
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        help="Its single-stream baseline; 'none' leaves comparisons out.", metavar="NAME", show_default=False
    ),
]
TopologyOption = Annotated[
    str, typer.Option("--topology", "-t", help="A preset or a YAML file, of the model's streams.")
]
SeedOption = Annotated[int, typer.Option(help="Of the problems.")]
PerSecondOption = Annotated[
    float, typer.Option(min=0.1, help="Tokens a second of who types, where it is timed.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for report.md, report.html and report.json.", metavar="FOLDER"),
]


@app.command(epilog=_SOLVE_EXAMPLES)
def solve(
    model: ModelOption = "braid-stories",
    baseline: BaselineOption = None,
    topology: TopologyOption = "stories",
    n: Annotated[
        int, typer.Option("--n", "-n", min=3, help="Problems in all, spread over the splits.")
    ] = 4000,
    seed: SeedOption = 7,
    problems: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL with question and answer, reported by itself; may be repeated.", metavar="FILE"
        ),
    ] = None,
    gsm: Annotated[bool, typer.Option(help="Ask problems of gsm_symbolic, too.")] = True,
    sweep: Annotated[bool, typer.Option(help="Sweep wait-k from 1 to 10.")] = True,
    timed: Annotated[int, typer.Option(min=0, help="Problems that are timed, one session alone.")] = 40,
    per_second: PerSecondOption = 5.0,
    threads: ThreadsOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Solve word problems while they arrive.

    The splits hold numbers, operation structures and wordings that training never shows. Every problem is played paced
    (a token a row) and typed (the next token when nobody speaks), and given to the baseline whole.
    """
    from braid.eval.documents import solve_document
    from braid.eval.tasks import WAITS, evaluate_solve

    _make(out)
    with _progress() as told:
        found = evaluate_solve(
            _contenders(model, baseline, topology, threads),
            n=n,
            seed=seed,
            files=problems or (),
            gsm=gsm,
            waits=WAITS if sweep else (),
            timed=timed,
            per_second=per_second,
            on_progress=told,
        )
    _tell(found, solve_document, out, is_json=json)


@app.command(epilog=_AUDIT_EXAMPLES)
def audit(
    model: ModelOption = "braid-stories",
    baseline: BaselineOption = None,
    topology: TopologyOption = "stories",
    n: Annotated[
        int, typer.Option("--n", "-n", min=4, help="Solutions in all, spread over the splits.")
    ] = 2000,
    seed: SeedOption = 7,
    timed: Annotated[int, typer.Option(min=0, help="Solutions that are timed, one session alone.")] = 40,
    per_second: PerSecondOption = 5.0,
    threads: ThreadsOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Flag planted faults while a solution is written.

    A flag that comes before its fault can be known is a false alarm. The baseline reads the finished solution, and then
    audits it.
    """
    from braid.eval.documents import audit_document
    from braid.eval.tasks import evaluate_audit

    _make(out)
    with _progress() as told:
        who = _contenders(model, baseline, topology, threads)
        found = evaluate_audit(who, n=n, seed=seed, timed=timed, per_second=per_second, on_progress=told)
    _tell(found, audit_document, out, is_json=json)


def _make(out: Path | None) -> None:
    """The folder of the report, before an evaluation is run for nothing."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make the folder {out}: {error.strerror}; name another with --out"
            ) from error


def _contenders(model: str, baseline: str | None, topology: str, threads: int | None) -> Contenders:
    from braid.eval.baseline import Baseline
    from braid.eval.play import trained_topology
    from braid.eval.tasks import Contenders
    from braid.model.sources import PACKAGED, baseline_of
    from braid.streams.presets import topology as as_topology

    if baseline is None:
        baseline = baseline_of(model)
    folder = None if baseline in (None, "none") else PACKAGED.get(baseline, Path(baseline))
    loaded = load_model(model, threads=threads)
    trained_topology(loaded)
    return Contenders(loaded, as_topology(topology), None if folder is None else Baseline(folder, baseline))


@contextmanager
def _progress() -> Generator[Callable[[str, int, int], None]]:
    """A bar that says what is being done."""
    with progress_bar("evaluating") as advance:
        yield lambda what, done, of: advance(done, of, what)


def _tell(
    found: Mapping[str, Any], document: Callable[[Mapping[str, Any]], Any], out: Path | None, *, is_json: bool
) -> None:
    from braid.bench.machine import describe_machine
    from braid.data.files import write_text
    from braid.eval.report import to_html, to_markdown

    found = {**_finite(found), "machine": describe_machine()}
    if out is not None:
        write_text(out / "report.json", json_format.dumps(found, indent=2, ensure_ascii=False) + "\n")
    blocks = document(found)
    if out is not None:
        write_text(out / "report.md", to_markdown(blocks))
        write_text(out / "report.html", to_html(blocks))
    if is_json:
        print_json(found)
    else:
        typer.echo(to_markdown(blocks))
        if out is not None:
            typer.echo(f"Written: {out / 'report.html'}", err=True)


def _finite(value: Any) -> Any:
    """JSON has no word for what is no number: a mean of nothing is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value

"""From the options of `braid bench typing` to its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from braid.bench.traces.file import Trace, read_traces
from braid.bench.traces.kinds import generate_traces
from braid.bench.typing.figures import figures_of
from braid.bench.typing.live import LIVE_WAYS, run_live
from braid.bench.typing.llama import LlamaServer
from braid.bench.typing.paying import bench_paying
from braid.bench.typing.run import ANSWER_TOKENS, DEFAULT_WAYS, run_typing
from braid.engine.editing.editable import Mode
from braid.errors import InputError
from braid.model.model import Model
from braid.streams.topology import Topology

__all__ = ["bench_typing", "chosen_traces", "chosen_ways"]

LLAMA = "llama.cpp"
_BASELINES = ("read-ahead", "none", "append", "fresh")


def chosen_traces(path: Path | None, *, n: int, seed: int, kinds: str | None) -> list[Trace]:
    """Traces of a file, or made ones.

    Args:
        path: The file; None makes them.
        n: At most so many of the file; exactly so many made ones.
        seed: Of the made ones.
        kinds: Of the made ones: names with commas, each with `=share` if it is not 1.

    Raises:
        InputError: A file and kinds were given, or there is no such kind, or no trace.
        DataError, DataCorruptError: The file cannot be used.
    """
    if path is None:
        return list(generate_traces(_mix(kinds), n=n, seed=seed))
    if kinds is not None:
        raise InputError("--kinds is for made traces; those of a file are what they are")
    found = list(islice(read_traces(path), n))
    if not found:
        raise InputError(f"{path} has no trace in it")
    return found


def _mix(kinds: str | None) -> dict[str, float] | None:
    if kinds is None:
        return None
    mix: dict[str, float] = {}
    for each in kinds.split(","):
        kind, equals, share = each.strip().partition("=")
        try:
            mix[kind] = float(share) if equals else 1.0
        except ValueError:
            raise InputError(f"--kinds {each.strip()}: the share is a number") from None
    return mix


def chosen_ways(baselines: str, mode: str) -> tuple[str, ...]:
    """The ways to answer that are compared.

    Args:
        baselines: Names with commas; none at all is fine.
        mode: Of one more way; `exact` adds none.

    Raises:
        InputError: There is no such baseline, or mode.
    """
    names = [name.strip() for name in baselines.split(",") if name.strip()]
    for name in names:
        if name not in _BASELINES:
            raise InputError(f"there is no baseline called {name!r}; there are {', '.join(_BASELINES)}")
    if mode not in get_args(Mode):
        raise InputError(f"there is no mode called {mode!r}; there are {', '.join(get_args(Mode))}")
    return ("ahead", *names, *(() if mode == "exact" else (mode,)))


def bench_typing(
    model: Model,
    traces: Sequence[Trace],
    *,
    ways: Sequence[str] = DEFAULT_WAYS,
    topology: str | Topology = "plain",
    answer_tokens: int = ANSWER_TOKENS,
    speed: float | None = None,
    llama_server: str | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Replay traces in all ways, time what drafting costs others, and sum up.

    Args:
        model, traces, ways, topology, answer_tokens: As for `run_typing`.
        speed: Play in real time, so many times as fast as it was typed; None skips what is idle.
        llama_server: Address of a llama.cpp server with the same model, which is asked last.
        on_progress: Is told how many traces are done, of how many, and which comes.

    Returns:
        As `figures_of` gives them.

    Raises:
        InputError: As `run_typing` and `run_live`.
        ConnectionLostError: The llama.cpp server does not answer.
    """
    server = None if llama_server is None else LlamaServer(llama_server, answer_tokens)
    settings: dict[str, Any] = {"topology": topology, "answer_tokens": answer_tokens, "on_trace": on_progress}
    if speed is None:
        run = run_typing(model, traces, ways=ways, **settings)
    else:
        run = run_live(model, traces, ways=[way for way in ways if way in LIVE_WAYS], speed=speed, **settings)
    paying = None
    if run.is_complete:
        try:
            paying = bench_paying(model)
        except KeyboardInterrupt:
            run.is_complete = False
    if server is not None and run.is_complete:
        run.ways = (*run.ways, LLAMA)
        run.turns[LLAMA] = [server.replay(trace) for trace in run.traces]
    return figures_of(run, paying)

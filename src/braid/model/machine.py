"""What the machine can do, and the number format, device and threads that follow from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from braid.errors import InputError

__all__ = ["DTYPES", "MachineChoice", "choose", "set_threads", "usable_cores"]

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
"""The number formats that a caller can ask for by name."""

_BF16_FLAGS = ("avx512_bf16", "amx_bf16")

_unasked = torch.get_num_threads()
"""Threads that torch has while nobody has asked for a number: its own default, or what was chosen here. With any other
number, somebody has."""


@dataclass(frozen=True)
class MachineChoice:
    """How a model is run on this machine.

    Attributes:
        dtype: Number format of weights and activations.
        device: Where they live.
        threads: CPU threads that one operation may use.
        reason: Why, in one line for the user.
    """

    dtype: torch.dtype
    device: torch.device
    threads: int
    reason: str


def choose(
    dtype: str | torch.dtype = "auto", device: str | torch.device = "auto", threads: int | None = None
) -> MachineChoice:
    """Choose what the caller left open by what the machine can do.

    On a CPU that is float32: bfloat16 products crawl without hardware for them (about 1 GFLOP/s against 100 and
    more), and even with it they round what the invariants compare. On a GPU it is bfloat16, where there is one.

    Args:
        dtype: `auto`, a name in `DTYPES`, or one of those torch dtypes.
        device: `auto` (a CUDA device if there is one, else the CPU) or what torch calls a device.
        threads: CPU threads; None for the number that torch was told in this process, or else what `OMP_NUM_THREADS`
            says, or else the cores that this process may really use.

    Returns:
        The choice, with the reason for it.

    Raises:
        InputError: An unknown format or device, a device that is not there, or fewer than one thread.
    """
    where = _device(device)
    wanted = _dtype(dtype)
    if threads is not None and threads < 1:
        raise InputError(f"threads is {threads}; it must be at least 1, or None to choose by the machine")
    count, source = _crew(threads)
    on_cpu = where.type == "cpu"
    what, why = _pick_dtype(wanted, where)
    name = str(what).removeprefix("torch.")
    label = "cpu" if on_cpu else _gpu_name(where)
    crew = f"{count} thread{'s' if count != 1 else ''}"
    return MachineChoice(what, where, count, f"{label}, {name} ({why}), {crew} ({source})")


def _crew(threads: int | None) -> tuple[int, str]:
    """How many threads, and who says so.

    Whoever shares a machine among processes tells each of them with `OMP_NUM_THREADS`, as OpenMP's programs expect:
    threads that are more than the cores wait for each other in a busy loop, and a row takes ten times as long.
    """
    if threads is not None:
        return threads, "as asked"
    told_torch = torch.get_num_threads()
    if told_torch != _unasked:
        return told_torch, "as torch was told"
    # The outermost level's, where it has several.
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if told.isdecimal() and int(told) > 0:
        return int(told), "OMP_NUM_THREADS"
    cores = usable_cores()
    return cores, f"{cores} usable core{'s' if cores != 1 else ''}"


def set_threads(choice: MachineChoice, *, asked: bool) -> None:
    """Let torch use as many threads in this process as were chosen.

    Args:
        choice: The choice.
        asked: Whether somebody asked for the number; then it holds for whoever leaves it open later.
    """
    global _unasked  # noqa: PLW0603 -- as torch's own number, it is the process's
    if not asked and torch.get_num_threads() == _unasked:
        _unasked = choice.threads
    torch.set_num_threads(choice.threads)


def usable_cores(root: Path = Path("/")) -> int:
    """Count the physical cores that this process may use.

    Two hardware threads of one core share its multipliers, so they count once; the scheduler's affinity mask and
    the control group's CPU quota each lower the count.

    Args:
        root: Where `/proc` and `/sys` hang.

    Returns:
        At least 1.
    """
    cpus = _affinity()
    cores = {_siblings(root, cpu) for cpu in cpus}
    quota = _cgroup_quota(root)
    count = len(cores)
    if quota is not None:
        count = min(count, int(quota))
    return max(1, count)


def _affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _siblings(root: Path, cpu: int) -> str:
    """The hardware threads of the core that `cpu` belongs to; just itself where that is not told."""
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _read(path) or str(cpu)


def _cgroup_quota(root: Path) -> float | None:
    """CPUs' worth of time that the control group allows, or None if it sets no limit."""
    modern = (_read(root / "sys/fs/cgroup/cpu.max") or "").split()
    if len(modern) == 2 and modern[0] != "max":
        return int(modern[0]) / int(modern[1])
    quota = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    if isinstance(dtype, torch.dtype):
        if dtype in DTYPES.values():
            return dtype
    elif dtype == "auto":
        return None
    elif dtype in DTYPES:
        return DTYPES[dtype]
    raise InputError(f"unknown dtype {dtype}; use auto or one of {', '.join(DTYPES)}")


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}; use auto, cpu or cuda") from error
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InputError(f"device {device} is not there: torch sees {count} CUDA device(s); use auto or cpu")
    if where.type not in ("cpu", "cuda"):
        raise InputError(f"device {device} is not supported; use auto, cpu or cuda")
    return where


def _pick_dtype(wanted: torch.dtype | None, where: torch.device) -> tuple[torch.dtype, str]:
    """The number format and why."""
    if where.type == "cuda":
        if wanted is not None:
            return wanted, "as asked"
        if torch.cuda.is_bf16_supported():
            return torch.bfloat16, "native on this GPU"
        return torch.float16, "this GPU has no bfloat16"
    if wanted in (None, torch.float32):
        return torch.float32, "exact and fast on a CPU"
    if wanted == torch.bfloat16 and not _has_bf16():
        return (
            wanted,
            "as asked, but this CPU has no hardware for it: expect it to be far slower than float32",
        )
    return wanted or torch.float32, "as asked"


def _has_bf16(root: Path = Path("/")) -> bool:
    words = (_read(root / "proc/cpuinfo") or "").split()
    return any(flag in words for flag in _BF16_FLAGS)


def _gpu_name(where: torch.device) -> str:
    return torch.cuda.get_device_name(where)

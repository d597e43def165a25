from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from braid.errors import InputError
from braid.model import machine
from braid.model.machine import choose, set_threads, usable_cores


@pytest.fixture(autouse=True)
def threads_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has told torch a number yet; it has the old one again afterwards."""
    before = torch.get_num_threads()
    monkeypatch.setattr(machine, "_unasked", before)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")


def fake_machine(root: Path, monkeypatch: pytest.MonkeyPatch, siblings: list[str]) -> None:
    """A machine whose CPU `i` shares its core with `siblings[i]`."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(len(siblings))))
    for cpu, shared in enumerate(siblings):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{shared}\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)


@pytest.mark.usefixtures("without_gpu")
def test_a_cpu_gets_float32_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    choice = choose()
    assert (choice.dtype, choice.device) == (torch.float32, torch.device("cpu"))
    assert choice.threads == usable_cores()
    assert "cpu, float32" in choice.reason
    assert "usable core" in choice.reason


@pytest.mark.usefixtures("without_gpu")
def test_what_the_caller_asks_for_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose("bfloat16", "cpu", 3)
    assert (choice.dtype, choice.threads) == (torch.bfloat16, 3)
    assert "3 threads (as asked)" in choice.reason
    assert choose(torch.float64).dtype == torch.float64
    monkeypatch.setattr(machine, "_has_bf16", lambda: False)
    assert "no hardware" in choose("bfloat16").reason
    monkeypatch.setattr(machine, "_has_bf16", lambda: True)
    assert "no hardware" not in choose("bfloat16").reason


@pytest.mark.parametrize(
    ("told", "threads"), [("3", 3), (" 2,1", 2), ("", None), ("0", None), ("-1", None), ("x", None)]
)
@pytest.mark.usefixtures("without_gpu")
def test_what_openmp_is_told_holds_here_too(
    told: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it can be read; whoever asks for a number gets that one."""
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    choice = choose()
    assert choice.threads == (threads or usable_cores())
    assert ("OMP_NUM_THREADS" in choice.reason) == (threads is not None)
    assert choose(threads=5).threads == 5


@pytest.mark.usefixtures("without_gpu")
def test_a_number_that_torch_was_told_stays_for_whoever_leaves_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second model must not change the threads of the first; a number by the machine is nobody's wish."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for _ in range(2):
        by_machine = choose()
        assert by_machine.threads == 7
        set_threads(by_machine, asked=False)
        assert torch.get_num_threads() == 7
    set_threads(choose(threads=3), asked=True)
    for _ in range(2):
        kept = choose()
        assert (kept.threads, "as torch was told" in kept.reason) == (3, True)
        set_threads(kept, asked=False)
    torch.set_num_threads(2)
    assert choose().threads == 2
    assert choose(threads=5).threads == 5


@pytest.mark.usefixtures("with_gpu")
def test_a_gpu_gets_bfloat16_if_it_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose()
    assert (choice.dtype, choice.device.type) == (torch.bfloat16, "cuda")
    assert "Some GPU, bfloat16" in choice.reason
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert choose().dtype == torch.float16
    assert choose(device="cpu").dtype == torch.float32


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype": "int8"}, "unknown dtype"),
        ({"dtype": torch.int8}, "unknown dtype"),
        ({"device": "moon"}, "unknown device"),
        ({"device": "cuda"}, "0 CUDA device"),
        ({"device": "meta"}, "not supported"),
        ({"threads": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose(**arguments)  # type: ignore[arg-type]


def test_two_hardware_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_machine(tmp_path, monkeypatch, ["0,2", "1,3", "0,2", "1,3"])
    assert usable_cores(tmp_path) == 2


def test_the_affinity_mask_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_machine(tmp_path, monkeypatch, ["0", "1", "2", "3"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    assert usable_cores(tmp_path) == 2


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1)])
def test_the_quota_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cores: int
) -> None:
    fake_machine(tmp_path, monkeypatch, ["0", "1", "2", "3"])
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(limit)
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("300000", 3)])
def test_the_quota_of_an_older_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    fake_machine(tmp_path, monkeypatch, ["0", "1", "2", "3"])
    (tmp_path / "sys/fs/cgroup/cpu").mkdir()
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path) == cores


def test_a_machine_that_tells_nothing_has_as_many_cores_as_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(tmp_path) == 5


@pytest.mark.parametrize(
    ("flags", "expected"), [("fpu avx512_bf16 sse", True), ("fpu amx_bf16", True), ("fpu avx2", False)]
)
def test_hardware_for_bfloat16_is_read_off_the_flags(tmp_path: Path, flags: str, expected: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    assert machine._has_bf16(tmp_path) is expected

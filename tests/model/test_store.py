from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from braid.errors import ModelError
from braid.model.progress import Progress, ignore
from braid.model.store import ModelStore, default_cache_dir


def fill(folder: Path) -> None:
    (folder / "weights").write_text("0123456789")
    (folder / "config").write_text("{}")


def refuse(folder: Path) -> None:
    raise AssertionError("it is there already")


def hidden(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "models").glob(".*") if path.is_dir())


def test_an_entry_is_built_once_and_found_again(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    assert store.find("key") is None
    entry = store.build("key", fill, ignore)
    assert (entry / "weights").read_text() == "0123456789"
    assert store.build("key", refuse, ignore) == entry == store.find("key")
    assert hidden(tmp_path) == []


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    store = ModelStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.build("key", fail, ignore)
    assert store.find("key") is None
    assert hidden(tmp_path) == []
    store.build("key", fill, ignore)


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "no manifest"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    store = ModelStore(tmp_path)
    entry = store.build("key", fill, ignore)
    if damage == "truncate":
        (entry / "weights").write_text("01234")
    elif damage == "remove":
        (entry / "config").unlink()
    elif damage == "manifest":
        (entry / "entry.json").write_text('{"format": 1, "files": ["weights"]}')
    else:
        (entry / "entry.json").unlink()
    assert store.find("key") is None
    assert store.build("key", fill, ignore) == entry
    assert (entry / "weights").read_text() == "0123456789"


def test_threads_that_ask_at_once_build_once(tmp_path: Path) -> None:
    built: list[Path] = []
    said: list[Progress] = []

    def slowly(folder: Path) -> None:
        built.append(folder)
        time.sleep(1.0)
        fill(folder)

    threads = [
        threading.Thread(target=lambda: ModelStore(tmp_path).build("key", slowly, said.append))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert {progress.stage for progress in said} == {"wait"}
    assert ModelStore(tmp_path).find("key") is not None


BUILDER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from braid.model.progress import ignore
    from braid.model.store import ModelStore

    def fill(folder):
        (folder / "weights").write_text("half")
        print("started", flush=True)
        time.sleep(float(sys.argv[2]))
        (folder / "weights").write_text("whole")

    ModelStore(Path(sys.argv[1])).build("key", fill, ignore)
    print("done", flush=True)
    """
)


def start_builder(root: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(root), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def test_a_builder_that_is_killed_leaves_nothing_broken(tmp_path: Path) -> None:
    with start_builder(tmp_path, 60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert len(hidden(tmp_path)) == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
    store = ModelStore(tmp_path)
    assert store.find("key") is None
    entry = store.build("key", fill, ignore)
    assert (entry / "weights").read_text() == "0123456789"
    assert hidden(tmp_path) == [], "what the dead process left is cleared away"


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    with start_builder(tmp_path, 1.0) as first, start_builder(tmp_path, 1.0) as second:
        said = [process.communicate(timeout=60)[0] for process in (first, second)]
        assert [first.returncode, second.returncode] == [0, 0]
    assert sorted(said) == ["done\n", "started\ndone\n"]
    entry = ModelStore(tmp_path).find("key")
    assert entry is not None
    assert (entry / "weights").read_text() == "whole"


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be stored"):
        ModelStore(tmp_path / "file").build("key", fill, ignore)

    def fill_the_disk(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match="No space left"):
        ModelStore(tmp_path).build("key", fill_the_disk, ignore)
    assert hidden(tmp_path) == []


def test_others_may_read_what_is_stored(tmp_path: Path) -> None:
    def privately(folder: Path) -> None:
        fill(folder)
        (folder / "weights").chmod(0o600)

    entry = ModelStore(tmp_path).build("key", privately, ignore)
    assert entry.stat().st_mode & 0o777 == 0o755
    assert (entry / "weights").stat().st_mode & 0o777 == 0o644


def test_the_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/braid")
    monkeypatch.delitem(os.environ, "XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "braid"

"""Settings: flags win over the environment, the environment over the file, and nothing is swallowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from braid.errors import InputError
from braid.server.settings import ServerSettings, is_loopback, load_settings

KEY = "a-very-long-secret"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("BRAID_SERVE_")]:
        monkeypatch.delenv(name)


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    return path


def test_defaults_are_safe() -> None:
    settings = load_settings()
    assert settings.host == "127.0.0.1"
    assert not settings.cors_origins
    assert not settings.log_text
    assert settings.database.startswith("sqlite:///")


def test_flag_environment_file_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(tmp_path, "port: 1\nmax_rows: 2\ntopology: chat\n")
    monkeypatch.setenv("BRAID_SERVE_PORT", "10")
    monkeypatch.setenv("BRAID_SERVE_MAX_ROWS", "20")
    settings = load_settings(path, port=100, host=None)
    assert (settings.port, settings.max_rows, settings.topology, settings.max_tokens) == (
        100,
        20,
        "chat",
        1024,
    )


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_SERVE_KEYS", f'[{{"name": "me", "key": "{KEY}", "internal": true}}]')
    (key,) = load_settings().keys
    assert key.key.get_secret_value() == KEY
    assert key.internal


def test_what_is_shown_can_be_read_and_holds_no_key(tmp_path: Path) -> None:
    path = file(tmp_path, f"keys: [{{name: me, key: {KEY}}}]\nport: 9\n")
    shown = load_settings(path).shown()
    assert KEY not in shown
    assert yaml.safe_load(shown)["port"] == 9
    assert set(yaml.safe_load(shown)) == set(ServerSettings.model_fields)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot: 1", "port"),
        ("port: 99999", "port"),
        ("- 1", "names and values"),
        ("port: [", "no YAML"),
        ("keys: [{name: me, key: short}]", "shorter than 8"),
        (f"keys: [{{name: a, key: {KEY}}}, {{name: b, key: {KEY}}}]", "the same key"),
        (f"keys: [{{name: a, key: {KEY}}}, {{name: a, key: {KEY}2}}]", "the same name"),
        ("max_sessions: 0", "max_sessions"),
        ("draft_share: 0", "draft_share"),
        ("draft_after: -1", "draft_after"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        load_settings(file(tmp_path, text))
    assert KEY not in str(caught.value)


def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_SERVE_PROT", "1")
    with pytest.raises(InputError, match=r"BRAID_SERVE_PROT.*port"):
        load_settings()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_settings(tmp_path / "none.yaml")


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com")))

"""What a server is told when it starts: by flags, the environment, and a file, in this order.

    braid serve --port 9000            a flag
    BRAID_SERVE_PORT=9000              the environment
    braid serve --config serve.yaml    a file: `port: 9000`

`braid serve --print-config` shows what came of it, with keys hidden.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from braid.engine.admission import EngineLimits
from braid.engine.editing.checking import CHECK_SHARE
from braid.engine.editing.editable import DRAFT_AFTER, MOST_DRAFTED
from braid.engine.scheduler import SchedulerPolicy
from braid.errors import InputError
from braid.streams.strict import hint, problem

__all__ = ["ApiKey", "ServerSettings", "is_loopback", "load_settings"]

_Count = Annotated[int, Field(ge=1)]


class ApiKey(BaseModel):
    """A key, and what it allows.

    Args:
        key: the secret that clients send.
        name: for logs and metrics.
        internal: whether its sessions may show inner streams.
        max_sessions: sessions and requests that may be under way at once.
        requests_per_minute: requests and opened sessions in a minute.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: SecretStr
    name: Annotated[str, Field(min_length=1, max_length=64)]
    internal: bool = False
    max_sessions: _Count = 64
    requests_per_minute: _Count = 600

    @model_validator(mode="after")
    def _is_secret(self) -> Self:
        if len(self.key.get_secret_value()) < 8:
            raise problem(f"the key of {self.name} is shorter than 8 characters, which can be guessed")
        return self


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "braid"


class ServerSettings(BaseSettings):
    """How a server is run.

    Args:
        model: alias, folder, GGUF file or hub id of the model.
        drafter: a smaller model that drafts for it in live sessions with editable input; none by default.
        dtype, device, threads, kv_tokens: as for `braid.load` and `braid.Engine`.
        host, port: where it listens; loopback alone by default.
        keys: who may use it; none means everybody who can reach it.
        allowed_hosts: names under which it may be reached. None: loopback names only where it listens on loopback
            alone, else any.
        open_routes: paths that need no key, such as `/health`.
        cors_origins: web pages of other origins that may use it; none by default.
        internal_without_keys: without keys, whether inner streams may be shown.
        topology: what chat requests are served with that ask for no streams.
        topologies: further topologies by name: files.
        database: where sessions are kept, as an SQLAlchemy URL; `memory` forgets them when the server ends.
        keep_closed_s: how long the record of a session that has ended is kept.
        max_sessions, max_waiting, admission_timeout_s: see `EngineLimits`.
        evict_idle_after_s: seconds after which a session without work gives its cache back.
        close_idle_after_s: seconds after which a session that nobody is connected to is closed.
        max_body_bytes, max_frame_bytes: of a request, of a WebSocket message.
        max_unread: messages of a session that may wait for a connected client that does not read.
        fall_back: whether what rows cost is measured at the start, so that a request may fall back to one stream.
        max_tokens: tokens of an answer, where the request does not say.
        max_rows: rows of a live session.
        max_drafted: tokens that the outputs of a live session may say ahead of a commit, in each draft; 0 reads ahead
            alone.
        draft_after: seconds without a newer snapshot before they say anything, where the session does not say; reading
            goes on at once.
        draft_share: of the time in which nobody waits for an answer, how much drafts may compute, above 0.
        tenant_guesses: whether a request may ask for guesses from what others with its key were answered; then they may
            learn from the speed of an answer what that was.
        check_share: of turns that took something over behind an edit, those that are computed again while nobody
            waits, so that the metrics tell how good the estimates of the drift are.
        drain_s: how long answers that are under way may take when the server is told to stop.
        playground: whether the web page is served.
        log_level: of the log.
        log_text: whether the log holds what users and models say.
    """

    model_config = SettingsConfigDict(
        env_prefix="BRAID_SERVE_", env_nested_delimiter="__", extra="forbid", frozen=True
    )
    file: ClassVar[Mapping[str, Any]] = {}

    model: str = "smollm2-135m"
    drafter: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: _Count | None = None
    kv_tokens: _Count | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    keys: tuple[ApiKey, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    open_routes: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    internal_without_keys: bool = True
    topology: str = "plain"
    topologies: dict[str, Path] = Field(default_factory=dict[str, Path])
    database: str = Field(default_factory=lambda: f"sqlite:///{_state_home() / 'sessions.db'}")
    keep_closed_s: Annotated[float, Field(ge=0)] = 7 * 24 * 3600.0
    max_sessions: _Count = EngineLimits.max_sessions
    max_waiting: Annotated[int, Field(ge=0)] = EngineLimits.max_waiting
    admission_timeout_s: Annotated[float, Field(ge=0)] = 10.0
    evict_idle_after_s: Annotated[float, Field(gt=0)] | None = 60.0
    close_idle_after_s: Annotated[float, Field(gt=0)] = 3600.0
    max_body_bytes: _Count = 8 * 1024 * 1024
    max_frame_bytes: _Count = 1024 * 1024
    max_unread: _Count = 4096
    fall_back: bool = False
    max_tokens: _Count = 1024
    max_rows: _Count = 100_000
    max_drafted: Annotated[int, Field(ge=0)] = MOST_DRAFTED
    draft_after: Annotated[float, Field(ge=0, le=3600)] = DRAFT_AFTER
    tenant_guesses: bool = False
    draft_share: Annotated[float, Field(gt=0, le=1)] = SchedulerPolicy.draft_share
    check_share: Annotated[float, Field(ge=0, le=1)] = CHECK_SHARE
    drain_s: Annotated[float, Field(ge=0)] = 20.0
    playground: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_text: bool = False

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment; the file's values are joined by `load_settings`."""
        return init_settings, env_settings

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        for what in ("name", "key"):
            values = [getattr(key, what) for key in self.keys]
            if len(set(map(_bare, values))) < len(values):
                raise problem(f"two keys have the same {what}")
        return self

    def shown(self) -> str:
        """The settings as a file would give them, keys hidden."""
        data = self.model_dump(mode="json")
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _bare(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def load_settings(file: str | Path | None = None, **flags: Any) -> ServerSettings:
    """Join flags, the environment and a file.

    Args:
        file: YAML, by the names of `ServerSettings`.
        flags: Those that were given; None counts as not given.

    Raises:
        InputError: A name that there is not, or a value out of range; the file cannot be read.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    written = {} if file is None else _read(Path(file))
    unknown = written.keys() - ServerSettings.model_fields.keys()
    if unknown:
        name = min(unknown)
        raise InputError(f"{file}: there is no setting {name!r}; {hint(name, ServerSettings.model_fields)}")
    from_environment = _environment()
    for name in from_environment:
        if name not in ServerSettings.model_fields:
            raise InputError(
                f"BRAID_SERVE_{name.upper()}: there is no such setting; {hint(name, ServerSettings.model_fields)}"
            )
    rest = {name: value for name, value in written.items() if name not in from_environment}
    try:
        return ServerSettings(**{**rest, **given})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"the server's settings: {where + ': ' if where else ''}{first['msg']}") from None


def _environment() -> set[str]:
    prefix = "BRAID_SERVE_"
    names = (name.removeprefix(prefix) for name in os.environ if name.startswith(prefix))
    return {name.partition("__")[0].lower() for name in names}


def _read(path: Path) -> dict[str, Any]:
    try:
        data: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the settings {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"the settings {path} are no YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"the settings {path} must be names and values, such as `port: 8000`")
    return {str(name): value for name, value in data.items()}

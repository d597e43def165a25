"""What all routes share: the engine, the settings, who may do what, and the names of models and topologies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import HTTPConnection

from braid.engine.costs import costs_of
from braid.errors import ForbiddenError, ModelNotFoundError, UnknownPresetError
from braid.server.access import Caller, Gate
from braid.server.log import Log
from braid.server.settings import ServerSettings
from braid.streams.presets import preset_names
from braid.streams.presets import topology as preset
from braid.streams.strict import hint
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from braid.engine.backend import ModelCard
    from braid.engine.core import GuessesOf
    from braid.engine.fallback import Costs
    from braid.sessions.session import Engine

__all__ = ["Service", "caller_of", "service_of"]


class Service:
    """One server.

    Args:
        engine: What computes.
        model: What the engine's model is; for an engine over a backend of one's own, which has none itself.
        settings: How it is run.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, model: ModelCard | None = None) -> None:
        self.engine = engine
        self.settings = settings
        self.model: ModelCard = engine.model if model is None else model
        self.gate = Gate(settings)
        self.log = Log(tells_text=settings.log_text)
        self.began = int(time.time())
        self.topologies: dict[str, Topology] = {
            name: preset(str(path)) for name, path in settings.topologies.items()
        }
        self.default_topology = self.topology(settings.topology)
        self.costs = _costs(engine) if settings.fall_back else None
        """What rows cost here, measured while nobody is served yet; without it no request falls back to one stream."""
        self.is_ready = False
        """Whether requests are taken; not before the store is open, nor once the server is told to stop."""
        registry = CollectorRegistry()
        self.registry = registry
        self.requests = Counter(
            "braid_requests",
            "Requests by route and status.",
            ["route", "status", "caller"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "braid_request_seconds", "Seconds until the end of an answer.", ["route"], registry=registry
        )
        self.connections = Gauge("braid_connections", "Open WebSockets.", ["route"], registry=registry)
        self.send_seconds = Histogram(
            "braid_event_to_socket_seconds",
            "Seconds from an event of the engine to the byte on the socket.",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
            registry=registry,
        )

    def topology(self, named: str | Mapping[str, Any] | Topology) -> Topology:
        """A topology by its name here, by a preset's, or as it is spelled; never a file of the server's.

        Raises:
            UnknownPresetError, TopologyError
        """
        if isinstance(named, Topology):
            return named
        if isinstance(named, str):
            if named in self.topologies:
                return self.topologies[named]
            if named not in preset_names():  # nor is it looked for among the server's files
                names = [*self.topologies, *preset_names()]
                raise UnknownPresetError(f"there is no topology {named!r} here; {hint(named, names)}")
            return preset(named)
        return Topology.from_dict(dict(named))

    def guesses(self, wanted: GuessesOf) -> GuessesOf:
        """Whose answers are guesses for a request that asks for these.

        Raises:
            ForbiddenError: This server does not allow it.
        """
        if wanted == "tenant" and not self.settings.tenant_guesses:
            raise ForbiddenError(
                "this server does not share guesses between requests; leave guesses out, or start it with the setting "
                "tenant_guesses"
            )
        return wanted

    def require_model(self, name: str | None) -> None:
        """Refuse a model that is not served.

        Raises:
            ModelNotFoundError
        """
        if name is not None and name != self.model.name and name != self.settings.model:
            raise ModelNotFoundError(f"there is no model {name!r} here; this server has {self.model.name!r}")


def _costs(engine: Engine) -> Costs | None:
    """Measured on the engine's model; None where that is trained on streams, or not here."""
    model = getattr(engine, "model", None)
    return None if model is None or model.trained is not None else costs_of(model)


def service_of(connection: HTTPConnection) -> Service:
    """The server that a request has come to."""
    return connection.app.state.service


def caller_of(connection: HTTPConnection) -> Caller:
    """Who is calling, as the middleware has found out."""
    return connection.state.caller

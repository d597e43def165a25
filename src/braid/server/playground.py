"""The playground: a web page over live sessions, shipped in the package as plain files.

    /                            the page
    /playground/NAME             its style and scripts
    /playground/setup.json       what this server has: its model, its topologies
    POST /playground/topology    YAML in, the topology as JSON out; a mistake in it is told in words

Nothing is built, nothing comes from elsewhere, and no script stands inside the page, so that its policy is one word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from braid import __version__
from braid.errors import InputError, NotFoundError, TooLargeError, TopologyError
from braid.server.service import Service, caller_of, service_of
from braid.streams.presets import preset_names
from braid.streams.topology import Topology

__all__ = ["POLICY", "router"]

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Of every file: the browser loads only what is served here, and turns no text into markup."""

MAX_TOPOLOGY_BYTES = 64 * 1024
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
# A new version of the package must not meet an old script, and a tag that matches costs one small answer.
_CACHING = "no-cache"

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class _File:
    """One file of the page."""

    body: bytes
    media_type: str
    tag: str


@cache
def _files() -> Mapping[str, _File]:
    """All files by name; read once, so that a request can name no other."""
    found: dict[str, _File] = {}
    for entry in files("braid").joinpath("web").iterdir():
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is None or not entry.is_file():
            continue
        body = entry.read_bytes()
        found[entry.name] = _File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    assert "index.html" in found, "the package was built without its page"
    return found


def _serve(request: Request, name: str) -> Response:
    found = _files().get(name)
    if found is None:
        raise NotFoundError(f"the playground has no file {name!r}")
    headers = {"etag": found.tag, "cache-control": _CACHING, "content-security-policy": POLICY}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if found.tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """The page itself."""
    return _serve(request, "index.html")


@router.api_route("/playground", methods=["GET", "HEAD"])
@router.api_route("/playground/", methods=["GET", "HEAD"])
async def home(request: Request) -> Response:
    """Where people look for it first."""
    return RedirectResponse("../" if request.url.path.endswith("/") else "./")


@router.get("/playground/setup.json")
async def setup(request: Request) -> Response:
    """What the page offers: the topologies by name, and which one suits the model."""
    service, caller = service_of(request), caller_of(request)
    named = {name: service.topology(name) for name in [*service.topologies, *preset_names()]}
    told = {
        "version": __version__,
        "model": service.model.name,
        "topologies": {
            name: {"topology": _spelled(topology), "yaml": topology.to_yaml()}
            for name, topology in named.items()
        },
        "start_with": _suited(service),
        "sees_internal": caller.sees_internal,
    }
    return JSONResponse(told, headers={"cache-control": "no-store"})


@router.api_route("/playground/{name}", methods=["GET", "HEAD"])
async def file(request: Request, name: str) -> Response:
    """A style or a script; after `setup.json`, which this would take too."""
    return _serve(request, name)


def _suited(service: Service) -> str:
    """A stock model thinks aloud through views; a model with a silence class was trained on rows."""
    return "think-aloud" if service.model.silence_token_id is None else "solve"


def _spelled(topology: Topology) -> dict[str, Any]:
    return {**topology.to_dict(), "decoding": topology.decoding}


@router.post("/playground/topology")
async def read_topology(request: Request) -> Response:
    """Turn a topology as a person writes it into one as the wire has it.

    Raises:
        TopologyError: The text is none; the message says where and what would work.
        TooLargeError: It is longer than any topology.
        InputError: It is no text.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_TOPOLOGY_BYTES:
            raise TooLargeError(f"a topology may have {MAX_TOPOLOGY_BYTES} bytes here")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InputError("a topology is UTF-8 text: YAML or JSON") from None
    if not text.strip():
        raise TopologyError("there is no topology yet: write one in YAML or JSON, with the key `streams`")
    topology = await run_in_threadpool(Topology.from_yaml, text)
    return JSONResponse({"topology": _spelled(topology)}, headers={"cache-control": "no-store"})

"""How the page's files are served: one policy, tags, nothing outside the folder, no page where none is wanted."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

from braid.server.playground import MAX_TOPOLOGY_BYTES, POLICY
from braid.streams.presets import preset_names
from braid.streams.topology import Topology
from tests.server.serving import Serving, null_engine
from tests.server.serving import test_settings as settings_for

NAMES = sorted(entry.name for entry in files("braid").joinpath("web").iterdir() if entry.is_file())


@pytest.fixture(scope="module")
def server():
    with Serving(null_engine()) as serving:
        yield serving


@pytest.fixture
def client(server: Serving):
    with httpx.Client(base_url=server.base_url) as opened:
        yield opened


def test_every_file_has_the_policy_and_a_tag(client: httpx.Client) -> None:
    assert "default-src 'self'" in POLICY
    for name in NAMES:
        answer = client.get(f"/playground/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        again = client.get(f"/playground/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = client.get(f"/playground/{name}", headers={"if-none-match": '"other"'})
        assert other.status_code == 200
    assert client.get("/playground/main.js").headers["content-type"].startswith("text/javascript")


def test_the_page_is_at_the_root_and_found_from_its_folder(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert client.head("/").status_code == 200
    for path in ("/playground", "/playground/"):
        assert client.get(path, follow_redirects=True).text == page.text


def test_the_page_needs_nothing_from_elsewhere() -> None:
    web = files("braid").joinpath("web")
    for name in NAMES:
        text = web.joinpath(name).read_text()
        outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
        assert not outside, (name, outside)
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), name
    page = web.joinpath("index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


@pytest.mark.parametrize(
    "path",
    [
        "/playground/nothing.js",
        "/playground/..%2Fserver%2Fapp.py",
        "/playground/%2e%2e/app.py",
        "/playground/__init__.py",
    ],
)
def test_there_is_nothing_else(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "server.not_found"


def test_the_setup_names_topologies_and_the_one_that_suits(client: httpx.Client) -> None:
    told = client.get("/playground/setup.json").json()
    assert set(told["topologies"]) == set(preset_names())
    assert told["start_with"] == "think-aloud" and told["sees_internal"] is True
    for each in told["topologies"].values():
        assert Topology.from_dict(each["topology"]) == Topology.from_yaml(each["yaml"])


def test_a_topology_is_read(client: httpx.Client) -> None:
    for name in preset_names():
        yaml = client.get("/playground/setup.json").json()["topologies"][name]["yaml"]
        told = client.post("/playground/topology", content=yaml).json()["topology"]
        assert Topology.from_dict(told) == Topology.from_yaml(yaml)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "no topology yet"),
        (b"streams: [", 400, "not YAML"),
        (b"streams: {user: {directoin: input}}", 400, "directoin"),
        (b"\xff\xfe", 400, "UTF-8"),
        (b"- 1", 400, "mapping"),
        (b"x" * (MAX_TOPOLOGY_BYTES + 1), 413, str(MAX_TOPOLOGY_BYTES)),
        (b"a: &a [1]\nb: &b [*a,*a]\nstreams: *b", 400, "streams"),
    ],
)
def test_a_topology_that_is_none_is_told_in_words(
    client: httpx.Client, body: bytes, status: int, words: str
) -> None:
    answer = client.post("/playground/topology", content=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_no_page_where_none_is_wanted() -> None:
    with Serving(null_engine(), settings_for(playground=False)) as serving:
        for path in ("/", "/playground/main.js", "/playground/setup.json"):
            assert httpx.get(f"{serving.base_url}{path}").status_code == 404


def test_keys_guard_the_page_too() -> None:
    keys = [{"key": "secret-key-1", "name": "ann"}]
    with Serving(null_engine(), settings_for(keys=keys)) as serving:
        url = serving.base_url
        refused = httpx.get(f"{url}/")
        assert refused.status_code == 401
        assert "Basic" in refused.headers["www-authenticate"]  # so that the browser asks its person
        with httpx.Client(base_url=url) as client:
            assert client.get("/", auth=("anyone", "secret-key-1")).status_code == 200
            told = client.get("/playground/setup.json")  # by the cookie
            assert told.status_code == 200 and told.json()["sees_internal"] is False

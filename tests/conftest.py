"""What tests of the real default model share; it is loaded once a process."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before OpenBLAS is loaded: its threads would fight those of the other workers for the cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import catalog
from localspec.model import Model, load

# A shell starts background jobs with interrupts ignored; programs that are tested would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Cache and data of the tests' own, shared by their processes; nothing of the user's is touched."""
    base = tmp_path_factory.getbasetemp()
    # Under xdist every worker has a folder of its own inside the common one.
    folder = (base.parent if base.name.startswith("popen-") else base) / "localspec-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_CACHE", str(folder))
        patch.setenv("LOCALSPEC_DATA", str(folder.with_name("localspec-data")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield folder


@pytest.fixture(scope="session")
def smollm2(cache_folder: Path) -> Model:
    """The default model, decoding plainly; others made while it lives share its target."""
    return load(catalog.DEFAULT_MODEL, drafter="none")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random target that has a tokenizer and a chat template."""
    # Here, since it imports MLX, before which localspec must be imported: it loads OpenBLAS.
    from tiny_target import write_tiny_target

    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_target(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's data of this test alone in `data`."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    return tmp_path

"""How far downloads are: reported to those who watch, and to nobody else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from localspec import downloads, hub
from localspec.errors import LocalspecError
from localspec.tui.local import LocalEngine


def test_a_file_that_grows_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with (
        downloads.watched(lambda *far: seen.append(far)),
        downloads.growing(tmp_path, 1000),
        (tmp_path / "part").open("wb") as file,
    ):
        until = time.monotonic() + 30
        for size in (400, 1200):
            file.write(b"x" * (size - file.tell()))
            file.flush()
            while (min(size, 1000), 1000) not in seen:
                assert time.monotonic() < until
                time.sleep(0.01)
    seen.clear()
    downloads.report(1, 2)
    assert not seen


def snapshot_download(name: str, *, allow_patterns: list[str], tqdm_class: Any = None) -> str:
    """What the Hub's client does with its bars, then no network."""
    if tqdm_class:
        files = tqdm_class(total=2, desc="Fetching 2 files")
        packed = tqdm_class(total=0, unit="B", name="huggingface_hub.snapshot_download.transfer")
        bar = tqdm_class(total=0, unit="B", name="huggingface_hub.snapshot_download")
        bar.total += 1000
        for _ in range(4):
            packed.update(100)
            bar.update(250)
        files.update(1)
    raise huggingface_hub.errors.OfflineModeIsEnabled("no network")


def test_the_chat_is_told_percents_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub, "model_info", lambda name: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    said: list[str] = []
    with pytest.raises(LocalspecError, match="the Hub cannot be reached"):
        LocalEngine().load("org/name", "none", said.append)
    note = "downloading org/name from the Hub"
    shares = [f"{percent}% of 0 MB, {note}" for percent in (25, 50, 75, 100)]
    assert said == [note, *shares]
    assert capsys.readouterr().err == ""
    with pytest.raises(LocalspecError):
        hub.snapshot("org/name", hub.MODEL)
    assert said == [note, *shares]

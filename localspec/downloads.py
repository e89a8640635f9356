"""How far a download is, for whoever watches. Knows nothing of what is downloaded."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Watch = Callable[[int, int], None]
"""Told bytes that are there, of how many; from any thread."""

_LOOK_EVERY_S = 0.25
_watches: list[Watch] = []


@contextlib.contextmanager
def watched(by: Watch) -> Iterator[None]:
    """Tell of every download of this process."""
    _watches.append(by)
    try:
        yield
    finally:
        _watches.remove(by)


def is_watched() -> bool:
    return bool(_watches)


def report(done: int, total: int) -> None:
    """Tell those who watch."""
    for watch in list(_watches):
        watch(done, total)


@contextlib.contextmanager
def growing(folder: Path, total: int) -> Iterator[None]:
    """Report a file that another process downloads into a folder, in which it is the largest."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            report(min(_largest(folder), total), total)

    thread = threading.Thread(target=look, name="localspec-download", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def hub_bar() -> type[Any]:
    """What the Hub's client takes for a progress bar: draws nothing, and reports the bytes."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # There are bars for files and for what is packed, too.
            name = str(options.get("name") or "")
            self._counts = options.get("unit") == "B" and name.endswith("snapshot_download")
            super().__init__(*args, **{**options, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self._counts and self.total:
                report(int(self.n), int(self.total))
            return shown

    return Bar


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        # It may be gone again.
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return max(sizes)

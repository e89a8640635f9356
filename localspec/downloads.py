"""How far a download is, for whoever watches. Knows nothing of what is downloaded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

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


def size(num_bytes: int) -> str:
    """A number of bytes as people read it."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        # It may be gone again.
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return max(sizes)

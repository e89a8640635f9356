"""Ctrl-C between steps, never within one: what is saved is then the state after a whole step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back to the end; signals reach the main thread alone, so elsewhere do nothing.

    Raises:
        KeyboardInterrupt: at the end, if it came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt

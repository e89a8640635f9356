"""What a command says beside its answer: one line on stderr that is rewritten on a terminal."""

from __future__ import annotations

import time
from typing import TextIO

_QUIET_S = 0.5


class Status:
    """Progress and notes. Without a terminal only whole notes are printed, and no control characters.

    Args:
        stream: where to write, usually stderr.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._drawn = 0

    def say(self, note: str) -> None:
        """A line that stays."""
        self.clear()
        print(note, file=self._stream, flush=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Rewrite the line, once it has been quiet long enough for someone to wonder."""
        if not self._live or time.monotonic() - self._started < _QUIET_S:
            return
        self.rewrite(f"{what}: {done} of {total} tokens")

    def share(self, what: str, done: int, total: int) -> None:
        """The same for other things than tokens read."""
        if self._live:
            self.rewrite(f"{what}: {done} of {total}")

    @property
    def live(self) -> bool:
        """Whether lines can be rewritten."""
        return self._live

    def rewrite(self, line: str) -> None:
        """Replace the rewritten line; for a terminal."""
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)

    def clear(self) -> None:
        """Remove the rewritten line."""
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0

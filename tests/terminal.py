"""A real pseudo-terminal with a program in it, and what its screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import pyte


class Terminal:
    """Runs a command in a terminal of its own.

    Args:
        command: program and arguments.
        environment: added to this process's.
        columns, rows: of the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 110,
        rows: int = 32,
    ) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.written = bytearray()
        self.exit_code: int | None = None
        # Test runners set a size, which programs would believe before the terminal's own.
        own = {name: os.environ[name] for name in os.environ if name not in ("COLUMNS", "LINES")}
        whole = {**own, **environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.execvpe(command[0], list(command), whole)
        self.resize(columns, rows)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.exit_code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._file)

    @property
    def text(self) -> str:
        """The screen, a line a row."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press keys: characters, or control characters and escape sequences."""
        os.write(self._file, keys.encode())

    def wait_for(self, what: str | Callable[[str], object], seconds: float = 30.0) -> str:
        """Read until the screen has a text, or a condition on it holds; gives the screen."""
        holds = what if callable(what) else lambda screen: what in screen
        until = time.monotonic() + seconds
        while not holds(self.text):
            assert time.monotonic() < until, f"waited for {what!r} in vain:\n{self.text}"
            self._read(0.1)
        return self.text

    def wait_for_exit(self, seconds: float = 30.0) -> int:
        """Read until the program ends; gives its exit code."""
        until = time.monotonic() + seconds
        while self.exit_code is None:
            assert time.monotonic() < until, f"the program goes on:\n{self.text}"
            self._read(0.05)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    def _read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._file], [], [], seconds)
        if ready:
            try:
                data = os.read(self._file, 65536)
            except OSError:  # the program has closed its side
                return
            self.written += data
            self._stream.feed(data)

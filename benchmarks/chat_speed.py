"""Tokens a second in the chat against `localspec generate`, for the same reply, in turns.

Both are processes of their own; the chat runs in a pseudo-terminal that is read as fast as it writes.

python benchmarks/chat_speed.py [--model NAME] [--drafter NAME] [--turns N] [--tokens N] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import select
import sqlite3
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from statistics import median
from typing import Any

PROMPT = "Explain how a bicycle stays upright while it is moving, step by step."
_QUIT = b"\x11"
_ROWS, _COLUMNS = 34, 110
_TIMEOUT_S = 600


def generate(options: argparse.Namespace) -> tuple[str, float]:
    """The reply and the tokens a second of `localspec generate`."""
    command = [sys.executable, "-m", "localspec", "generate", PROMPT, "--json"]
    command += ["-m", options.model, "-d", options.drafter, "--max-tokens", str(options.tokens)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    answer = json.loads(done.stdout)
    return answer["text"], answer["stats"]["tokens_per_second"]


def chat(options: argparse.Namespace) -> tuple[str, float]:
    """The reply and the tokens a second of `localspec chat`."""
    with tempfile.TemporaryDirectory() as folder:
        sampling = f"[sampling]\nmax_tokens = {options.tokens}\n"
        Path(folder, "chat.toml").write_text(sampling, encoding="utf-8")
        os.environ.update(LOCALSPEC_CONFIG=folder, LOCALSPEC_DATA=folder, TERM="xterm-256color")
        command = [sys.executable, "-m", "localspec", "chat", PROMPT]
        command += ["-m", options.model, "-d", options.drafter]
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(command[0], command)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        reply, until = None, time.monotonic() + _TIMEOUT_S
        while reply is None and time.monotonic() < until:
            ready, _, _ = select.select([terminal], [], [], 0.5)
            if ready:
                os.read(terminal, 1 << 16)
            else:
                # Only between two frames: looking costs time too.
                reply = _finished(Path(folder, "sessions.db"))
        os.write(terminal, _QUIT)
        with contextlib.suppress(OSError):
            while os.read(terminal, 1 << 16):
                pass
        os.waitpid(pid, 0)
        os.close(terminal)
    if reply is None:
        raise TimeoutError(f"no reply in {_TIMEOUT_S} s")
    return reply


def _finished(path: Path) -> tuple[str, float] | None:
    """The saved reply and its speed, once it has ended."""
    with (
        contextlib.suppress(sqlite3.Error),
        sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db,
    ):
        query = "SELECT text, stats FROM messages WHERE reason IS NOT NULL"
        rows: list[Any] = db.execute(query).fetchall()
        if rows:
            return rows[0][0], json.loads(rows[0][1])["tokens_per_second"]
    return None


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    speeds: dict[str, list[float]] = {"generate": [], "chat": []}
    same = True
    for turn in range(options.turns):
        texts = []
        for way in (generate, chat) if turn % 2 else (chat, generate):
            text, speed = way(options)
            texts.append(text)
            speeds[way.__name__].append(speed)
        same = same and texts[0] == texts[1]
    ratios = [a / b for a, b in zip(speeds["chat"], speeds["generate"], strict=True)]
    report = {
        "same_text": same,
        "chat_tokens_per_second": round(median(speeds["chat"]), 2),
        "generate_tokens_per_second": round(median(speeds["generate"]), 2),
        "ratio_median": round(median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }
    print(json.dumps(report) if options.json else "\n".join(f"{k}: {v}" for k, v in report.items()))


if __name__ == "__main__":
    main()

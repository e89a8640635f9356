"""The user's own prompts, kept on this computer for `compare`, and only while they want it.

Off until `localspec history on`. Of a conversation only what the user wrote last is kept, never an
answer, nor anything else that the model read.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import UsageError
from localspec.folders import data_dir

log = logging.getLogger("localspec")

_MOST_ENTRIES = 1000
_MOST_BYTES = 8 * 2**20
SETTINGS = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user wrote.

    Attributes:
        raw: it is no message: the model reads it as it is, without a chat template.
    """

    text: str
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """What was asked of a model, with its kind of text and settings."""

    model: str
    kind: str
    asked: Asked
    settings: Mapping[str, float]


def asked(messages: Sequence[Mapping[str, Any]]) -> Asked | None:
    """What is asked in a conversation: its last message; None: that is not the user's own words."""
    last = messages[-1] if messages else {}
    text = last.get("content")
    return Asked(text) if last.get("role") == "user" and text and isinstance(text, str) else None


def path() -> Path:
    return data_dir() / "history.jsonl"


def is_on() -> bool:
    return _switch().exists()


def turn_on() -> None:
    _switch().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _switch().touch(mode=0o600)


def turn_off() -> None:
    """Nothing more is kept; what is there stays until it is cleared."""
    _switch().unlink(missing_ok=True)


def clear() -> bool:
    """Delete what was kept; False: nothing was."""
    was_there = path().exists()
    path().unlink(missing_ok=True)
    return was_there


def add(entry: Entry) -> None:
    """Keep a prompt if the user wants that; the oldest go when there are too many.

    Where it cannot be kept a warning is logged, and that is all: an answer does not hang on it.
    """
    if not is_on():
        return
    line = {
        "model": entry.model,
        "kind": entry.kind,
        "prompt": entry.asked.text,
        "raw": entry.asked.raw,
        "settings": {name: entry.settings[name] for name in SETTINGS if name in entry.settings},
    }
    try:
        _append(json.dumps(line) + "\n")
    except OSError as error:
        log.warning("a prompt was not kept in the history: %s", error)


def _append(line: str) -> None:
    with open(os.open(path(), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a") as file:
        file.write(line)
        size = file.tell()
    if size > _MOST_BYTES:
        lines = path().read_text(encoding="utf-8").splitlines(keepends=True)
        partial = path().with_suffix(".partial")
        partial.write_text("".join(lines[-_MOST_ENTRIES // 2 :]), encoding="utf-8")
        partial.chmod(0o600)
        partial.replace(path())


def entries(model: str) -> list[Entry]:
    """What was kept of a model, the newest last.

    Raises:
        UsageError: nothing was.
    """
    found = []
    try:
        lines = path().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines[-_MOST_ENTRIES:]:
        try:
            value = json.loads(line)
            said = Asked(value["prompt"], value["raw"])
            entry = Entry(value["model"], value["kind"], said, value["settings"])
        except (ValueError, KeyError, TypeError):
            # A line that was cut off when the computer stopped.
            continue
        if entry.model == model:
            found.append(entry)
    if not found:
        why = "" if is_on() else "; `localspec history on` begins to keep prompts"
        raise UsageError(f"the history has no prompts for '{model}'{why}")
    return found


def _switch() -> Path:
    return data_dir() / "history.on"

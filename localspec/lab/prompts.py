"""Prompts to measure with: thirty that come with localspec, or a user's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import UsageError

_BUNDLED = Path(__file__).parent / "prompts.jsonl"
DEFAULT_KIND = "prompts"


@dataclass(frozen=True, slots=True)
class LabPrompt:
    """A prompt's text and its kind: code, math, chat or editing, or what the user calls it.

    Attributes:
        raw: it goes without the chat template.
    """

    text: str
    kind: str
    raw: bool = False


def bundled() -> list[LabPrompt]:
    """The thirty, a kind after the other."""
    return read(_BUNDLED)


def read(path: Path) -> list[LabPrompt]:
    """A file of JSON objects, one a line, with `prompt` and, if they like, `kind`.

    Raises:
        UsageError: the file cannot be read so, with the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prompts in {path} cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            text, kind = entry["prompt"], entry.get("kind", DEFAULT_KIND)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f'{path}, line {number}: not an object like {{"prompt": "...", "kind": "code"}}'
            ) from error
        if not (isinstance(text, str) and text and isinstance(kind, str)):
            raise UsageError(f"{path}, line {number}: prompt and kind must be text")
        prompts.append(LabPrompt(text, kind))
    if not prompts:
        raise UsageError(f"there are no prompts in {path}")
    return prompts


def spread(prompts: list[LabPrompt], count: int) -> list[LabPrompt]:
    """So many of them, the kinds in turns."""
    by_kind: dict[str, list[LabPrompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    longest = max(len(each) for each in by_kind.values())
    turns = [each[turn] for turn in range(longest) for each in by_kind.values() if turn < len(each)]
    return turns[:count]

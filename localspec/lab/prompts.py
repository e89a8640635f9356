"""Prompts to measure with: thirty that come with localspec, or a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localspec.prompts import read_prompts

_BUNDLED = Path(__file__).parent / "prompts.jsonl"


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
    """A file of prompts; errors as `read_prompts`."""
    return [LabPrompt(prompt.text, prompt.kind) for prompt in read_prompts(path)]


def spread(prompts: list[LabPrompt], count: int) -> list[LabPrompt]:
    """So many of them, the kinds in turns."""
    by_kind: dict[str, list[LabPrompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    longest = max(len(each) for each in by_kind.values())
    turns = [each[turn] for turn in range(longest) for each in by_kind.values() if turn < len(each)]
    return turns[:count]

"""Files of prompts: to train on, and to measure with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import UsageError, reason

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's text and its kind, such as `code`."""

    text: str
    kind: str = OTHER


def read_prompts(path: Path) -> list[Prompt]:
    """Read a JSONL file of objects with `prompt` and, if it is known, `kind`.

    Raises:
        UsageError: the file cannot be read, or a line is no such object, with its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as text: {reason(error)}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            text, kind = value["prompt"], value.get("kind", OTHER)
        except (ValueError, TypeError, KeyError, AttributeError):
            text = kind = None
        if not isinstance(text, str) or not isinstance(kind, str) or not text.strip():
            raise UsageError(
                f"{path}, line {number}: expected a JSON object with a text 'prompt' and, if it has "
                "one, a text 'kind'"
            )
        prompts.append(Prompt(text, kind))
    if not prompts:
        raise UsageError(f"{path} holds no prompts")
    return prompts

"""Conversations as Markdown, and the code in it; pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt

from localspec.sessions import Message

_PARSER = MarkdownIt("gfm-like")


def code_blocks(text: str) -> list[str]:
    """The code blocks of a Markdown text, in order, without their fences."""
    return [
        token.content.removesuffix("\n")
        for token in _PARSER.parse(text)
        if token.type in ("fence", "code_block")
    ]


def export(title: str, messages: Sequence[Message], *, target: str, system: str) -> str:
    """A conversation as one Markdown document; thoughts are folded."""
    parts = [f"# {title}", f"*{target}*"]
    if system:
        parts += ["## System", system]
    for message in messages:
        parts.append("## You" if message.role == "user" else f"## {target}")
        if message.thinking:
            thoughts = f"<details><summary>Thoughts</summary>\n\n{message.thinking}\n\n</details>"
            parts.append(thoughts)
        parts.append(message.text)
        if message.reason in ("cancelled", "interrupted"):
            parts.append("*(stopped)*")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def export_path(title: str, folder: Path) -> Path:
    """A file name made from a title that is not taken yet."""
    stem = re.sub(r"[^\w-]+", "-", title.lower()).strip("-")[:50] or "conversation"
    path, number = folder / f"{stem}.md", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.md", number + 1
    return path

"""Markdown whose code is highlighted as what it says it is."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownFence


class Fence(MarkdownFence):
    """A code block. One that names no language is plain: guessing takes every lexer there is."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        return super().highlight(code, language.strip() or "text", ansi=ansi, dark=dark)


class ChatMarkdown(Markdown):
    """Markdown of a reply."""

    BLOCKS = {**Markdown.BLOCKS, "fence": Fence, "code_block": Fence}  # noqa: RUF012

"""Tokens coloured by origin."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from localspec.sessions import StoredToken
from localspec.tui.renderables.styles import MUTED

STYLES = {
    "draft": "$text-success on $success 22%",
    "correction": "$text-error on $error 26%",
    "bonus": "$text-accent on $accent 26%",
    "plain": "$foreground",
}
_ANSI_STYLES = {
    "draft": "ansi_green",
    "correction": "ansi_red reverse",
    "bonus": "ansi_yellow bold underline",
    "plain": "",
}
NAMES = {
    "draft": "accepted",
    "correction": "correction",
    "bonus": "bonus",
    "plain": "plain",
}


def paint(tokens: Iterable[StoredToken], *, ansi: bool = False) -> Content:
    """The text of tokens, each in its origin's style; what was thought is italic."""
    styles = _ANSI_STYLES if ansi else STYLES
    parts: list[str | tuple[str, str]] = []
    thought = False
    for text, origin, thinking in tokens:
        if thought and not thinking:
            parts.append("\n\n")
        thought = thinking
        parts.append((text, f"{styles[origin]} italic".strip() if thinking else styles[origin]))
    return Content.assemble(*parts)


def legend(tokens: Iterable[StoredToken], *, ansi: bool = False) -> Content:
    """The meaning of the styles, and each one's share of the tokens."""
    origins = [origin for _, origin, _ in tokens]
    styles = _ANSI_STYLES if ansi else STYLES
    parts: list[Content | str | tuple[str, str]] = []
    for origin, name in NAMES.items():
        if origin not in origins:
            continue
        share = origins.count(origin) / len(origins)
        parts += [(f" {name} ", styles[origin]), (f" {share:.0%}   ", MUTED)]
    return Content.assemble(*parts)

"""Long Markdown in parts, each of whole blocks; pure functions."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from rich.cells import cell_len

LONG = 800
"""Characters from which on a part is cut."""

_PARSER = MarkdownIt("gfm-like")
_LINE_END = re.compile(r"\r\n?|\n")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:\s*\S+.*$", re.MULTILINE)


def cut(text: str) -> int:
    """Where a growing text can be cut, so that what stands before is complete; 0: nowhere.

    That is where its last block begins: all before it stays as it is, whatever comes.
    """
    blocks = [
        token.map[0]
        for token in _PARSER.parse(text)
        if token.map and token.level == 0 and token.nesting >= 0
    ]
    if len(blocks) < 2 or not blocks[-1]:
        return 0
    # The parser's lines, not those of str.splitlines, which knows more ends.
    return [end.end() for end in _LINE_END.finditer(text)][blocks[-1] - 1]


def parts(text: str) -> list[str]:
    """A whole text in parts; joined they are the text."""
    found = []
    while len(text) > LONG:
        # Far enough to have a whole block within.
        length = LONG
        at = 0
        while at == 0 and length < len(text):
            at = cut(text[:length])
            length *= 2
        if at == 0:
            break
        found.append(text[:at])
        text = text[at:]
    return [*found, text]


def definitions(text: str) -> str:
    """The link definitions of a text: what references to them need, wherever they stand."""
    return "\n".join(_DEFINITION.findall(text))


def guessed_rows(text: str, width: int) -> int:
    """About how many rows a text takes that is not parsed yet, in so many columns; at least 1."""
    return max(1, sum(max(1, -(-cell_len(line) // width)) for line in text.splitlines()))

"""A reply's text with its tokens coloured by origin."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localspec.sessions import StoredToken
from localspec.tui.renderables.origins import legend, paint

_CHUNK = 300
"""Tokens of one part: parts that are full are not drawn again while text comes."""


class OriginText(Vertical):
    """Tokens as they come, in parts that end with a line; below them what the colours mean."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens: list[StoredToken] = []
        self._num_full = 0
        self._legend = Static("", classes="legend")

    def compose(self) -> ComposeResult:
        yield self._legend

    def show(self, tokens: Sequence[StoredToken]) -> None:
        """Show these tokens alone."""
        self._tokens, self._num_full = [], 0
        self.query(".part").remove()
        self._part: Static | None = None
        self.write(tokens)

    def write(self, tokens: Sequence[StoredToken]) -> None:
        """Add tokens."""
        for token in tokens:
            self._tokens.append(token)
            if len(self._tokens) - self._num_full >= _CHUNK and token[0].endswith("\n"):
                self._draw()
                self._num_full, self._part = len(self._tokens), None
        self._draw()
        self._legend.update(legend(self._tokens, ansi=self.app.native_ansi_color))

    def _draw(self) -> None:
        tokens = self._tokens[self._num_full :]
        if not tokens:
            return
        if self._part is None:
            self._part = Static("", classes="part", markup=False)
            self.mount(self._part, before=self._legend)
        painted = paint(tokens, ansi=self.app.native_ansi_color)
        self._part.update(painted.rstrip("\n"))

    _part: Static | None = None

"""One side of a race: who runs, how fast, and the text so far."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Digits, Label, Static

from localspec.engine.metrics import Stats
from localspec.sessions import StoredToken
from localspec.tui.renderables.bars import bar
from localspec.tui.widgets.origin_text import OriginText

_WIDE = 42
"""Cells in which all of the figures have room."""


class Lane(Vertical):
    """A stream with its speed.

    Args:
        title: who runs.
        limit: the most tokens there can be, for the bar.
    """

    def __init__(self, title: str, limit: int, *, id: str) -> None:
        super().__init__(id=id, classes="lane")
        self._title = title
        self._limit = limit
        self._speed = Digits("0.0")
        self._state = Static("", classes="state", markup=False)
        self._bar = Static("", classes="bar", markup=False)
        self._text = OriginText()

    def compose(self) -> ComposeResult:
        yield Static(self._title, classes="speaker", markup=False)
        with Horizontal(classes="speed-row"):
            yield self._speed
            yield Label("tok/s")
        yield self._state
        yield self._bar
        with VerticalScroll(can_focus=False) as scroll:
            yield self._text
        scroll.anchor()

    def clear(self, state: str) -> None:
        """Back to the start."""
        self._speed.update("0.0")
        self._text.show([])
        self._state.update(state)
        self._bar.update("")

    def say(self, state: str) -> None:
        self._state.update(state)

    def write(self, tokens: Sequence[StoredToken], stats: Stats) -> None:
        """Add tokens."""
        self._text.write(tokens)
        self._speed.update(f"{stats.tokens_per_second:.1f}")
        done = stats.generated_tokens
        seconds = stats.prefill_s + stats.decode_s
        name = "accepted length" if self._state.content_size.width >= _WIDE else "acc"
        self._state.update(f"{done} tokens  {seconds:.1f} s  {name} {stats.accepted_length:.2f}")
        self._bar.update(bar(done / self._limit, self._bar.content_size.width))

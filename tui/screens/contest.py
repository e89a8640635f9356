"""The contest: plain decoding and drafters on one prompt, one after another, as a table that fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.timer import Timer
from textual.widgets import Static

from localspec.tui.contest import NOTE, Contest, progress, verdict
from localspec.tui.engine import Engine, Loaded
from localspec.tui.renderables.contest import table
from localspec.tui.screens.dialog import Dialog
from localspec.tui.settings import Settings

_FRAME_S = 1 / 4
"""Nobody reads figures faster, and the engine needs Python too."""


class ContestScreen(Dialog[float]):
    """Gives the plain speed that was measured, in tokens a second; None if it was left before.

    Args:
        engine: what has the target; its drafter stays as it is.
        loaded: the models.
        names: of drafters, as `Contest` takes them.
        messages: the conversation, up to the prompt.
        settings: how.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: Loaded,
        names: Sequence[str],
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
    ) -> None:
        super().__init__()
        self._target = loaded.target
        self._contest = Contest(engine, names, messages, settings)
        self._table = Static("", id="table", markup=False)
        self._verdict = Static("", id="verdict", markup=False)
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame wide contest") as frame:
            frame.border_title = f"Drafters: {self._target}"
            frame.border_subtitle = "escape goes back"
            with VerticalScroll():
                yield self._table
            yield self._verdict
            yield Static(NOTE, id="note", markup=False)

    def on_mount(self) -> None:
        self.run_worker(self._contest.run, thread=True, exit_on_error=False)
        self._timer = self.set_interval(_FRAME_S, self._frame)
        self.query_one(VerticalScroll).focus()

    def on_unmount(self) -> None:
        self._contest.cancel()

    def action_close(self) -> None:
        lap = self._contest.entries[0].lap
        self.dismiss(lap.stats.tokens_per_second if lap.ended else None)

    def _frame(self) -> None:
        over, entries = self._contest.over, list(self._contest.entries)
        self._table.update(table(entries, self._table.content_size.width))
        self._verdict.update(verdict(entries) if over else progress(self._contest))
        if over and self._timer:
            self._timer.stop()

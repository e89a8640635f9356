"""The race: plain decoding against the drafter on one prompt.

Each runs alone, since two at once would slow each other down: first the drafter, then plain decoding,
beside which the drafter's run is shown again as it was timed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Static

from localspec.tui.engine import Engine, Loaded
from localspec.tui.race import Lap, conditions, verdict
from localspec.tui.screens.dialog import Dialog
from localspec.tui.settings import Settings
from localspec.tui.turn import Failed, Reading, Turn
from localspec.tui.widgets.lane import Lane

_FRAME_S = 1 / 20


class CompareScreen(Dialog[float]):
    """Gives the plain speed that the race measured, in tokens a second; None if it was left early.

    Args:
        engine: what replies.
        loaded: the models.
        messages: the conversation, up to the prompt.
        settings: how; both run with the same seed.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: Loaded,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
    ) -> None:
        super().__init__()
        self._loaded = loaded
        same = conditions(settings)
        assert same.max_tokens is not None
        limit = same.max_tokens
        start = partial(Turn, engine, messages, same)
        self._turns = {"drafted": start(), "plain": start(plain=True)}
        self._laps = {"drafted": Lap(), "plain": Lap()}
        self._runner = "drafted"
        self._shown = 0  # rounds of the drafter's lap that are shown again
        self._started = 0.0
        self._lanes = {
            "plain": Lane("plain", limit, id="plain"),
            "drafted": Lane(loaded.drafter, limit, id="drafted"),
        }
        self._timer: Timer | None = None
        self._verdict = Static("", id="verdict", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame race") as frame:
            frame.border_title = f"Race: {self._loaded.target}"
            frame.border_subtitle = "escape goes back"
            with Horizontal():
                yield from self._lanes.values()
            yield self._verdict

    def on_mount(self) -> None:
        self._lanes["plain"].clear("waits: each runs alone, so that the times are true")
        self._lanes["drafted"].clear("starting")
        self._start("drafted")
        self._timer = self.set_interval(_FRAME_S, self._frame)

    def on_unmount(self) -> None:
        for turn in self._turns.values():
            turn.cancel()

    def action_close(self) -> None:
        lap = self._laps["plain"]
        self.dismiss(lap.stats.tokens_per_second if lap.ended else None)

    def _start(self, name: str) -> None:
        self._runner = name
        self._started = time.monotonic()
        self.run_worker(self._turns[name].run, thread=True, exit_on_error=False)

    def _frame(self) -> None:
        name, lap = self._runner, self._laps[self._runner]
        before = len(lap.rounds)
        for update in self._turns[name].take():
            if isinstance(update, Failed):
                self._verdict.update(f"✗ {update.words}")
                self._stop()
            elif isinstance(update, Reading):
                self._lanes[name].say(f"reading the prompt: {update.done} of {update.total} tokens")
            else:
                lap.add(update)
        self._write(name, before, len(lap.rounds))
        if name == "drafted" and lap.ended:
            self._lanes["plain"].clear("starting")
            self._lanes["drafted"].clear("its run again, as it was timed")
            self._start("plain")
        elif name == "plain":
            self._show_again()

    def _show_again(self) -> None:
        drafted = self._laps["drafted"]
        until = drafted.until(time.monotonic() - self._started, self._shown)
        self._write("drafted", self._shown, until)
        self._shown = until
        if self._laps["plain"].ended and until == len(drafted.rounds):
            self._verdict.update(verdict(self._loaded.drafter, drafted, self._laps["plain"]))
            self._stop()

    def _write(self, name: str, start: int, end: int) -> None:
        """Draw rounds of a lap at once."""
        if end > start:
            self._lanes[name].write(*self._laps[name].between(start, end))

    def _stop(self) -> None:
        if self._timer:
            self._timer.stop()

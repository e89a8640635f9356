"""Replies on the chat screen: started, drawn some times a second, ended; and the plain speed."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from textual.timer import Timer

from localspec.engine.metrics import Stats
from localspec.sessions import Message, StoredToken
from localspec.tui.engine import Ended, Engine, Loaded, Round
from localspec.tui.figures import Figures
from localspec.tui.renderables.panel import View
from localspec.tui.settings import Settings
from localspec.tui.turn import Failed, Reading, Turn, stored
from localspec.tui.widgets.assistant_message import AssistantMessage
from localspec.tui.widgets.notice import Notice

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

_FRAME_S = 1 / 20
_SLOWEST_FRAME_S = 0.5
_SHARE = 0.05
"""Of a core that drawing may take: a slow machine draws fewer frames, as the engine needs Python too."""

_FIGURES_EVERY_S = 0.25
"""Nobody reads figures faster, and the engine needs Python too."""
_MEMORY_EVERY_S = 1.0
_MEASURE_EVERY_S = 300.0
_MEASURED_TOKENS = 32
_MEASURED_PROMPT = [{"role": "user", "content": "Explain how a bicycle stays upright."}]


class Streaming:
    """What is under way on a chat screen: at most one reply, or a measurement of the plain speed.

    Args:
        screen: whose transcript and figures it draws.
        engine: what replies.

    Attributes:
        view: what the panel shows.
    """

    def __init__(self, screen: ChatScreen, engine: Engine) -> None:
        self.view = View()
        self._screen = screen
        self._engine = engine
        self._turn: Turn | None = None
        self._message: Message | None = None
        self._widget: AssistantMessage | None = None
        self._probe: Turn | None = None
        self._probe_clock: list[float] = []  # seconds of decoding after each of its steps
        self._waiting = False
        self._stale = True  # a reply came since the plain speed was measured
        self._memory_read = 0.0
        self._drawn_at = 0.0
        self._drawn_cpu = 0.0  # seconds of this thread at the last frame
        self._figures_drawn_at = 0.0
        self._timer: Timer | None = None

    @property
    def replying(self) -> bool:
        """Whether a reply is under way, or waits for the model."""
        return self._turn is not None or self._waiting

    def prepare(self) -> None:
        """Start the clocks; once the screen is there."""
        self._timer = self._screen.set_interval(_FRAME_S, self._frame, pause=True)
        self._screen.set_interval(_MEASURE_EVERY_S, self._measure)

    def use(self, loaded: Loaded) -> None:
        """Other models are there: the figures begin anew."""
        other = self.view.loaded is None or self.view.loaded.target != loaded.target
        plain_speed = None if other else self.view.figures.plain_speed
        self.view.loaded = loaded
        self.view.figures = Figures(plain_speed)
        self._stale = True
        self._read_memory()
        if not self._waiting:
            self._measure()

    async def begin_waiting(self) -> None:
        """Loading has ended: reply to what was sent meanwhile."""
        if self._waiting:
            self._waiting = False
            if self._screen.loaded:
                await self.reply()

    async def reply(self, continued: AssistantMessage | None = None) -> None:
        """Reply to the branch on screen, or go on with its last reply."""
        screen = self._screen
        if screen.loaded is None:
            self._waiting = screen.models.under_way
            if not self._waiting:
                screen.warn("No model is loaded; /model loads one.")
            return
        self.stop_measuring()
        history = screen.conversation.history(screen.system)
        asked = False  # what is continued or regenerated was asked before
        if continued:
            self._message, self._widget = continued.message, continued
            screen.conversation.resume_reply(self._message)
        else:
            self._message = screen.conversation.begin_reply()
            version = screen.version(self._message)
            asked = version == (1, 1)
            view = await screen.transcript.add(
                self._message, speaker=screen.target, version=version
            )
            assert isinstance(view, AssistantMessage)
            self._widget = view
        await self._widget.begin()
        self.view.figures = Figures(self.view.figures.plain_speed)
        save = partial(screen.conversation.grow, self._message)
        self._turn = Turn(self._engine, history, screen.settings, save=save, remember=asked)
        self._run(self._turn)
        screen.refresh_bindings()
        screen.activity("reading the prompt")

    def stop(self) -> None:
        """End the reply within one round; what is there of it stays."""
        self._waiting = False
        if self._turn:
            self._turn.cancel()
            # While a long prompt is read, a round may take seconds.
            self._screen.activity("stopping")

    def leave(self) -> None:
        """End the reply at once: its conversation is being left. What still comes is saved with it."""
        self.stop()
        self.stop_measuring()
        if self._turn and self._message:
            stats = _as_stored(self.view.figures.stats)
            self._screen.conversation.finish(self._message, "cancelled", stats)
        self._turn = self._message = self._widget = None
        self.view.figures = Figures(self.view.figures.plain_speed)
        self._screen.activity("")

    def stop_measuring(self) -> None:
        """The engine is needed for something better."""
        if self._probe:
            self._probe.cancel()
            self._probe = None

    def measured(self, plain_speed: float | None) -> None:
        """The plain speed was measured, in tokens a second; None: it was not."""
        if plain_speed:
            self.view.figures.plain_speed = plain_speed
            self._stale = False
            self._screen.show_figures()

    def _measure(self) -> None:
        if self.replying or self._probe or self._screen.racing:
            return
        if self._stale and self._screen.loaded:
            settings = Settings(max_tokens=_MEASURED_TOKENS)
            self._probe = Turn(self._engine, _MEASURED_PROMPT, settings, plain=True)
            self._probe_clock = []
            self._run(self._probe)
            self._screen.activity("measuring the plain speed")

    def _run(self, turn: Turn) -> None:
        assert self._timer is not None
        self._screen.run_worker(turn.run, thread=True, exit_on_error=False, group="engine")
        self._timer.resume()

    async def _frame(self) -> None:
        if self._turn and self._affordable():
            await self._draw(self._turn)
        if self._probe:
            self._read_probe(self._probe)
        if not self._turn and not self._probe and self._timer:
            self._timer.pause()

    def _affordable(self) -> bool:
        """Whether what was spent since the last frame is made up for, or that is long ago."""
        now, cpu = time.monotonic(), time.thread_time()
        since = now - self._drawn_at
        if cpu - self._drawn_cpu > _SHARE * since and since < _SLOWEST_FRAME_S:
            return False
        self._drawn_at, self._drawn_cpu = now, cpu
        return True

    async def _draw(self, turn: Turn) -> None:
        """Draw everything that came since the last frame at once."""
        updates = turn.take()
        if not updates:
            return
        tokens: list[StoredToken] = []
        for update in updates:
            if isinstance(update, Round):
                self.view.figures.add(update)
                tokens += stored(update.tokens)
            elif isinstance(update, Ended):
                tokens += stored(update.rest)
            elif isinstance(update, Reading) and not turn.cancelled:
                self._screen.activity(f"reading the prompt, {update.done} of {update.total} tokens")
        if tokens and self._widget:
            if self.view.activity:
                self._screen.activity("")
            await self._widget.write(tokens)
            self._screen.transcript.rest()
        last = updates[-1]
        if isinstance(last, Ended | Failed):
            await self._end(last)
        now = time.monotonic()
        if now - self._memory_read > _MEMORY_EVERY_S:
            self._read_memory()
        if self._turn is None or now - self._figures_drawn_at > _FIGURES_EVERY_S:
            self._figures_drawn_at = now
            self._screen.show_figures()

    async def _end(self, last: Ended | Failed) -> None:
        screen, message, widget = self._screen, self._message, self._widget
        assert message is not None
        assert widget is not None
        self._turn = self._message = self._widget = None
        self._stale = True
        stats = last.stats if isinstance(last, Ended) else self.view.figures.stats
        self.view.figures.stats = stats
        reason = last.reason if isinstance(last, Ended) else "failed"
        whole = screen.conversation.finish(message, reason, _as_stored(stats))
        await widget.finish(whole)
        screen.refresh_bindings()
        screen.activity("")
        if isinstance(last, Failed):
            if whole.text or whole.thinking:
                widget.fail(last.words)
            else:
                await self._drop(whole, widget, last.words)
        elif reason == "length" and screen.loaded:
            used, limit = self.view.figures.context_used, screen.loaded.context_length
            if used >= limit:
                widget.fail(f"the context is full: {used} of {limit} tokens; /clear begins anew")
        if self.view.figures.plain_speed is None:
            self._measure()

    async def _drop(self, message: Message, widget: AssistantMessage, words: str) -> None:
        """Take a reply that came to nothing away, and say why in its place."""
        screen = self._screen
        screen.conversation.drop(message)
        head = screen.conversation.head
        if head and head.role == "assistant":
            # The version that was to be replaced is there again.
            await screen.show_branch()
        else:
            await widget.remove()
        await screen.transcript.put(Notice(words))

    def _read_probe(self, probe: Turn) -> None:
        for update in probe.take():
            if isinstance(update, Round):
                self._probe_clock.append(update.stats.decode_s)
            elif isinstance(update, Ended | Failed):
                self._probe = None
                self._screen.activity("")
                steps = [after - before for before, after in pairwise(self._probe_clock)]
                if steps and isinstance(update, Ended):
                    # Most steps are undisturbed, the first ones and some others are not.
                    self.measured(1 / median(steps))

    def _read_memory(self) -> None:
        self._memory_read = time.monotonic()
        self.view.memory = self._engine.memory()


def _as_stored(stats: Stats) -> dict[str, object]:
    """Figures as they are kept with a message; empty if nothing was generated."""
    return {**asdict(stats), **stats.as_dict()} if stats.rounds else {}

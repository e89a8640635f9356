"""Models of the chat screen: loaded on a thread, switched, and what there is to choose from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.message import Message as Event

from localspec.tui.engine import Choice, Engine, Loaded
from localspec.tui.turn import in_words

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


class Loading:
    """Loads one target with one drafter at a time; posts `Noted` and `Ended` to the screen.

    Args:
        screen: whose models they are.
        engine: what loads.
        target, drafter: names of what will be loaded first.

    Attributes:
        target, drafter: names of what is loaded, or being loaded.
        targets, drafters: what can be chosen.
        under_way: whether models are being loaded.
    """

    class Noted(Event):
        """Loading takes long, and why."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Ended(Event):
        """Loading has ended, well (`loaded`) or not; what went wrong is in `words`."""

        def __init__(
            self,
            loaded: Loaded | None,
            words: str,
            targets: list[Choice],
            drafters: list[Choice],
        ) -> None:
            super().__init__()
            self.loaded = loaded
            self.words = words
            self.targets = targets
            self.drafters = drafters

    def __init__(self, screen: ChatScreen, engine: Engine, target: str, drafter: str) -> None:
        self._screen = screen
        self._engine = engine
        self.target, self.drafter = target, drafter
        self.targets: list[Choice] = []
        self.drafters: list[Choice] = []
        self.under_way = False
        self._in_use: tuple[str, str] | None = None

    def start(self, target: str, drafter: str) -> None:
        """Load, unless something else is under way."""
        screen = self._screen
        if screen.streaming.replying:
            screen.warn("Stop the reply first: escape does.")
            return
        if self.under_way:
            screen.warn("Another model is being loaded; wait for it.")
            return
        self.under_way = True
        screen.streaming.stop_measuring()
        self.target, self.drafter = target, drafter
        screen.activity(f"loading {target}")
        load = partial(self._load, target, drafter)
        screen.run_worker(load, thread=True, group="load", exit_on_error=False)

    def take(self, target: str, drafter: str) -> None:
        """Load, unless just that is loaded, or being loaded."""
        here = (self.target, self.drafter) if self.under_way else self._in_use
        if here != (target, drafter):
            self.start(target, drafter)

    def end(self, ended: Ended) -> None:
        """Take in how loading has ended; after a failure what was there before is there again."""
        self.under_way = False
        self.targets, self.drafters = ended.targets, ended.drafters
        if ended.loaded:
            self._in_use = self.target, self.drafter
        elif self._in_use:
            self.target, self.drafter = self._in_use

    def _load(self, target: str, drafter: str) -> None:
        loaded, words = None, ""
        targets, drafters = self.targets, self.drafters
        try:
            loaded = self._engine.load(target, drafter, self._say)
        except Exception as error:
            words = in_words(error)
        try:
            targets, drafters = self._engine.targets(), self._engine.drafters(target)
        except Exception as error:
            words = words or in_words(error)
        self._screen.post_message(self.Ended(loaded, words, targets, drafters))

    def _say(self, note: str) -> None:
        self._screen.post_message(self.Noted(note))

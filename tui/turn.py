"""One reply on its way from the engine to the screen: read on a thread, saved, then queued."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ContextOverflow, LocalspecError
from localspec.sessions import StoredToken
from localspec.tui.engine import Ended, Engine, Reply, Round, Token
from localspec.tui.settings import Settings

_MEMORY_WORDS = ("out of memory", "insufficient memory", "unable to allocate", "failed to allocate")


@dataclass(frozen=True, slots=True)
class Reading:
    """Part of the prompt was read: `done` of `total` tokens."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The reply ended with an error, in words."""

    words: str


Update = Reading | Round | Ended | Failed


class Turn:
    """A reply under way. `run` belongs on a thread; everything else may be called from the screen.

    Args:
        engine: what replies.
        messages: as `Engine.reply` takes them.
        settings: how.
        save: told the tokens of every round before the screen is; on the same thread.
        plain, remember: as `Engine.reply` takes them.
    """

    def __init__(
        self,
        engine: Engine,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
        *,
        save: Callable[[list[StoredToken]], None] | None = None,
        plain: bool = False,
        remember: bool = False,
    ) -> None:
        self._engine = engine
        self._messages = messages
        self._settings = settings
        self._save = save
        self._plain, self._remember = plain, remember
        self._updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self._reply: Reply | None = None
        self._cancelled = threading.Event()

    def run(self) -> None:
        """Reply; the last update is `Ended` or `Failed`."""
        try:
            self._reply = self._engine.reply(
                self._messages,
                self._settings,
                plain=self._plain,
                remember=self._remember,
                on_reading=lambda done, total: self._updates.put(Reading(done, total)),
            )
            if self._cancelled.is_set():
                self._reply.cancel()
            for event in self._reply:
                tokens = event.tokens if isinstance(event, Round) else event.rest
                if self._save and tokens:
                    self._save(stored(tokens))
                self._updates.put(event)
        except Exception as error:
            if self._reply:
                self._reply.cancel()
            self._updates.put(Failed(in_words(error)))

    def cancel(self) -> None:
        """End within one round."""
        self._cancelled.set()
        if self._reply:
            self._reply.cancel()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def take(self) -> list[Update]:
        """What came since the last call."""
        taken = []
        while True:
            try:
                taken.append(self._updates.get_nowait())
            except queue.Empty:
                return taken


def stored(tokens: Sequence[Token]) -> list[StoredToken]:
    """Tokens as sessions keep them."""
    return [(token.text, token.origin, token.thinking) for token in tokens]


def in_words(error: BaseException) -> str:
    """One sentence on what went wrong."""
    if isinstance(error, ContextOverflow):
        # What follows is sent together with it, so another, shorter message does not help.
        return f"{error}: /edit takes the message back, /clear begins anew"
    if isinstance(error, LocalspecError):
        return str(error)
    said = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(word in said.lower() for word in _MEMORY_WORDS):
        return (
            "memory ran out; a smaller model, a shorter conversation or closing other programs helps"
            + (f" ({said})" if said else "")
        )
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" at {Path(frame.filename).name}:{frame.lineno}" if frame else ""
    return f"a fault of localspec: {type(error).__name__}{where}: {said}"

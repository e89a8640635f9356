"""What the chat needs of an engine, in plain values. `local.py` is the real one; tests script another.

Every method may take long and is called on a thread of the caller's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from localspec.engine.metrics import Stats
from localspec.tui.settings import Settings

Origin = Literal["draft", "correction", "bonus", "plain"]
"""Where a token came from: an accepted draft; the target's own token after a rejected draft, or after
drafts that were all accepted; a step without drafts."""

Say = Callable[[str], None]
OnReading = Callable[[int, int], None]

PLAIN = "none"
"""The drafter's name where there is none: plain decoding."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token's text (complete characters only, so it may be empty) and its origin."""

    text: str
    origin: Origin
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """What one round added.

    Attributes:
        tokens: its tokens, without one that ends the reply.
        width: drafts that were asked for; 0: a plain step.
        num_proposed: drafts that there were, and that were verified.
        num_accepted: drafts that were committed.
        num_committed: tokens that were committed, one that ends the reply among them.
        stats: figures of the reply so far.
    """

    tokens: tuple[Token, ...]
    width: int
    num_proposed: int
    num_accepted: int
    num_committed: int
    stats: Stats


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event. `reason` is `stop`, `length` or `cancelled`; `rest` is text that was held back."""

    reason: str
    stats: Stats
    rest: tuple[Token, ...] = ()


Event = Round | Ended


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target with a drafter, ready.

    Attributes:
        target: the target's name, as given.
        drafter: the drafter's name; for `auto`, of the one it found.
        context_length: tokens that prompt and reply may have together.
        can_switch_thinking: whether the chat template has a switch for thinking.
    """

    target: str
    drafter: str
    context_length: int
    can_switch_thinking: bool = False

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted."""
        return self.drafter != PLAIN


@dataclass(frozen=True, slots=True)
class Choice:
    """A model or drafter that can be chosen: its name, and a few words on it."""

    name: str
    note: str = ""


class Reply(Protocol):
    """A reply under way, for one reader."""

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, up to `Ended`.

        Raises:
            Exception: what went wrong.
        """
        ...

    def cancel(self) -> None:
        """End within one round; `Ended` comes then. Callable from any thread."""
        ...


class Engine(Protocol):
    """Loads one target with one drafter at a time and replies."""

    def load(self, target: str, drafter: str, say: Say) -> Loaded:
        """Load, or load another; after a failure what was there before is there again.

        Args:
            say: told what takes long.

        Raises:
            LocalspecError: it cannot be loaded, with the reason.
        """
        ...

    def reply(
        self,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
        *,
        plain: bool = False,
        remember: bool = False,
        on_reading: OnReading | None = None,
    ) -> Reply:
        """Start a reply.

        Args:
            messages: `role`, `content` and, for the assistant, perhaps `thinking`. If the last one is
                the assistant's, it is continued.
            plain: without the drafter.
            remember: the user asked this just now; it may be kept in their history of prompts.
            on_reading: told how many of the prompt's tokens were read, of how many.

        Raises:
            LocalspecError: a value out of range, or messages that the template refuses.
        """
        ...

    def targets(self) -> list[Choice]:
        """Models that are installed."""
        ...

    def drafters(self, target: str) -> list[Choice]:
        """Drafters that a target can have."""
        ...

    def fitting(self) -> list[str]:
        """Names of the drafters of the loaded target that are here."""
        ...

    def beside(self, drafter: str, say: Say) -> Engine:
        """The loaded target with another drafter, as an engine of its own; this one stays as it is.

        Raises:
            LocalspecError: it cannot be loaded, with the reason.
        """
        ...

    def memory(self) -> int:
        """Bytes that the engine's arrays take."""
        ...

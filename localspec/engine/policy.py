"""What decides how many drafts a round drafts and verifies: the interface, and the fixed width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from localspec.engine.drawing import Drawing, Way


class Outcome(NamedTuple):
    """A finished round.

    Attributes:
        num_drafted: drafts that were computed; 0: a plain step.
        confidences: of the drafts that were verified, in order.
        num_accepted: drafts that stood.
        draft_s: seconds of drafting; None: not told from the rest.
        rest_s: seconds of all else; None: not told from those of the plain step before or after it,
            or of another generation.
        ahead: a plain step that was under way before the round began, as is the next one at its end.
    """

    num_drafted: int
    confidences: Sequence[float | None]
    num_accepted: int
    draft_s: float | None
    rest_s: float | None
    ahead: bool = False


class WidthPolicy(Protocol):
    """Decides for one generation."""

    @property
    def reads_confidence(self) -> bool:
        """Whether `cut` wants to know the drafts' confidences, which costs a synchronisation."""
        ...

    @property
    def plain_next(self) -> bool:
        """Whether the round after the one just chosen is a plain step, whatever this one brings."""
        ...

    @property
    def parked(self) -> bool:
        """Whether the round just chosen is a plain step because drafting does not pay."""
        ...

    @property
    def playing(self) -> str | None:
        """Of several drafters, the one that has the round just chosen; None: there is but one."""
        ...

    @property
    def way(self) -> Way:
        """How the drafts of the round just chosen are made."""
        ...

    @property
    def drawing(self) -> Drawing:
        """What decides that, for the drafter of the round just chosen."""
        ...

    def choose(self, limit: int, depth: int, *, greedy: bool) -> int:
        """Drafts to ask for in the next round, 0..limit; 0 is a plain step.

        Args:
            depth: of the context.
            greedy: the temperature is 0.
        """
        ...

    def cut(self, confidences: Sequence[float | None], *, certain: bool) -> int:
        """How many of the drafts to verify.

        Args:
            certain: the drafts were not drawn, so that looking at all of them biases nothing.
        """
        ...

    def wants(self, confidences: Sequence[float | None]) -> bool:
        """Of a chain: whether to draw the draft with the last of these confidences."""
        ...

    def wants_more(self, confidences: Sequence[float | None]) -> bool:
        """Of a chain: whether to compute another draft after those with these confidences."""
        ...

    def foresee(self, confidences: Sequence[float]) -> None:
        """Before `plain_next` is read in a plain step, where a drafter says what it would propose next.

        Args:
            confidences: of those drafts; empty: it would propose nothing.
        """
        ...

    def learn(self, outcome: Outcome) -> None:
        """Take in the round."""
        ...


class FixedWidth:
    """Always the same width.

    Args:
        drawing: how drafts at a temperature are best made.
        playing: of several drafters, the one that has all rounds.
    """

    reads_confidence = False
    plain_next = False
    parked = False

    def __init__(self, width: int, drawing: Drawing, playing: str | None = None) -> None:
        self._width = width
        self.drawing = drawing
        self.playing = playing
        self.way: Way = "greedy"

    def choose(self, limit: int, depth: int, *, greedy: bool) -> int:
        self.way = "greedy" if greedy else self.drawing.choose()
        return min(self._width, limit)

    def cut(self, confidences: Sequence[float | None], *, certain: bool) -> int:
        return len(confidences)

    def wants(self, confidences: Sequence[float | None]) -> bool:
        return True

    def wants_more(self, confidences: Sequence[float | None]) -> bool:
        return True

    def foresee(self, confidences: Sequence[float]) -> None:
        pass

    def learn(self, outcome: Outcome) -> None:
        pass

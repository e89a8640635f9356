"""Whether drafting pays at all: where it does not, plain steps, with cheap probes now and then.

Counts what rounds gained over plain decoding, in plain steps. A sum that falls too far parks; a probe that
gains goes on drafting, one that loses waits again, the longer the more it lost.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_LOSS = 1.5
"""Plain steps that may be lost before drafting is parked."""
_MOST_CREDIT = 1.5
"""What earlier gains may make up for, so that a change for the worse is noticed soon."""
_PROBE_SHARE = 0.01
"""Of the time, for probes."""
_SHORTEST_WAIT, _LONGEST_WAIT = 8, 96


@dataclass(slots=True)
class Parking:
    """Of one drafter on one stream of text.

    Attributes:
        parked: plain steps are being made, and probes between them.
        gain: plain steps gained lately, up to a bound; negative: lost.
    """

    parked: bool = False
    gain: float = 0.0
    _left: int = 0

    @property
    def steps_left(self) -> int:
        """Plain steps still to make before the next probe."""
        return self._left if self.parked else 0

    def again(self) -> Parking:
        """For a new stream with the same drafter: what was learnt holds, but it is probed soon."""
        return Parking(self.parked, min(self.gain, 0.0), min(self._left, _SHORTEST_WAIT))

    def step(self) -> None:
        """A plain step of the wait was made."""
        self._left -= 1

    def learn(self, gain: float) -> None:
        """Take in a drafting round: the plain steps that its tokens would have taken, less its own
        time in plain steps."""
        self.gain = min(self.gain + gain, _MOST_CREDIT)
        if self.gain <= -_MOST_LOSS:
            self.park(-gain)
        elif gain >= 0:
            self.parked = False

    def park(self, loss: float, steps: int | None = None) -> None:
        """Make plain steps until a probe that loses as much again is a small share of the time."""
        wait = min(max(loss / _PROBE_SHARE, _SHORTEST_WAIT), _LONGEST_WAIT)
        self.parked, self._left = True, int(wait) if steps is None else steps
        # One more loss parks again.
        self.gain = max(self.gain, -_MOST_LOSS)

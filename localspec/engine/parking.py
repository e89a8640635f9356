"""Whether drafting pays at all: where it does not, plain steps, with cheap probes now and then.

Counts what rounds gained over plain decoding, in plain steps. A sum that falls too far parks; a probe
that gains goes on drafting, one that loses waits again, the longer the more a probe costs.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_LOSS = 2.5
"""Plain steps that may be lost before drafting is parked."""
_FRESH = -1.5
"""What a probe that gained starts from: a lucky one shall not cost much."""
_MOST_CREDIT = 6.0
"""What earlier gains may make up for, so that a change for the worse is noticed soon."""
_PROBE_SHARE = 0.01
"""Of the time, for probes."""
_FIRST_PROBE_SHARE = 0.02
"""The same of a new stream's first probe: other text may suit the drafter better."""
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
    _probe_loss: float = 0.0

    @property
    def steps_left(self) -> int:
        """Plain steps still to make before the next probe."""
        return self._left if self.parked else 0

    def again(self) -> Parking:
        """For a new stream with the same drafter: gains are not taken over, long waits neither."""
        wait = min(self._left, int(self._probe_loss / _FIRST_PROBE_SHARE))
        return Parking(self.parked, min(self.gain, 0.0), wait, self._probe_loss)

    def wake(self) -> None:
        """Probe at once."""
        self._left = 0

    def step(self) -> None:
        """A plain step of the wait was made."""
        self._left -= 1

    def learn(self, gain: float, probe_loss: float) -> None:
        """Take in a drafting round.

        Args:
            gain: the plain steps that its tokens would have taken, less its own time in plain steps.
            probe_loss: plain steps that the cheapest probe loses where no draft stands.
        """
        if self.parked and gain > 0:
            self.parked, self.gain = False, max(self.gain, _FRESH)
        else:
            self.gain = min(self.gain + gain, _MOST_CREDIT)
        if self.gain <= -_MOST_LOSS:
            self.park(probe_loss)

    def park(self, probe_loss: float, steps: int | None = None) -> None:
        """Make plain steps until a probe; so many that probes are a small share of the time."""
        wait = min(max(probe_loss / _PROBE_SHARE, _SHORTEST_WAIT), _LONGEST_WAIT)
        self.parked, self._left = True, int(wait) if steps is None else steps
        self._probe_loss = probe_loss
        # One more loss parks again.
        self.gain = max(self.gain, -_MOST_LOSS)


def wary() -> Parking:
    """Of a drafter that has disappointed elsewhere: a few losses park."""
    return Parking(gain=_FRESH)

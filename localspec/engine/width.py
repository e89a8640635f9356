"""How many drafts a round verifies.

A decision looks only at past rounds, never at the drafts it decides about, so it cannot bias sampling.
"""

from __future__ import annotations

from typing import Protocol

_MEMORY = 0.9
_PROBE_EVERY = 24


class WidthPolicy(Protocol):
    def choose(self, limit: int) -> int:
        """Drafts to ask for in the next round, 0..limit; 0 is a plain step."""
        ...

    def learn(self, num_proposed: int, num_accepted: int, seconds: float) -> None:
        """Take in a finished round: drafts verified, drafts accepted, how long it took."""
        ...


class FixedWidth:
    """Always the same width."""

    def __init__(self, width: int) -> None:
        self._width = width

    def choose(self, limit: int) -> int:
        return min(self._width, limit)

    def learn(self, num_proposed: int, num_accepted: int, seconds: float) -> None:
        pass


class LearntWidth:
    """The width with the most expected tokens per second: (1 + Σ∏c) / C.

    c_k is the running acceptance at position k given the positions before it, C(w) the running time of
    rounds of w drafts, between measured widths a straight line. Positions and widths not seen yet are
    taken to be good and cheap, so they get tried; now and then the widest round is tried again.
    """

    def __init__(self) -> None:
        self._acceptance: list[float] = []
        self._seconds: dict[int, float] = {}
        self._rounds = 0

    def choose(self, limit: int) -> int:
        self._rounds += 1
        if limit == 0 or self._rounds % _PROBE_EVERY == 0:
            return limit
        if 0 not in self._seconds and self._rounds > 2:
            return 0
        best_width, best_rate = 0, 0.0
        expected, survival = 1.0, 1.0
        for width in range(limit + 1):
            if width:
                survival *= self._acceptance[width - 1] if width <= len(self._acceptance) else 0.8
                expected += survival
            rate = expected / self._cost(width)
            if rate > best_rate:
                best_width, best_rate = width, rate
        return best_width

    def learn(self, num_proposed: int, num_accepted: int, seconds: float) -> None:
        for position in range(min(num_accepted + 1, num_proposed)):
            hit = float(position < num_accepted)
            if position == len(self._acceptance):
                self._acceptance.append(0.5 + hit / 2)
            else:
                old = self._acceptance[position]
                self._acceptance[position] = _MEMORY * old + (1 - _MEMORY) * hit
        old_seconds = self._seconds.get(num_proposed)
        if old_seconds is None:
            self._seconds[num_proposed] = seconds
        else:
            # One slow round (another program, a page fault) must not park a good drafter.
            seconds = min(seconds, 3 * old_seconds)
            self._seconds[num_proposed] = _MEMORY * old_seconds + (1 - _MEMORY) * seconds

    def _cost(self, width: int) -> float:
        known = sorted(self._seconds)
        if not known:
            return 1.0
        if width in self._seconds:
            return self._seconds[width]
        below = [w for w in known if w < width]
        above = [w for w in known if w > width]
        if not below:
            return self._seconds[above[0]]
        if not above:
            return self._seconds[below[-1]]
        low, high = below[-1], above[0]
        share = (width - low) / (high - low)
        return self._seconds[low] * (1 - share) + self._seconds[high] * share

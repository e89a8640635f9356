"""From a drafter's confidence to the chance that a draft stands, learnt while generating.

Each position has a logistic law of its own, chance = σ(bias + slope·logit(confidence)), kept by a Kalman
filter that forgets, so that a change of topic is followed within tens of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_FORGET = 0.98
_BIAS_VARIANCE, _SLOPE_VARIANCE = 1.0, 0.1
_MOST_LOGIT = 5.0
_RELAX = 0.02
"""Of the way to the position before it, each round that does not reach a position; at first more."""
_MEMORY = 0.05
_FEW = 3
"""Rounds that a law counts as, when it has turned out to be of other text."""


@dataclass(slots=True)
class _Position:
    """The law of one position, and its plain mean.

    `bias`, `slope` are the filter's estimate; `bb`, `bs`, `ss` its covariance.
    """

    bias: float
    slope: float
    mean: float
    bb: float = _BIAS_VARIANCE
    bs: float = 0.0
    ss: float = _SLOPE_VARIANCE
    count: int = 0

    def chance(self, logit: float) -> float:
        return 1 / (1 + math.exp(-(self.bias + self.slope * logit)))

    def learn(self, logit: float, stood: bool) -> None:
        self.bb = min(self.bb / _FORGET, _BIAS_VARIANCE)
        self.ss = min(self.ss / _FORGET, _SLOPE_VARIANCE)
        chance = self.chance(logit)
        spread = max(chance * (1 - chance), 1e-3)
        # The filter's gain for an observation whose slope is `spread`.
        to_bias = spread * (self.bb + self.bs * logit)
        to_slope = spread * (self.bs + self.ss * logit)
        total = spread * (to_bias + to_slope * logit) + spread
        error = (float(stood) - chance) / total
        self.bias += to_bias * error
        self.slope = min(max(self.slope + to_slope * error, 0.1), 3.0)
        self.bb -= to_bias * to_bias / total
        self.bs -= to_bias * to_slope / total
        self.ss -= to_slope * to_slope / total
        self.count += 1
        self.mean += max(_MEMORY, 1 / (self.count + 2)) * (float(stood) - self.mean)

    def loosen(self) -> None:
        self.count = min(self.count, _FEW)
        self.bb, self.bs, self.ss = _BIAS_VARIANCE, 0.0, _SLOPE_VARIANCE

    def relax(self, to: _Position) -> None:
        share = max(_RELAX, 1 / (self.count + 2))
        self.bias += share * (to.bias - self.bias)
        self.slope += share * (to.slope - self.slope)
        self.mean += share * (to.mean - self.mean)


@dataclass(slots=True)
class Calibration:
    """Laws by position.

    Attributes:
        acceptance: chance that a draft stands before anything was seen; from a drafter's card.
    """

    acceptance: float = 0.7
    _positions: list[_Position] = field(default_factory=list)

    @property
    def has_seen(self) -> bool:
        """Whether it has learnt anything."""
        return bool(self._positions) and self._positions[0].count > 0

    def chance(self, position: int, confidence: float | None) -> float:
        """That the draft at a position (from 0) stands, given that those before it stood."""
        return self._at(position).chance(self._logit(confidence))

    def elsewhere(self, acceptance: float) -> Calibration:
        """For another kind of text: confidences mean the same, but drafts stand more or less often."""
        laws = [_Position(each.bias, each.slope, acceptance) for each in self._positions]
        return Calibration(acceptance, laws)

    def loosen(self) -> None:
        """What comes now says more than all that was seen."""
        for law in self._positions:
            law.loosen()

    def mean(self, position: int) -> float:
        """The same, whatever the confidence."""
        return self._at(position).mean

    def learn(self, confidences: Sequence[float | None], num_accepted: int) -> None:
        """Take in a round: of each verified draft its confidence, and how many stood."""
        num_seen = min(num_accepted + 1, len(confidences))
        for position in range(num_seen):
            logit = self._logit(confidences[position])
            self._at(position).learn(logit, position < num_accepted)
        # What a narrow round does not show is taken to be like what it shows, in time.
        for position in range(max(1, len(confidences)), len(self._positions)):
            self._positions[position].relax(self._positions[position - 1])

    def _at(self, position: int) -> _Position:
        while position >= len(self._positions):
            last = self._positions[-1] if self._positions else None
            self._positions.append(
                _Position(last.bias, last.slope, last.mean)
                if last
                else _Position(0.0, 1.0, self.acceptance)
            )
        return self._positions[position]

    def _logit(self, confidence: float | None) -> float:
        """A drafter without opinions is as confident as it is said to be."""
        confidence = self.acceptance if confidence is None else confidence
        confidence = min(max(confidence, 1e-6), 1 - 1e-6)
        return min(max(math.log(confidence / (1 - confidence)), -_MOST_LOGIT), _MOST_LOGIT)

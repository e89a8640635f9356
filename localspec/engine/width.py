"""How many drafts a round drafts and verifies.

A decision about a draft that was drawn looks only at past rounds and at the drafts before it, never at
the draft itself or a later one, else sampling would be biased. Certain drafts may be searched freely.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from localspec.engine.calibration import Calibration
from localspec.engine.costs import Costs
from localspec.engine.drawing import Drawing, Way
from localspec.engine.parking import Parking, wary
from localspec.engine.policy import Outcome

Floats = npt.NDArray[np.float64]

_ROUNDS = 32
"""So many past rounds say how sure the drafter is of the text of now."""
_ACCEPTANCE = 0.7
"""Chance that a draft stands, before anything is known."""
_SHORT = 0.6
_CURVE_ROUNDS = 8
_WARM_UP = 4
_TRIFLE = 0.01
_DINKELBACH = 3
_PLAN_EVERY = 4
_EXPLORE_EVERY = 32
"""Rounds from one that is a draft wider than planned, or plain, to the next: to know what those cost."""


@dataclass(slots=True)
class KindExperience:
    """What rounds of one drafter on one kind of text have taught.

    Attributes:
        acceptance: chance that a draft stands, before anything was seen.
        calibrations: by how drafts are made, since that moves chances.
        rate: tokens that are to be had in the time of a plain step.
        recent: chances of the drafts of the last rounds.
        parking: as the last generation left it.
    """

    acceptance: float
    calibrations: dict[Way, Calibration] = field(default_factory=dict)
    rate: float = 1.0
    recent: deque[list[float]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    parking: Parking | None = None

    def calibration(self, way: Way) -> Calibration:
        return self.calibrations.setdefault(way, Calibration(self.acceptance))


@dataclass(slots=True)
class Experience:
    """What rounds of one drafter on one target have taught; shared by its generations.

    Attributes:
        costs: of rounds.
        claims: chance that a draft stands by kind of text, and overall (""), by the drafter's card;
            empty: it has none.
        drawing: how drafts at a temperature are best made.
        kinds: what differs between kinds of text.
    """

    costs: Costs = field(default_factory=Costs)
    claims: Mapping[str, float] = field(default_factory=dict)
    drawing: Drawing = field(default_factory=Drawing)
    kinds: dict[str, KindExperience] = field(default_factory=dict)

    def of(self, kind: str) -> KindExperience:
        """Of one kind of text."""
        if kind not in self.kinds:
            self.kinds[kind] = self._doubtful(kind) or KindExperience(self._claimed(kind))
        return self.kinds[kind]

    def _claimed(self, kind: str) -> float:
        return self.claims.get(kind, self.claims.get("", _ACCEPTANCE))

    def _doubtful(self, kind: str) -> KindExperience | None:
        """Kinds differ, but a drafter that fell far short on the others is not believed on the next."""
        pairs = [
            (law.mean(0), self._claimed(name))
            for name, seen in self.kinds.items()
            for law in seen.calibrations.values()
            if law.has_seen
        ]
        came, claimed = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (1, 1)
        if came > _SHORT * claimed:
            return None
        acceptance = self._claimed(kind) * came / claimed
        last = next(reversed(self.kinds.values()))
        laws = {way: law.elsewhere(acceptance) for way, law in last.calibrations.items()}
        return KindExperience(acceptance, laws, parking=wary())


class _Curve(NamedTuple):
    """Costs in plain steps, by width from 0."""

    draft: Floats
    verify: Floats


class AdaptiveWidth:
    """The width that gives the most tokens a second, by measured costs and calibrated confidences.

    After D-cut (arXiv 2607.14647) at batch one. Of all ways to cut, the one that maximises
    (1 + Σ s_k) - r·C, where s_k = Π c is the chance that draft k is reached and stands, C the round's
    cost and r the rate of the stream, has the highest rate in the long run; where all rounds are alike
    it is the one that maximises (1 + Σ s_k) / C. Where no width beats plain decoding, it parks.

    Args:
        experience: what is known already; this policy adds to it.
        kind: of the text.
    """

    reads_confidence = True
    playing = None

    def __init__(self, experience: Experience, kind: str = "") -> None:
        self._round_costs = experience.costs
        self._known = known = experience.of(kind)
        self.drawing = experience.drawing
        self.way: Way = "greedy"
        self._calibration = known.calibration("greedy")
        self._parking = Parking() if known.parking is None else known.parking.again()
        self._warming_up = not experience.costs.know_plain
        if self._warming_up:
            # A few plain steps to measure what drafting has to beat.
            self._parking.park(0.0, _WARM_UP)
        self._probing = self._exploring = False
        self._hopeless = self._on_trial = False
        self.parked = False
        self._planned = 0
        self._planned_rounds = 0
        self._depth = 0
        self._limit = 0
        self._curve: _Curve | None = None
        self._curve_rounds = 0
        self._chances: list[float] = []

    @property
    def plain_next(self) -> bool:
        return self._parking.steps_left > 0

    @property
    def rate(self) -> float:
        """Tokens that its rounds give in the time of a plain step."""
        return 1.0 if self._parking.parked else self._known.rate

    def offer(
        self, confidences: Sequence[float], rate: float, depth: int, *, greedy: bool
    ) -> tuple[int, float]:
        """A round of drafts that are known already: how many are best verified, and what that gains.

        Begins the round, as `choose` does.

        Args:
            confidences: of the drafts, at least one.
            rate: tokens that are to be had otherwise in the time of a plain step.

        Returns:
            The width, and the tokens that it gives beyond those had otherwise in the same time.
        """
        self._begin(len(confidences), depth, greedy=greedy)
        self._chances = self._told(confidences)
        gains = 1 + self._gains(self._chances, rate)
        width = 1 + int(np.argmax(gains[1:]))
        return width, float(gains[width])

    def choose(self, limit: int, depth: int, *, greedy: bool) -> int:
        self._begin(limit, depth, greedy=greedy)
        if limit == 0:
            return 0
        if self._parking.steps_left:
            self._parking.step()
            self.parked = True
            return 0
        self._warming_up = False
        self._on_trial = self._on_trial and not self._parking.parked
        self._probing = self._parking.parked or self._on_trial
        if self._probing or self._planned_rounds % _PLAN_EVERY == 0 or limit < self._planned:
            self._planned = self._plan(limit)
        if self._planned == 0:
            self._parking.park(self._probe_loss())
            self._parking.step()
            self.parked = True
            return 0
        self._planned_rounds += 1
        if self._planned_rounds % _EXPLORE_EVERY == 0 and not self._probing:
            self._exploring = True
            plain = self._planned_rounds % (2 * _EXPLORE_EVERY) == 0
            return 0 if plain else min(self._planned + 1, limit)
        return self._planned

    def cut(self, confidences: Sequence[float | None], *, certain: bool) -> int:
        self._chances = self._told(confidences)
        if certain:
            width = self._best_cut(self._chances)
        else:
            width = 0
            while width < len(confidences) and self._worth(
                self._chances[: width + 1], drafted=True
            ):
                width += 1
        if self._exploring:
            return len(confidences)
        self._hopeless |= not width
        # A probe must tell something.
        return max(width, 1) if self._probing else width

    def wants(self, confidences: Sequence[float | None]) -> bool:
        position = len(confidences) - 1
        self._chances.append(self._calibration.chance(position, confidences[-1]))
        told = self._exploring or (self._probing and position == 0)
        return told or self._worth(self._chances, drafted=False)

    def wants_more(self, confidences: Sequence[float | None]) -> bool:
        mean = self._calibration.mean(len(confidences))
        return self._exploring or self._worth(
            [*self._chances, mean], drafted=False, computed=len(confidences)
        )

    def foresee(self, confidences: Sequence[float]) -> None:
        if self._warming_up or not self._limit:
            return
        if self._best_cut(self._told(confidences)):
            self._parking.wake()
        elif not confidences and not self._parking.steps_left:
            self._parking.park(0.0)
        elif confidences and not self._parking.parked:
            # What is not tried teaches nothing: when this wait is over, it is tried all the same.
            self._parking.park(self._probe_loss())

    def learn(self, outcome: Outcome) -> None:
        known, depth = self._known, self._depth
        num_verified = len(outcome.confidences)
        self._curve_rounds += 1
        self._known.parking = self._parking
        if outcome.rest_s is None and not num_verified:
            return
        if self.parked:
            if outcome.ahead and outcome.rest_s is not None:
                self._round_costs.learn_plain(depth, outcome.rest_s)
            return
        if outcome.draft_s is not None:
            self._round_costs.learn_draft(outcome.num_drafted, depth, outcome.draft_s)
        if outcome.rest_s is not None:
            self._round_costs.learn_verify(num_verified, depth, outcome.rest_s)
        self._calibration.learn(outcome.confidences, outcome.num_accepted)
        if self._limit == 0 or (self._exploring and not outcome.num_drafted):
            return
        # A drafter that has nothing to say gives nothing.
        known.recent.append(self._chances if outcome.num_drafted else [0.0])
        if self._probing and not outcome.num_drafted:
            # It had nothing to say, which cost nothing and tells nothing.
            self._parking.park(0.0)
            return
        seconds = self._round_costs.draft(outcome.num_drafted, depth)
        seconds += self._round_costs.verify(num_verified, depth)
        steps = seconds / self._round_costs.plain(depth)
        num_tokens = outcome.num_accepted + 1
        was_parked = self._parking.parked
        self._parking.learn(num_tokens - steps, self._probe_loss())
        if self._hopeless and was_parked and not self._parking.parked:
            self._try_again()
        elif not self._hopeless:
            self._on_trial = False

    def _try_again(self) -> None:
        """A probe gained against all that is known: drafting goes on until that agrees, or it loses."""
        self._on_trial = True
        self._calibration.loosen()
        self._known.recent.clear()

    def _begin(self, limit: int, depth: int, *, greedy: bool) -> None:
        self._depth, self._limit, self._chances = depth, limit, []
        self.way = "greedy" if greedy else self.drawing.choose()
        self._calibration = self._known.calibration(self.way)
        self._probing = self._exploring = self.parked = False

    def _told(self, confidences: Sequence[float | None]) -> list[float]:
        """Chances of drafts with these confidences."""
        return [self._calibration.chance(k, c) for k, c in enumerate(confidences)]

    def _best_cut(self, chances: Sequence[float]) -> int:
        """How many of some drafts are best verified, all being known."""
        return int(np.argmax(self._gains(chances, self._known.rate)))

    def _gains(self, chances: Sequence[float], rate: float) -> Floats:
        """Of each cut of some drafts: those that stand, less what the verifying would have given."""
        verify = self._costs().verify[: len(chances) + 1]
        sums = np.concatenate([[0.0], np.cumsum(np.cumprod(chances))])
        gains: Floats = sums - rate * verify
        return gains

    def _probe_loss(self) -> float:
        draft, verify = self._costs()
        return float(draft[1] + verify[1]) - 1 if self._limit else 0.0

    def _plan(self, limit: int) -> int:
        """The width to ask for: what would have been best, on average, in the last rounds.

        Also sets the rate, by Dinkelbach's method: for a rate the best cuts, from them a better rate.
        """
        draft, verify = (costs[: limit + 1] for costs in self._costs())
        chances = np.cumprod(self._expected(limit), axis=1)
        tokens = 1 + np.pad(np.cumsum(chances, axis=1), [(0, 0), (1, 0)])
        rows = np.arange(len(tokens))[:, None]
        rate = self._known.rate
        for _ in range(_DINKELBACH):
            gains = tokens - rate * verify
            # The best cut of each row within each width that was drafted.
            cuts = _running_argmax(gains)
            rates = tokens[rows, cuts].mean(axis=0) / (verify[cuts].mean(axis=0) + draft)
            rate = max(1.0, float(rates.max()))
        self._known.rate = rate
        best = 1 + int(np.argmax(rates[1:]))
        # A drafter that costs next to nothing is always asked.
        self._hopeless = bool(rates[best] <= rates[0] - _TRIFLE)
        return 0 if self._hopeless and not self._probing else best

    def _expected(self, limit: int) -> Floats:
        """Chances of drafts in each of the last rounds [rounds, limit]; means where none was made."""
        means = [self._calibration.mean(position) for position in range(limit)]
        rows = [row[:limit] + means[len(row) :] for row in self._known.recent]
        return np.array(rows or [means])

    def _worth(
        self, chances: Sequence[float], *, drafted: bool, computed: int | None = None
    ) -> bool:
        """Whether the last of some drafts is worth it, with what may be expected of those after it.

        Args:
            chances: of the drafts so far.
            drafted: later ones are computed already.
            computed: drafts computed already; None: these.
        """
        draft, verify = self._costs()
        at, limit = len(chances), self._limit
        means = [self._calibration.mean(position) for position in range(at, limit)]
        survivals = np.cumprod([*chances, *means])
        gains = np.cumsum(survivals[at - 1 :])
        rate = self._known.rate
        gains = gains - rate * (verify[at : limit + 1] - verify[at - 1])
        if not drafted:
            done = at if computed is None else computed
            gains = gains - rate * (draft[at : limit + 1] - draft[done])
        return bool(np.max(gains) > 0)

    def _costs(self) -> _Curve:
        curve = self._curve
        if curve is None or len(curve.draft) <= self._limit or self._curve_rounds >= _CURVE_ROUNDS:
            self._curve_rounds = 0
            costs, depth = self._round_costs, self._depth
            plain = costs.plain(depth)
            widths = range(self._limit + 1)
            curve = self._curve = _Curve(
                np.array([costs.draft(width, depth) for width in widths]) / plain,
                np.array([costs.verify(width, depth) for width in widths]) / plain,
            )
        return curve


def _running_argmax(values: Floats) -> npt.NDArray[np.intp]:
    """Of each row's values up to each place, where the largest is (the last of equals)."""
    places = np.arange(values.shape[1])
    is_new = values >= np.maximum.accumulate(values, axis=1)
    return np.maximum.accumulate(np.where(is_new, places, 0), axis=1)

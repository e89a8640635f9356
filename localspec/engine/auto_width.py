"""The width policy of `auto`: that of the drafter that plays, and which one that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.engine.bandit import Stretch
from localspec.engine.drawing import Drawing, Way
from localspec.engine.policy import Outcome
from localspec.engine.width import AdaptiveWidth

if TYPE_CHECKING:
    from localspec.engine.auto import Auto, AutoState

PLAIN = "none"
_SEGMENT = 16
"""Rounds after which another arm may take over within an answer."""
_PLAIN_SEGMENT = 64


class AutoWidth:
    """The width policy of one answer on `auto`: that of the arm that plays.

    Args:
        auto: the arms.
        state: the conversation's.
        kind: of text.
        arm: the one that begins; None: plain decoding.
    """

    reads_confidence = True

    def __init__(self, auto: Auto, state: AutoState, kind: str, arm: str | None) -> None:
        self._auto, self._state, self._kind, self._arm = auto, state, kind, arm
        self._policies: dict[str, AdaptiveWidth] = {}
        self._given: dict[str, Stretch] = {}
        self._rounds = 0
        """Since an arm was chosen."""
        self._plain_left = _PLAIN_SEGMENT if arm is None else 0
        self._gave_up = False
        """The arm has just parked."""
        self._has_drafted = False
        """Since it took over."""
        self._depth = 0
        self.parked = False

    @property
    def playing(self) -> str:
        return self._arm or PLAIN

    @property
    def plain_next(self) -> bool:
        # A step may be under way because of this, so it holds even if the arm leaves memory meanwhile.
        if self._policy is None:
            return self._plain_left > 0
        return self._policy.plain_next and self._rounds < _SEGMENT and not self._gave_up

    @property
    def way(self) -> Way:
        return "greedy" if self._policy is None else self._policy.way

    @property
    def drawing(self) -> Drawing:
        assert self._arm is not None
        return self._auto.experience(self._arm).drawing

    def choose(self, limit: int, depth: int, *, greedy: bool) -> int:
        self._depth = depth
        if not self.plain_next:
            self._choose_arm()
        self._state.active = self._arm
        self._rounds += 1
        policy = self._policy
        if policy is None:
            self._plain_left -= 1
            self.parked = True
            return 0
        drafter = self._auto.drafter(self._arm)
        most = limit if drafter is None else min(limit, drafter.max_width)
        waits = policy.plain_next
        width = policy.choose(most, depth, greedy=greedy)
        self._gave_up = policy.plain_next and not waits
        self.parked = policy.parked
        return width

    def cut(self, confidences: Sequence[float | None], *, certain: bool) -> int:
        assert self._policy is not None
        return self._policy.cut(confidences, certain=certain)

    def wants(self, confidences: Sequence[float | None]) -> bool:
        assert self._policy is not None
        return self._policy.wants(confidences)

    def wants_more(self, confidences: Sequence[float | None]) -> bool:
        assert self._policy is not None
        return self._policy.wants_more(confidences)

    def foresee(self, confidences: Sequence[float]) -> None:
        if self._policy is not None:
            self._policy.foresee(confidences)

    def learn(self, outcome: Outcome) -> None:
        policy = self._policy
        if policy is None or self._arm is None:
            return
        if outcome.num_drafted and not self._has_drafted:
            # The time went into reading what the arm had missed.
            self._has_drafted = True
            outcome = outcome._replace(draft_s=None)
        policy.learn(outcome)
        if outcome.num_drafted:
            self._gave_up = policy.plain_next
        costs, num_verified = self._auto.experience(self._arm).costs, len(outcome.confidences)
        steps = 1.0
        if not policy.parked:
            # One slow round (another program) shall not condemn an arm.
            seconds = costs.draft(outcome.num_drafted, self._depth)
            seconds += costs.verify(num_verified, self._depth)
            steps = seconds / costs.plain(self._depth)
        so_far = self._given.setdefault(self._arm, Stretch())
        self._auto.bandit.learn(self._arm, self._kind, outcome.num_accepted + 1, steps, so_far)

    def _choose_arm(self) -> None:
        """Now and then, among those that can take over at once: an answer under way loads nothing."""
        bandit, playable = self._auto.bandit, self._auto.playable(self._state)
        gave_up, self._gave_up = self._gave_up, False
        before = self._arm
        if self._arm is not None and self._arm in playable:
            if gave_up:
                self._arm = bandit.relieve(self._kind, playable, self._arm)
            elif self._rounds < _SEGMENT:
                return
            else:
                self._arm = bandit.choose(self._kind, playable, playing=self._arm)
        else:
            self._arm = bandit.choose(self._kind, playable)
        self._has_drafted = self._has_drafted and self._arm == before
        self._plain_left = _PLAIN_SEGMENT if self._arm is None else 0
        self._rounds = 0

    @property
    def _policy(self) -> AdaptiveWidth | None:
        if self._arm is None:
            return None
        if self._arm not in self._policies:
            experience = self._auto.experience(self._arm)
            parking = experience.of(self._kind).parking
            if parking is not None:
                # It was chosen for what it may give here, wherever it gave up.
                parking.wake()
            self._policies[self._arm] = AdaptiveWidth(experience, self._kind)
        return self._policies[self._arm]

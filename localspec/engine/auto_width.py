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
_FEW_MISSED = 4
"""Tokens; to read so many is part of a round."""
_LEAST_GAIN = 0.1
"""Tokens; what another arm's round must promise beyond the leading one's, which then has to catch up."""


class AutoWidth:
    """The width policy of one answer on `auto`: that of the leading arm, or of the one that helps out.

    Where drafts that are known for nothing promise more than the leading arm gives, as where text
    repeats, a round of those is played.

    Args:
        auto: the arms.
        state: the conversation's.
        kind: of text.
        arm: the one that begins; None: plain decoding.
    """

    reads_confidence = True

    def __init__(self, auto: Auto, state: AutoState, kind: str, arm: str | None) -> None:
        self._auto, self._state, self._kind, self._lead = auto, state, kind, arm
        self._arm = arm
        """Of the round just chosen: the one that leads, or the one that helps out."""
        self._policies: dict[str, AdaptiveWidth] = {}
        self._given: dict[str, Stretch] = {}
        self._rounds = 0
        """Since an arm was chosen."""
        self._plain_left = _PLAIN_SEGMENT if arm is None else 0
        self._gave_up = False
        """The arm has just parked."""
        self._called = False
        """In the plain step under way, drafts were seen that are worth a round."""
        self._depth, self._greedy = 0, True
        self.parked = False

    @property
    def playing(self) -> str:
        return self._arm or PLAIN

    @property
    def plain_next(self) -> bool:
        return self._waits and not self._called

    @property
    def way(self) -> Way:
        return "greedy" if self._arm is None else self._policy(self._arm).way

    @property
    def drawing(self) -> Drawing:
        assert self._arm is not None
        return self._auto.experience(self._arm).drawing

    def choose(self, limit: int, depth: int, *, greedy: bool) -> int:
        self._depth, self._greedy = depth, greedy
        is_under_way, self._called = self.plain_next, False
        if not self._waits:
            self._choose_arm()
        self._rounds += 1
        helps = not is_under_way and self._lead != self._auto.foreteller
        width = self._offered(self._auto.foretell(self._state, limit)) if helps else 0
        self._arm = self._lead
        if width:
            self._arm = self._auto.foreteller
            self.parked = False
        elif self._lead is None:
            self._plain_left -= 1
            self.parked = True
        else:
            policy, drafter = self._policy(self._lead), self._auto.drafter(self._lead)
            most = limit if drafter is None else min(limit, drafter.max_width)
            waits = policy.plain_next
            width = policy.choose(most, depth, greedy=greedy)
            self._gave_up = policy.plain_next and not waits
            self.parked = policy.parked
        self._state.active, self._state.resting = self._arm, self.parked
        return width

    def cut(self, confidences: Sequence[float | None], *, certain: bool) -> int:
        assert self._arm is not None
        if self._helps:
            return len(confidences)
        return self._policy(self._arm).cut(confidences, certain=certain)

    def wants(self, confidences: Sequence[float | None]) -> bool:
        assert self._arm is not None
        return self._policy(self._arm).wants(confidences)

    def wants_more(self, confidences: Sequence[float | None]) -> bool:
        assert self._arm is not None
        return self._policy(self._arm).wants_more(confidences)

    def foresee(self, confidences: Sequence[float]) -> None:
        if self._lead is not None and self._lead == self._auto.foreteller:
            self._policy(self._lead).foresee(confidences)
        else:
            self._called = self._offered(confidences) > 0

    def learn(self, outcome: Outcome) -> None:
        self._state.active = self._lead
        if self._arm is None:
            return
        policy = self._policy(self._arm)
        if outcome.num_drafted and self._state.missed > _FEW_MISSED:
            # The time went into reading what the arm had missed.
            outcome = outcome._replace(draft_s=None)
        policy.learn(outcome)
        if self._lead is None:
            return
        if outcome.num_drafted and not self._helps:
            self._gave_up = policy.plain_next
        costs, num_verified = self._auto.experience(self._arm).costs, len(outcome.confidences)
        steps = 1.0
        if not self.parked:
            # One slow round (another program) shall not condemn an arm.
            seconds = costs.draft(outcome.num_drafted, self._depth)
            seconds += costs.verify(num_verified, self._depth)
            steps = seconds / costs.plain(self._depth)
        so_far = self._given.setdefault(self._lead, Stretch())
        self._auto.bandit.learn(self._lead, self._kind, outcome.num_accepted + 1, steps, so_far)

    def _choose_arm(self) -> None:
        """Now and then, among those that can take over at once: an answer under way loads nothing."""
        bandit, playable = self._auto.bandit, self._auto.playable(self._state)
        gave_up, self._gave_up = self._gave_up, False
        if self._lead is not None and self._lead in playable:
            if gave_up:
                self._lead = bandit.relieve(self._kind, playable, self._lead)
            elif self._rounds < _SEGMENT:
                return
            else:
                self._lead = bandit.choose(self._kind, playable, playing=self._lead)
        else:
            self._lead = bandit.choose(self._kind, playable)
        self._plain_left = _PLAIN_SEGMENT if self._lead is None else 0
        self._rounds = 0

    @property
    def _waits(self) -> bool:
        """Whether the leading arm makes a plain step next."""
        # A step may be under way because of this, so it holds even if the arm leaves memory meanwhile.
        if self._lead is None:
            return self._plain_left > 0
        waits = self._policy(self._lead).plain_next
        return waits and self._rounds < _SEGMENT and not self._gave_up

    @property
    def _helps(self) -> bool:
        return self._arm != self._lead

    def _offered(self, confidences: Sequence[float]) -> int:
        """Drafts to verify of those that are known for nothing; 0: the leading arm is better."""
        name = self._auto.foreteller
        if name is None or not confidences:
            return 0
        rate = 1.0 if self._lead is None else self._policy(self._lead).rate
        policy = self._policy(name)
        width, gain = policy.offer(confidences, rate, self._depth, greedy=self._greedy)
        return width if gain > _LEAST_GAIN else 0

    def _policy(self, name: str) -> AdaptiveWidth:
        if name not in self._policies:
            experience = self._auto.experience(name)
            parking = experience.of(self._kind).parking
            if parking is not None:
                # It was chosen for what it may give here, wherever it gave up.
                parking.wake()
            self._policies[name] = AdaptiveWidth(experience, self._kind)
        return self._policies[name]

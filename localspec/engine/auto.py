"""The drafter `auto`: several drafters of which one plays at a time, chosen by what they gave.

To the loop it is one drafter and one width policy. It keeps the target's taps of a conversation, so that
another drafter can take over at the cost of its own prefill, without the target reading anything again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from localspec.engine.bandit import Bandit, Beliefs
from localspec.engine.drawing import Way
from localspec.engine.width import AdaptiveWidth, Experience, Outcome
from localspec.errors import CheckpointRefused, DrafterMismatch
from localspec.models.drafter import Drafter, Draw, Pace, Proposal, StoppingDrafter, TargetView

_SEGMENT = 48
"""Rounds after which another arm may take over within an answer."""
_PLAIN_SEGMENT = 64
_MOST_PIECES = 64
_CHUNK = 512

MakeDrafter = Callable[[], tuple[Drafter, Experience]]


@dataclass(slots=True)
class _Arm:
    """A drafter in memory with what is known of it."""

    drafter: Drafter
    experience: Experience


@dataclass(slots=True)
class _Player:
    """A drafter's state in one conversation, and how many positions it has observed."""

    state: Any
    observed: int = 0


class AutoState:
    """One conversation: tokens and taps so far, and the states of the drafters that have played.

    Attributes:
        active: the arm that plays; None: plain decoding.
    """

    def __init__(self, auto: Auto, layers: tuple[int, ...], active: str | None) -> None:
        self.active = active
        self.layers = layers
        self._auto = auto
        self._tokens: list[int] = []
        self._taps: list[mx.array] = []
        self._players: dict[str, _Player] = {}

    @property
    def arrays(self) -> list[mx.array]:
        states = [array for each in self._players.values() for array in each.state.arrays]
        return [*self._taps, *states]

    def can_fork(self, position: int) -> bool:
        """As long as the drafters in memory read nothing that was not kept."""
        return position <= len(self._tokens) and set(self._auto.tap_layers) <= set(self.layers)

    def fork(self, position: int) -> AutoState:
        layers = self._auto.tap_layers
        copy = AutoState(self._auto, layers, self.active)
        copy._tokens = self._tokens[:position]
        if layers:
            columns = mx.array([self.layers.index(layer) for layer in layers])
            copy._taps = [self._record()[:, :position][:, :, columns]]
        for name, player in self._players.items():
            arm = self._auto.arm(name)
            if arm is None or player.observed < position or not arm.drafter.tap_layers:
                continue
            if player.state.can_fork(position):
                copy._players[name] = _Player(player.state.fork(position), position)
        return copy

    def append(self, tokens: list[int], taps: mx.array | None) -> None:
        self._tokens += tokens
        if taps is not None:
            self._taps.append(taps)
            if len(self._taps) > _MOST_PIECES:
                self._taps = [self._record()]

    def player(self, name: str, drafter: Drafter) -> Any:
        """A drafter's state, up to date."""
        player = self._players.get(name)
        if player is None:
            player = self._players[name] = _Player(drafter.new_state())
        while player.observed < len(self._tokens):
            start = player.observed
            end = min(start + _CHUNK, len(self._tokens))
            tokens = mx.array([self._tokens[start:end]], dtype=mx.int32)
            drafter.observe(player.state, tokens, self._tapped(drafter, start, end))
            player.observed = end
            mx.async_eval(player.state.arrays)
        return player.state

    def _tapped(self, drafter: Drafter, start: int, end: int) -> mx.array | None:
        if not drafter.tap_layers:
            return None
        columns = mx.array([self.layers.index(layer) for layer in drafter.tap_layers])
        if self._taps and start == len(self._tokens) - self._taps[-1].shape[1]:
            return self._taps[-1][:, : end - start, columns]
        return self._record()[:, start:end][:, :, columns]

    def _record(self) -> mx.array:
        if len(self._taps) > 1:
            self._taps = [mx.concatenate(self._taps, axis=1)]
        return self._taps[0]


class Auto:
    """A choice of drafters as one; see `localspec.models.drafter.Drafter`.

    Args:
        free: drafters that take no memory, by name.
        loaders: for the others, by name, the one to prefer first; they are loaded when they play.
        notify: told of drafters that cannot be used.
        most: drafters of `loaders` in memory at a time.
    """

    def __init__(
        self,
        free: dict[str, Drafter],
        loaders: dict[str, MakeDrafter],
        notify: Callable[[str], None] | None = None,
        most: int = 2,
    ) -> None:
        self._notify = notify
        self._most = most
        self._loaders = dict(loaders)
        self._experiences: dict[str, Experience] = {}
        self._arms = {name: _Arm(drafter, Experience()) for name, drafter in free.items()}
        self._seated: list[str] = []
        # The ones to prefer are tried first.
        guesses = {name: 1.6 - 0.02 * place for place, name in enumerate(loaders)}
        # What copies pays where text comes back.
        copies = ("editing", 1.6)
        self.bandit = Bandit(
            {name: Beliefs(guesses[name]) for name in loaders}
            | {name: Beliefs(1.1, copies) for name in free}
        )
        for name in list(loaders)[:most]:
            self._seat(name)

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """All that the drafters in memory read."""
        every = {layer for arm in self._arms.values() for layer in arm.drafter.tap_layers}
        return tuple(sorted(every))

    @property
    def max_width(self) -> int:
        return max(arm.drafter.max_width for arm in self._arms.values())

    @property
    def names(self) -> list[str]:
        """Of the arms in memory."""
        return list(self._arms)

    def arm(self, name: str) -> _Arm | None:
        return self._arms.get(name)

    def bind(self, target: TargetView) -> None:
        """Nothing: its drafters come bound."""

    def prepare(self, kind: str) -> str | None:
        """Choose the arm for a new answer, and load it if need be; None: plain decoding."""
        name = self.bandit.choose(kind)
        while name is not None and name not in self._arms:
            self._seat(name)
            if name not in self._arms:
                name = self.bandit.choose(kind)
        return name

    def new_state(self) -> AutoState:
        first = next(iter(self._seated), next(iter(self._arms)))
        return AutoState(self, self.tap_layers, first)

    def observe(self, state: AutoState, next_tokens: mx.array, taps: mx.array | None) -> None:
        state.append([int(token) for token in np.array(next_tokens[0])], taps)
        arm = None if state.active is None else self._arms.get(state.active)
        if arm is not None and state.active is not None:
            state.player(state.active, arm.drafter)

    def propose(
        self, state: AutoState, anchor: mx.array, width: int, draw: Draw
    ) -> Proposal | None:
        playing = self._playing(state)
        if playing is None:
            return None
        drafter, inner = playing
        return drafter.propose(inner, anchor, min(width, drafter.max_width), draw)

    def propose_while(
        self, state: AutoState, anchor: mx.array, width: int, draw: Draw, pace: Pace
    ) -> Proposal | None:
        playing = self._playing(state)
        if playing is None:
            return None
        drafter, inner = playing
        width = min(width, drafter.max_width)
        if isinstance(drafter, StoppingDrafter):
            return drafter.propose_while(inner, anchor, width, draw, pace)
        return drafter.propose(inner, anchor, width, draw)

    def _playing(self, state: AutoState) -> tuple[Drafter, Any] | None:
        arm = None if state.active is None else self._arms.get(state.active)
        if arm is None or state.active is None:
            return None
        return arm.drafter, state.player(state.active, arm.drafter)

    def _seat(self, name: str) -> None:
        """Load a drafter in the place of the one that gave least; if it cannot be, forget it."""
        try:
            drafter, first = self._loaders[name]()
        except (CheckpointRefused, DrafterMismatch) as error:
            if self._notify:
                self._notify(f"{name} is installed, but cannot be used: {error}")
            del self._loaders[name], self.bandit.arms[name]
            return
        if len(self._seated) == self._most:
            worst = min(self._seated, key=lambda each: self.bandit.arms[each].rate(""))
            self._seated.remove(worst)
            self._experiences[worst] = self._arms.pop(worst).experience
        experience = self._experiences.get(name) or self._acquainted(first)
        self._arms[name] = _Arm(drafter, experience)
        self._seated.append(name)

    def _acquainted(self, experience: Experience) -> Experience:
        """What other arms have learnt of the target, a new one need not find out."""
        for arm in self._arms.values():
            if arm.experience.parking is not None:
                experience.costs = experience.costs.beside(arm.experience.costs)
                break
        return experience


@dataclass
class AutoWidth:
    """The width policy of one answer on `auto`: that of the arm that plays.

    Args:
        auto: the arms.
        state: gives the conversation's state.
        kind: of text.
        playing: the arm that begins; None: plain decoding.
    """

    auto: Auto
    state: Callable[[], AutoState]
    kind: str
    playing: str | None
    _policies: dict[str, AdaptiveWidth] = field(default_factory=dict)
    _rounds: int = 0
    _plain_left: int = 0
    _depth: int = 0
    parked: bool = False

    reads_confidence = True

    @property
    def plain_next(self) -> bool:
        policy = self._policy()
        return self._plain_left > 0 if policy is None else policy.plain_next

    def choose(self, limit: int, depth: int, way: Way) -> int:
        self._depth = depth
        if not self.plain_next:
            self._choose_arm()
        self.state().active = self.playing
        policy = self._policy()
        if policy is None:
            self._plain_left -= 1
            self.parked = True
            return 0
        arm = self.auto.arm(self.playing or "")
        assert arm is not None
        width = policy.choose(min(limit, arm.drafter.max_width), depth, way)
        self.parked = policy.parked
        return width

    def cut(self, confidences: Sequence[float | None], *, certain: bool) -> int:
        policy = self._policy()
        assert policy is not None
        return policy.cut(confidences, certain=certain)

    def wants(self, confidences: Sequence[float | None]) -> bool:
        policy = self._policy()
        assert policy is not None
        return policy.wants(confidences)

    def wants_more(self, confidences: Sequence[float | None]) -> bool:
        policy = self._policy()
        assert policy is not None
        return policy.wants_more(confidences)

    def learn(self, outcome: Outcome) -> None:
        policy, arm = self._policy(), self.auto.arm(self.playing or "")
        self._rounds += 1
        if policy is None or arm is None or self.playing is None:
            return
        policy.learn(outcome)
        plain = arm.experience.costs.plain(self._depth)
        seconds = (outcome.draft_s or 0.0) + outcome.rest_s
        # One slow round (another program) shall not condemn an arm.
        steps = min(seconds / plain, 3.0 * (1 + len(outcome.confidences)))
        if policy.parked:
            steps = 1.0
        self.auto.bandit.learn(self.playing, self.kind, outcome.num_accepted + 1, steps)

    def _choose_arm(self) -> None:
        if self.playing is None:
            if self._plain_left <= 0 and self._rounds:
                self.playing = self.auto.bandit.choose(self.kind)
                self._plain_left = _PLAIN_SEGMENT
            elif not self._rounds:
                self._plain_left = _PLAIN_SEGMENT
        elif self._rounds and self._rounds % _SEGMENT == 0:
            self.playing = self.auto.bandit.choose(self.kind, playing=self.playing)
        if self.playing is not None and self.auto.arm(self.playing) is None:
            # Not in memory; an answer under way loads nothing.
            self.playing = next(iter(self.auto.names))

    def _policy(self) -> AdaptiveWidth | None:
        arm = None if self.playing is None else self.auto.arm(self.playing)
        if arm is None or self.playing is None:
            return None
        if self.playing not in self._policies:
            self._policies[self.playing] = AdaptiveWidth(arm.experience)
        return self._policies[self.playing]

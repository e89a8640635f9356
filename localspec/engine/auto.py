"""The drafter `auto`: several drafters of which one plays at a time, chosen by what they gave.

To the loop it is one drafter and one width policy. It keeps the target's taps of a conversation, so that
another drafter can take over at the cost of its own prefill, without the target reading anything again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import numpy as np

from localspec.engine.auto_width import PLAIN, AutoWidth
from localspec.engine.bandit import Bandit, Beliefs
from localspec.engine.drawing import Drawing
from localspec.engine.policy import FixedWidth, WidthPolicy
from localspec.engine.width import Experience
from localspec.errors import CheckpointRefused, DrafterMismatch
from localspec.models.drafter import (
    Drafter,
    Draw,
    ForetellingDrafter,
    Pace,
    Proposal,
    StoppingDrafter,
    TargetView,
)

_MOST_PIECES = 64
_CHUNK = 512

MakeDrafter = Callable[[], tuple[Drafter, Experience]]


@dataclass(slots=True)
class _Player:
    """A drafter's state in one conversation, and how many positions it has observed."""

    state: Any
    observed: int = 0


class AutoState:
    """One conversation: tokens and taps so far, and the states of the drafters that have played.

    Attributes:
        active: the arm that plays the round, between rounds the one that leads; None: plain decoding.
        resting: it will not draft for a while, so that it need not read along.
        missed: tokens that the last one to draft had to read first.
    """

    def __init__(self, auto: Auto, layers: tuple[int, ...], active: str | None) -> None:
        self.active = active
        self.resting = False
        self.missed = 0
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
            drafter = self._auto.drafter(name)
            if drafter is None or not drafter.tap_layers:
                continue
            if name == self.active:
                # It may have rested.
                self.player(name, drafter)
            if player.observed < position:
                continue
            if player.state.can_fork(position):
                copy._players[name] = _Player(player.state.fork(position), position)
        return copy

    def num_missed(self, name: str | None) -> int:
        """Tokens that a drafter has not observed yet."""
        player = None if name is None else self._players.get(name)
        return len(self._tokens) - (0 if player is None else player.observed)

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
        free: drafters that take no memory, by name, with what is known of each.
        loaders: for the others, by name, the one to prefer first; they are loaded when they play.
        beliefs: what is expected of an arm before it has played.
        notify: told of drafters that cannot be used.
        most: drafters of `loaders` in memory at a time.

    Attributes:
        bandit: what is known of the arms.
        foreteller: the one whose drafts are known for nothing, so that it can help out in any round.
    """

    def __init__(
        self,
        free: Mapping[str, tuple[Drafter, Experience]],
        loaders: Mapping[str, MakeDrafter],
        beliefs: Mapping[str, Beliefs] = MappingProxyType({}),
        notify: Callable[[str], None] | None = None,
        most: int = 2,
    ) -> None:
        self._notify = notify
        self._most = most
        self._loaders = dict(loaders)
        self._drafters = {name: drafter for name, (drafter, _) in free.items()}
        self._experiences = {name: experience for name, (_, experience) in free.items()}
        foretelling = (
            name for name, d in self._drafters.items() if isinstance(d, ForetellingDrafter)
        )
        self.foreteller = next(foretelling, None)
        self._seated: list[str] = []
        self.bandit = Bandit({name: beliefs.get(name, Beliefs()) for name in (*loaders, *free)})
        for name in list(loaders)[:most]:
            self._seat(name)
        self._first: str | None = next(iter(self._seated), next(iter(self._drafters), None))

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """All that the drafters in memory read."""
        every = {layer for drafter in self._drafters.values() for layer in drafter.tap_layers}
        return tuple(sorted(every))

    @property
    def max_width(self) -> int:
        return max(drafter.max_width for drafter in self._drafters.values())

    @property
    def names(self) -> list[str]:
        """Of the arms in memory."""
        return list(self._drafters)

    def drafter(self, name: str | None) -> Drafter | None:
        """An arm, if it is in memory."""
        return None if name is None else self._drafters.get(name)

    def experience(self, name: str) -> Experience:
        """What is known of an arm that was ever in memory."""
        return self._experiences[name]

    def playable(self, state: AutoState) -> list[str]:
        """Arms that can play in a conversation: in memory, and nothing that they read is missing."""
        kept = set(state.layers)
        return [name for name, each in self._drafters.items() if kept.issuperset(each.tap_layers)]

    def bind(self, target: TargetView) -> None:
        """Nothing: its drafters come bound."""

    def prepare(self, kind: str, *, plain: bool = True) -> str | None:
        """Choose the arm of a new answer, and load it if need be; new states begin with it.

        Args:
            plain: plain decoding may be chosen.

        Returns:
            Its name; None: plain decoding.
        """
        while (name := self.bandit.choose(kind, plain=plain)) and name not in self._drafters:
            # Once it is loaded, more is known of it, perhaps too much to play it.
            self._seat(name)
        self._first = name
        return name

    def begin(self, state: AutoState, kind: str, width: int | None) -> WidthPolicy:
        """The policy of an answer that was prepared; its arm reads the prompt.

        Args:
            width: drafts a round, if they are fixed; then one arm plays to the end.
        """
        state.active = name = self._first
        if width is None:
            return AutoWidth(self, state, kind, name)
        drawing = Drawing() if name is None else self._experiences[name].drawing
        return FixedWidth(width, drawing, name or PLAIN)

    def new_state(self) -> AutoState:
        # Whoever asks for a state without preparing an answer wants to see drafts.
        return AutoState(self, self.tap_layers, self._first or next(iter(self._drafters), None))

    def observe(self, state: AutoState, next_tokens: mx.array, taps: mx.array | None) -> None:
        state.append(np.array(next_tokens)[0].tolist(), taps)
        if not state.resting:
            self._playing(state)

    def propose(
        self, state: AutoState, anchor: mx.array, width: int, draw: Draw
    ) -> Proposal | None:
        state.missed = state.num_missed(state.active)
        playing = self._playing(state)
        if playing is None:
            return None
        drafter, inner = playing
        return drafter.propose(inner, anchor, min(width, drafter.max_width), draw)

    def propose_while(
        self, state: AutoState, anchor: mx.array, width: int, draw: Draw, pace: Pace
    ) -> Proposal | None:
        state.missed = state.num_missed(state.active)
        playing = self._playing(state)
        if playing is None:
            return None
        drafter, inner = playing
        width = min(width, drafter.max_width)
        if isinstance(drafter, StoppingDrafter):
            return drafter.propose_while(inner, anchor, width, draw, pace)
        return drafter.propose(inner, anchor, width, draw)

    def foretells(self, state: AutoState) -> bool:
        return self.foreteller is not None

    def foretell(self, state: AutoState, width: int) -> Sequence[float]:
        """What `foreteller` would propose, whichever arm plays."""
        if self.foreteller is None or width < 1:
            return ()
        drafter = self._drafters[self.foreteller]
        assert isinstance(drafter, ForetellingDrafter)
        inner = state.player(self.foreteller, drafter)
        return drafter.foretell(inner, min(width, drafter.max_width))

    def _playing(self, state: AutoState) -> tuple[Drafter, Any] | None:
        """The arm that plays and its state, up to date."""
        if state.active is None or state.active not in self.playable(state):
            return None
        drafter = self._drafters[state.active]
        return drafter, state.player(state.active, drafter)

    def _seat(self, name: str) -> None:
        """Load a drafter in the place of the one that gave least; if it cannot be, forget it."""
        if len(self._seated) == self._most:
            # Before the other one is loaded, so that no more than these are ever in memory.
            worst = min(self._seated, key=lambda each: self.bandit.rate(each, ""))
            self._seated.remove(worst)
            del self._drafters[worst]
        try:
            drafter, first = self._loaders[name]()
        except (CheckpointRefused, DrafterMismatch) as error:
            if self._notify:
                self._notify(f"{name} is installed, but cannot be used: {error}")
            del self._loaders[name], self.bandit.arms[name]
            return
        if name not in self._experiences:
            self._experiences[name] = first
            if first.claims:
                self.bandit.arms[name].expect(first.claims, first.costs.table)
        self._drafters[name] = drafter
        self._seated.append(name)

"""The prefix cache: what the last few conversations left in memory, for prompts that begin like them.

Holds target caches and drafter states by their token ids; knows nothing of text or requests. Everything
happens on the engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from localspec.engine.forks import Checkpoint, can_cut, fork
from localspec.engine.target import TargetCache
from localspec.models.drafter import Drafter

MOST_CONVERSATIONS = 16
_SHORT_TAIL = 512
"""A conversation that adds no more than this to a newer one is not worth its memory."""

Tokens = npt.NDArray[np.int32]


class Reused(NamedTuple):
    """A copy to go on from; the drafter's state is None where the drafter only reads tokens."""

    cache: TargetCache
    state: Any
    checkpoints: list[Checkpoint]


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation as it was left.

    Attributes:
        tokens: what was said; the cache holds the first `cache.num_tokens` of them.
        drafter: whose state this is; None: there is no state.
        checkpoints: in the order of their positions.
    """

    tokens: Tokens
    cache: TargetCache
    checkpoints: list[Checkpoint]
    drafter: Drafter | None = None
    state: Any = None
    nbytes: int = 0
    used: int = 0

    def __post_init__(self) -> None:
        drafted = sum(array.nbytes for array in self.state.arrays) if self.state else 0
        snapshots = sum(checkpoint.nbytes for checkpoint in self.checkpoints)
        self.nbytes = self.cache.nbytes + snapshots + drafted


@dataclass(slots=True)
class PrefixCache:
    """Conversations within a memory bound.

    Attributes:
        max_bytes: most memory of all of them; 0 keeps none.
    """

    max_bytes: int
    _kept: list[Conversation] = field(default_factory=list)
    _clock: int = 0

    @property
    def nbytes(self) -> int:
        return sum(conversation.nbytes for conversation in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, prompt: Sequence[int], drafter: Drafter | None) -> Reused | None:
        """A copy of the longest usable beginning of a prompt; None: there is none.

        A drafter that reads taps has seen the token after each position, so for it a beginning ends one
        token before the first that differs. The prompt's last token is always left to be read.
        """
        self._clock += 1
        wanted = np.array(prompt, dtype=np.int32)
        best: tuple[int, Conversation, Checkpoint | None] | None = None
        for conversation in self._kept:
            if not _fits(conversation, drafter):
                continue
            common = _common(conversation.tokens, wanted)
            longest = common - 1 if _reads_taps(drafter) else min(common, len(prompt) - 1)
            found = _usable(conversation, longest, drafter)
            if found and (best is None or found[0] > best[0]):
                best = (found[0], conversation, found[1])
        if best is None:
            return None
        position, conversation, at = best
        conversation.used = self._clock
        cache = TargetCache(fork(conversation.cache.entries, position, at), position)
        state = conversation.state.fork(position) if _reads_taps(drafter) else None
        return Reused(cache, state, [c for c in conversation.checkpoints if c.position <= position])

    def keep(self, conversation: Conversation) -> None:
        """Keep a conversation in place of those it goes on from, and make room for it."""
        if not conversation.cache.num_tokens or conversation.nbytes > self.max_bytes:
            return
        self._clock += 1
        conversation.used = self._clock
        self._kept = [old for old in self._kept if not _covers(conversation, old)]
        self._kept.append(conversation)
        self.shrink(self.max_bytes)

    def shrink(self, max_bytes: int) -> None:
        """Forget conversations until the others take no more than so many bytes.

        The first to go are those that are short and were not used for long, so that a row of short
        requests does not drive out a long conversation.
        """
        while self._kept and (self.nbytes > max_bytes or len(self._kept) > MOST_CONVERSATIONS):
            self._kept.remove(min(self._kept, key=self._worth))

    def let_go(self, drafter: Drafter) -> None:
        """Nobody has this drafter any more: forget its states, which keep it in memory; texts stay."""
        self._kept = [
            replace(each, drafter=None, state=None) if each.drafter is drafter else each
            for each in self._kept
        ]

    def _worth(self, conversation: Conversation) -> float:
        return len(conversation.tokens) / (self._clock - conversation.used + 1)


def _reads_taps(drafter: Drafter | None) -> bool:
    return drafter is not None and bool(drafter.tap_layers)


def _fits(conversation: Conversation, drafter: Drafter | None) -> bool:
    """States of drafters that read taps are their own; from tokens alone any can be made."""
    return not _reads_taps(drafter) or conversation.drafter is drafter


def _common(left: Tokens, right: Tokens) -> int:
    """How many tokens two texts have in common at their beginning."""
    length = min(len(left), len(right))
    differ = np.flatnonzero(left[:length] != right[:length])
    return int(differ[0]) if len(differ) else length


def _usable(
    conversation: Conversation, longest: int, drafter: Drafter | None
) -> tuple[int, Checkpoint | None] | None:
    """The last position up to `longest` at which everything can be had exactly."""
    cache = conversation.cache
    longest = min(longest, cache.num_tokens)
    points: list[tuple[int, Checkpoint | None]] = [
        (checkpoint.position, checkpoint)
        for checkpoint in conversation.checkpoints
        if checkpoint.position <= longest
    ]
    if longest == cache.num_tokens or can_cut(cache.entries, longest):
        points.append((longest, None))
    for position, at in reversed(points):
        if position < 1:
            break
        if not _reads_taps(drafter) or conversation.state.can_fork(position):
            return position, at
    return None


def _covers(new: Conversation, old: Conversation) -> bool:
    common = _common(new.tokens, old.tokens)
    same_drafter = old.drafter is None or old.drafter is new.drafter
    tail = len(old.tokens) - common
    return same_drafter and tail <= _SHORT_TAIL and 2 * common >= len(old.tokens)


def settle(conversation: Conversation) -> None:
    """Compute what is still lazy, so that no graph and no input of it stays in memory."""
    arrays = conversation.state.arrays if conversation.state else []
    mx.eval(conversation.cache.arrays, arrays)

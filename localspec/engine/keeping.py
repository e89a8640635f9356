"""Which checkpoints a conversation keeps, where its caches cannot be cut at will."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.forks import Checkpoint, checkpoint, needs_checkpoints
from localspec.engine.target import TargetCache

APART = 512
"""Tokens between the places where every prompt has a checkpoint."""
_TAIL = 16
"""Where templates end a prompt otherwise than the history of the next turn, it is in these tokens."""
_MOST = 6


class Keeping:
    """The checkpoints of one conversation while its prompt is read.

    Args:
        cache: its caches.
        made: those that it took over.
        wanted: whether another conversation may go on from them.

    Attributes:
        made: in the order of their positions.
    """

    def __init__(
        self, cache: TargetCache, made: Sequence[Checkpoint] = (), *, wanted: bool
    ) -> None:
        self.made = list(made)
        self._cache = cache
        self._needed = wanted and needs_checkpoints(cache.entries)

    def chunk_end(self, start: int, last: int, chunk: int) -> int:
        """Where a chunk that starts here ends, so that checkpoints can be made where they are due.

        Args:
            last: the prompt's last position to read.
            chunk: tokens to read at most.
        """
        if not self._needed:
            return min(start + chunk, last)
        # At places where another prompt that begins alike has its checkpoints too.
        end = min((start // chunk + 1) * chunk, last)
        return last - _TAIL if start < last - _TAIL < end else end

    def reached(self, position: int, last: int) -> None:
        """Make a checkpoint if one is due; of too many, the one nearest to its neighbours goes."""
        if not self._needed or (position % APART and position < last - _TAIL):
            return
        self.made.append(checkpoint(self._cache.entries, position))
        if len(self.made) > _MOST:
            positions = [0, *(each.position for each in self.made)]
            # The last two are where the next turn goes on.
            gaps = [positions[i + 2] - positions[i] for i in range(len(positions) - 3)]
            del self.made[gaps.index(min(gaps))]

"""Copies of mlx-lm caches that live on their own, cut to fewer positions where that is exact.

Key/value caches can be cut anywhere. A window can be cut until it has dropped rows, recurrent state
never; what they were at chosen positions is kept in `Checkpoint`s. A fork shares its arrays with the
original until one of them writes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from localspec.engine.rollback import leaves

_CUT_ANYWHERE = (KVCache, QuantizedKVCache, ConcatenateKVCache)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The caches that cannot be cut at will, as they were after `position` tokens.

    Attributes:
        leaves: one for each leaf of the cache list; None for those that can be cut anywhere.
    """

    position: int
    leaves: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves if leaf is not None and not leaf.empty())


def needs_checkpoints(entries: list[Any]) -> bool:
    """Whether some cache of the list cannot be cut anywhere."""
    return any(type(leaf) not in _CUT_ANYWHERE for entry in entries for leaf in leaves(entry))


def checkpoint(entries: list[Any], position: int) -> Checkpoint:
    """Remember what could not be had by cutting later."""
    every = [leaf for entry in entries for leaf in leaves(entry)]
    return Checkpoint(
        position, tuple(None if type(leaf) in _CUT_ANYWHERE else _copy(leaf) for leaf in every)
    )


def can_cut(entries: list[Any], position: int) -> bool:
    """Whether every cache, as it is now, can be cut to its first `position` tokens exactly."""
    return all(_can_cut(leaf, position) for entry in entries for leaf in leaves(entry))


def fork(entries: list[Any], position: int, at: Checkpoint | None = None) -> list[Any]:
    """A cache list of its own that holds the first `position` tokens.

    Args:
        entries: a cache list of at least so many tokens; it stays as it is.
        position: at least 1.
        at: a checkpoint at this position; None: every cache can be cut there.
    """
    assert at is None or at.position == position
    kept = iter(at.leaves if at else [None for entry in entries for _ in leaves(entry)])

    def forked(entry: Any) -> Any:
        if type(entry) is CacheList:
            return CacheList(*(forked(cache) for cache in entry.caches))
        own = next(kept)
        return _cut(_copy(entry), position) if own is None else _copy(own)

    return [forked(entry) for entry in entries]


def share(array: mx.array) -> mx.array:
    """Another name for an array's values: writing to one leaves the other as it is."""
    return array[...]


def _copy(leaf: Any) -> Any:
    copied = copy.copy(leaf)
    for name, value in vars(leaf).items():
        setattr(copied, name, _shared(value))
    return copied


def _shared(value: Any) -> Any:
    if isinstance(value, mx.array):
        return share(value)
    if isinstance(value, list | tuple):
        return type(value)(_shared(item) for item in value)
    return value


def _num_tokens(leaf: Any) -> int | None:
    """Tokens a cache has taken in; None where it does not count them."""
    return None if type(leaf) is ArraysCache else int(leaf.offset)


def _can_cut(leaf: Any, position: int) -> bool:
    if type(leaf) in _CUT_ANYWHERE or _num_tokens(leaf) == position:
        return True
    if type(leaf) is RotatingKVCache:
        # Then it has never dropped a row, and its rows are in order.
        return bool(leaf._idx == leaf.offset)
    return type(leaf) is ChunkedKVCache and leaf.start_position == 0


def _cut(leaf: Any, position: int) -> Any:
    held = _num_tokens(leaf)
    if held is None or held == position:
        return leaf
    assert held > position
    leaf.keys, leaf.values = _rows(leaf.keys, position), _rows(leaf.values, position)
    leaf.offset = position
    if type(leaf) is RotatingKVCache:
        leaf._idx = position
    return leaf


def _rows(arrays: Any, count: int) -> Any:
    """The first rows of keys or values; quantised ones are several arrays."""
    if isinstance(arrays, mx.array):
        return arrays[..., :count, :]
    return type(arrays)(array[..., :count, :] for array in arrays)

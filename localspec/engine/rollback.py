"""Returning mlx-lm caches to a committed prefix of the last round, exactly.

Key/value caches drop their last rows. A rotating cache that took several tokens at once holds a full
window besides them, so it drops rows too, wrapped or not. Recurrent state (gated delta net, Mamba, short
convolution) cannot be cut: it is restored from before the round, with any window beside it in the same
layer, and the layers that own it run again over the accepted tokens; MLX being lazy, only what leads to
the state is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

from localspec.errors import ModelRefused

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]

_TRIMMED = (KVCache, QuantizedKVCache, ChunkedKVCache)
_SLICED = (RotatingKVCache, ConcatenateKVCache)


def leaves(entry: Any) -> Iterator[Any]:
    """The caches inside one entry of a model's cache list."""
    if type(entry) is CacheList:
        for cache in entry.caches:
            yield from leaves(cache)
    else:
        yield entry


def check_supported(entries: list[Any], family: str) -> None:
    """Refuse a model with a cache kind that cannot be rolled back exactly.

    Raises:
        ModelRefused: names the family and the cache class.
    """
    for entry in entries:
        for cache in leaves(entry):
            if type(cache) not in (*_TRIMMED, *_SLICED, ArraysCache):
                raise ModelRefused(
                    f"the model family '{family}' uses a {type(cache).__name__}, which localspec "
                    "cannot roll back exactly, so it is not supported"
                )


def check_windows(entries: list[Any], family: str) -> None:
    """Make empty caches refuse, in a forward pass, a mask wider than the window they keep.

    Such a family sees another context one token at a time than several at a time (mlx-lm's plamo3).
    """
    for entry in entries:
        for cache in leaves(entry):
            if type(cache) is RotatingKVCache:
                cache.make_mask = _checked_mask(cache, family)


def _checked_mask(cache: RotatingKVCache, family: str) -> Callable[..., Any]:
    make_mask = cache.make_mask

    def checked(num_tokens: int, window_size: int | None = None, **kwargs: Any) -> Any:
        if (window_size or 0) > cache.max_size:
            raise ModelRefused(
                f"the model family '{family}' attends to {window_size} tokens but keeps "
                f"{cache.max_size}, so its text depends on how many tokens are read at once and "
                "cannot be verified; use another model"
            )
        return make_mask(num_tokens, window_size=window_size, **kwargs)

    return checked


def is_recurrent(entry: Any) -> bool:
    return any(type(cache) is ArraysCache for cache in leaves(entry))


class Snapshot:
    """The recurrent state before a round, and how to return to any point in it.

    Args:
        entries: the model's cache list, before the round's forward pass.
    """

    def __init__(self, entries: list[Any]) -> None:
        self._entries = entries
        self.recurrent = [entry for entry in entries if is_recurrent(entry)]
        self._before = [
            (cache, _state(cache)) for entry in self.recurrent for cache in leaves(entry)
        ]
        self._calls: list[Call] = []

    def keep_calls(self, calls: list[Call]) -> None:
        """Remember the round's calls of the layers that own recurrent state."""
        self._calls = list(calls)

    def rollback(self, num_fed: int, num_kept: int) -> None:
        """Keep the first `num_kept` of the `num_fed` tokens of the round (1 <= kept <= fed)."""
        assert 1 <= num_kept <= num_fed
        if num_kept == num_fed:
            return
        for entry in self._entries:
            if not is_recurrent(entry):
                for cache in leaves(entry):
                    _drop_last(cache, num_fed - num_kept)
        for cache, state in self._before:
            cache.state = state
        for layer, args, kwargs in self._calls:
            layer(
                *(_first_positions(value, num_fed, num_kept) for value in args),
                **{name: _first_positions(v, num_fed, num_kept) for name, v in kwargs.items()},
            )


def _state(cache: Any) -> Any:
    """A cache's state, to be set again after more than one token was added.

    Key/value arrays are kept by reference: new rows land behind the old ones or in new arrays.
    """
    if type(cache) is ArraysCache:
        arrays, left_padding, lengths = cache.state
        return list(arrays), left_padding, lengths
    return cache.state


def _drop_last(cache: Any, count: int) -> None:
    if isinstance(cache, _TRIMMED):
        trimmed = cache.trim(count)
        assert trimmed == count
        return
    length = cache.keys.shape[2] if type(cache) is ConcatenateKVCache else cache._idx
    cache.keys = cache.keys[..., : length - count, :]
    cache.values = cache.values[..., : length - count, :]
    cache.offset -= count
    if type(cache) is RotatingKVCache:
        cache._idx = length - count


def _first_positions(value: Any, num_fed: int, num_kept: int) -> Any:
    """Cut a layer's argument to the kept positions; masks only shape outputs, which are not needed."""
    if not isinstance(value, mx.array):
        return value
    if value.dtype == mx.bool_:
        return None
    if value.ndim >= 3 and value.shape[1] == num_fed:
        return value[:, :num_kept]
    return value

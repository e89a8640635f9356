"""How much memory a generation will take, told before it begins."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, RotatingKVCache

from localspec.engine.auto import Auto
from localspec.engine.machine import memory
from localspec.engine.rollback import leaves
from localspec.engine.target import Target
from localspec.models.drafter import Drafter

_SHARE_ON_CPU = 0.8
_ACTIVATIONS = 256 * 2**20
"""For what a chunk of a prompt computes on its way, and for buffers that grow by copying."""
_ROWS = 256


class Footprint(NamedTuple):
    """Bytes that grow with the tokens of a generation, up to a window or without end.

    Attributes:
        per_token: bytes a token, for ever.
        windows: bytes a token and most tokens, of each kind of window.
        fixed: bytes whatever is said.
    """

    per_token: float
    windows: tuple[tuple[float, int], ...]
    fixed: int

    def nbytes(self, num_tokens: int) -> int:
        """Of a generation whose prompt and answer have so many tokens."""
        windows = sum(size * min(num_tokens, most) for size, most in self.windows)
        return int(self.per_token * (num_tokens + _ROWS) + windows) + self.fixed


def footprint(target: Target, drafter: Drafter | None) -> Footprint:
    """Measured on arrays that are laid out but never computed."""
    cache = target.new_cache()
    target.forward(mx.zeros((1, 2), dtype=mx.int32), cache, rows=1)
    per_token, windows, fixed = _growth(target, drafter), [], _ACTIVATIONS
    for entry in cache.entries:
        for leaf in leaves(entry):
            if type(leaf) is ArraysCache:
                fixed += leaf.nbytes
                continue
            size = _row_nbytes(leaf)
            if type(leaf) is RotatingKVCache:
                windows.append((size, leaf.max_size + _ROWS))
            elif type(leaf) is ChunkedKVCache:
                windows.append((size, 2 * leaf.chunk_size))
            else:
                per_token += size
    return Footprint(per_token, tuple(windows), fixed)


def weights(target: Target, drafter: Drafter | None) -> int:
    """Bytes of the weights of a target with a drafter."""
    drafters = [drafter]
    if isinstance(drafter, Auto):
        drafters = [drafter.drafter(name) for name in drafter.names]
    modules = [each for each in drafters if isinstance(each, nn.Module)]
    flat: list[dict[str, mx.array]] = [dict(tree_flatten(each.parameters())) for each in modules]
    return target.nbytes + sum(array.nbytes for each in flat for array in each.values())


def room() -> int:
    """Bytes that generations may take: of the device's memory, less what is taken by weights."""
    if mx.default_device() == mx.Device(mx.cpu):
        limit = int(_SHARE_ON_CPU * memory())
    else:
        limit = int(mx.device_info()["max_recommended_working_set_size"])
    return max(0, limit - mx.get_active_memory())


def _row_nbytes(leaf: Any) -> float:
    arrays = [*_flat(leaf.keys), *_flat(leaf.values)]
    return float(sum(array.nbytes / array.shape[-2] for array in arrays))


def _flat(arrays: Any) -> list[mx.array]:
    return [arrays] if isinstance(arrays, mx.array) else list(arrays)


def _growth(target: Target, drafter: Drafter | None) -> float:
    """Bytes a token that a drafter's state grows by."""
    if drafter is None or not drafter.tap_layers:
        return 0.0
    sizes = []
    for count in (1, 1 + _ROWS):
        state = drafter.new_state()
        taps = mx.zeros((1, count, len(drafter.tap_layers), target.hidden_size))
        drafter.observe(state, mx.zeros((1, count), dtype=mx.int32), taps)
        sizes.append(sum(array.nbytes for array in state.arrays))
    return float(sizes[1] - sizes[0]) / _ROWS

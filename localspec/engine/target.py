"""The target: an mlx-lm model with taps, rows on demand, and caches that roll back.

Token ids in, logits out; knows nothing of text, sampling or drafters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from localspec.engine.hooks import Hooks
from localspec.engine.rollback import Snapshot, check_supported, check_windows, is_recurrent
from localspec.errors import ModelRefused


class Output(NamedTuple):
    """Of one forward pass: logits [B, rows, V]; taps [B, n, T, D] or None."""

    logits: mx.array
    taps: mx.array | None


@dataclass(slots=True)
class TargetCache:
    """What the target remembers of one request.

    Attributes:
        entries: mlx-lm's cache list.
        num_tokens: positions in the cache.
    """

    entries: list[Any]
    num_tokens: int = 0
    _snapshot: Snapshot | None = None
    _num_fed: int = 0

    @property
    def arrays(self) -> list[Any]:
        """All device state, for `mx.eval`."""
        return [entry.state for entry in self.entries]

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries if not entry.empty())


class Target:
    """A causal language model loaded by mlx-lm.

    Args:
        model: an mlx-lm `Model`; its modules' classes are changed (see `hooks`).
        context_length: most positions that the model was made for.

    Raises:
        ModelRefused: the family cannot be tapped, cut to rows, or rolled back exactly.
    """

    def __init__(self, model: nn.Module, *, context_length: int = 2**31) -> None:
        self.context_length = context_length
        self.family = str(getattr(model, "model_type", type(model).__name__))
        self._hooks = Hooks(model)
        self.num_layers = self._hooks.num_layers
        self._probe()

    def new_cache(self) -> TargetCache:
        return TargetCache(make_prompt_cache(self._hooks.model))

    def forward(
        self,
        tokens: mx.array,
        cache: TargetCache,
        *,
        taps: tuple[int, ...] = (),
        rows: int | None = None,
    ) -> Output:
        """Run new tokens [B, n] that will all stay; the cache grows by n.

        Args:
            taps: states to return: layer outputs 0..L-1, -1 embeddings, L after the final norm.
            rows: logits for only the last `rows` positions; None: for all.
        """
        cache.num_tokens += tokens.shape[1]
        return Output(*self._hooks.run(tokens, cache.entries, taps=taps, rows=rows))

    def verify(self, tokens: mx.array, cache: TargetCache, *, taps: tuple[int, ...] = ()) -> Output:
        """Run the anchor and the drafts [B, 1+w]; `rollback` decides what stays of them."""
        snapshot = Snapshot(cache.entries)
        cache._snapshot, cache._num_fed = snapshot, tokens.shape[1]
        cache.num_tokens += tokens.shape[1]
        output = Output(
            *self._hooks.run(tokens, cache.entries, taps=taps, record=snapshot.recurrent)
        )
        snapshot.keep_calls(self._hooks.calls)
        return output

    def rollback(self, cache: TargetCache, *, to: int) -> None:
        """Keep the first `to` tokens of the last `verify`, the anchor counted; at least 1."""
        assert cache._snapshot is not None, "rollback follows verify"
        cache._snapshot.rollback(cache._num_fed, to)
        cache.num_tokens -= cache._num_fed - to
        cache._snapshot = None

    def embed(self, tokens: mx.array) -> mx.array:
        """Rows of the embedding table, unscaled: [...] int -> [..., D]."""
        rows: mx.array = self._hooks.embedding(tokens)
        return rows

    def head(self, hidden: mx.array) -> mx.array:
        """The target's own head on states after the final norm: [B, n, D] -> [B, n, V]."""
        return self._hooks.head(hidden)

    @property
    def model(self) -> nn.Module:
        return self._hooks.model

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(array.nbytes for array in dict(tree_flatten(self.model.parameters())).values())

    def _probe(self) -> None:
        """Try every part once on two tokens, so that what cannot work is refused at loading."""
        cache = self.new_cache()
        check_supported(cache.entries, self.family)
        check_windows(cache.entries, self.family)
        tokens = mx.zeros((1, 2), dtype=mx.int32)
        try:
            every = (-1, *range(self.num_layers + 1))
            logits, taps = self._hooks.run(
                tokens, cache.entries, taps=every, rows=1, record=cache.entries
            )
            assert taps is not None
            calls = list(self._hooks.calls)
            again = self.head(taps[:, -1:, -1])
            trial = self.new_cache()
            self.verify(tokens, trial)
            self.rollback(trial, to=1)
            mx.eval(trial.arrays)
        except ModelRefused:
            raise
        except Exception as error:
            raise ModelRefused(
                f"the model family '{self.family}' cannot be tapped or rolled back: {error}"
            ) from error
        owned = {id(value) for _, args, kwargs in calls for value in (*args, *kwargs.values())}
        if any(is_recurrent(entry) and id(entry) not in owned for entry in cache.entries):
            raise ModelRefused(
                f"the model family '{self.family}' keeps recurrent state outside its layers, which "
                "localspec cannot roll back exactly, so it is not supported"
            )
        if logits.shape[1] != 1 or not bool(mx.allclose(logits, again, rtol=1e-2, atol=1e-2)):
            raise ModelRefused(
                f"the model family '{self.family}' computes its logits outside its head, so it "
                "cannot be verified; use another model"
            )
        self.hidden_size = int(taps.shape[-1])
        self.vocab_size = int(logits.shape[-1])

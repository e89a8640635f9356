"""Hooks on an mlx-lm model: layer outputs, the rows that reach the head, and replayable layer calls.

Works on any model whose decoder layers sit in a list inside one *body* module that returns the state
after the final norm; the model's own code around the body (head, soft-caps, scales) runs unchanged. The
hooks change the classes of the model's modules, not its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from localspec.errors import ModelRefused

_EMBEDDINGS = (
    "embed_tokens",
    "embeddings",
    "embedding",
    "embed",
    "embed_in",
    "wte",
    "word_embeddings",
    "tok_embeddings",
    "token_embeddings",
)


class Hooks:
    """Installed once on a model; `run` is one forward pass.

    Attributes:
        num_layers: decoder layers, L.
        body: the module around the layers whose output goes to the head.
        embedding: its table of token embeddings.
        calls: (layer, args, kwargs) of the layers that were given a cache in `record`, last pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._layers: Sequence[nn.Module] = list(model.layers)
        self.num_layers = len(self._layers)
        self.body, self.embedding = _find_body(model, self._layers[0])
        self.calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        self._wanted: frozenset[int] = frozenset()
        self._captured: dict[int, mx.array] = {}
        self._rows: int | None = None
        self._injected: mx.array | None = None
        self._record: list[Any] = []
        for index, layer in enumerate(self._layers):
            _hook(layer, self._layer_call(index))
        _hook(self.body, self._body_call)

    def run(
        self,
        tokens: mx.array,
        cache: list[Any],
        *,
        taps: tuple[int, ...] = (),
        rows: int | None = None,
        record: Sequence[Any] = (),
    ) -> tuple[mx.array, mx.array | None]:
        """One forward pass over new tokens.

        Args:
            tokens: [B, n] int.
            cache: mlx-lm cache entries; advanced by n.
            taps: layer outputs to return (-1: embeddings, L: after the final norm).
            rows: pass only the last `rows` positions to the head; None: all.
            record: cache entries whose layers' calls are kept in `calls`.

        Returns:
            logits [B, rows, V] and taps [B, n, T, D] (None when none are asked for).
        """
        self._wanted, self._rows, self._record = frozenset(taps), rows, list(record)
        self._captured.clear()
        self.calls.clear()
        logits = self.model(tokens, cache=cache)
        stacked = self._stack(taps) if taps else None
        self._captured.clear()
        return logits, stacked

    def head(self, hidden: mx.array) -> mx.array:
        """The model's own head on states after the final norm: [B, n, D] -> [B, n, V]."""
        self._injected = hidden
        try:
            logits: mx.array = self.model(mx.zeros(hidden.shape[:2], dtype=mx.int32))
            return logits
        finally:
            self._injected = None

    def _stack(self, taps: tuple[int, ...]) -> mx.array:
        if self._wanted - self._captured.keys():
            raise ModelRefused(
                f"the model family '{_family(self.model)}' does not call its layers one by one, so "
                "their outputs cannot be read; use another model"
            )
        states = [self._captured[tap] for tap in taps]
        if any(state.shape != states[0].shape for state in states):
            raise ModelRefused(
                f"the model family '{_family(self.model)}' does not pass one state from its "
                "embeddings through its layers to its head, so it cannot be verified; use another "
                "model"
            )
        return mx.stack(states, axis=2)

    def _layer_call(self, index: int) -> Callable[..., Any]:
        def call(plain: Callable[..., Any], layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if index == 0 and -1 in self._wanted:
                # A family that loops over its layers comes by again with other states.
                self._captured.setdefault(-1, (*args, *kwargs.values())[0])
            if self._record and any(
                value is entry for entry in self._record for value in (*args, *kwargs.values())
            ):
                self.calls.append((layer, args, kwargs))
            out = plain(layer, *args, **kwargs)
            if index in self._wanted:
                self._captured[index] = out[0] if isinstance(out, tuple) else out
            return out

        return call

    def _body_call(
        self, plain: Callable[..., Any], body: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        if self._injected is not None:
            return self._injected
        hidden = plain(body, *args, **kwargs)
        if self.num_layers in self._wanted:
            self._captured[self.num_layers] = hidden
        return hidden if self._rows is None else hidden[:, -self._rows :]


def _hook(module: nn.Module, call: Callable[..., Any]) -> None:
    """Route `module(...)` through `call(plain, module, ...)` by giving it a subclass of its class."""
    cls = type(module)
    plain = cls.__call__

    def hooked(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call(plain, self, *args, **kwargs)

    module.__class__ = type(
        cls.__name__, (cls,), {"__call__": hooked, "__module__": cls.__module__}
    )


def _find_body(model: nn.Module, layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The innermost module that holds both the layers and the token embeddings; and the latter."""
    modules = dict(model.named_modules())
    path = next((name for name, module in modules.items() if module is layer), "")
    while "." in path:
        path = path.rpartition(".")[0]
        body = modules.get(path)
        embedding = None if body is None else _find_embedding(body)
        if body is not None and embedding is not None:
            return body, embedding
    raise ModelRefused(
        f"the model family '{_family(model)}' keeps its layers or its embeddings where localspec "
        "cannot reach them, so it cannot be verified; use another model"
    )


def _find_embedding(body: nn.Module) -> nn.Module | None:
    tables = {
        path.rpartition(".")[2]: module
        for path, module in body.named_modules()
        if isinstance(module, nn.Embedding | nn.QuantizedEmbedding)
    }
    return next((tables[name] for name in _EMBEDDINGS if name in tables), None)


def _family(model: nn.Module) -> str:
    return str(getattr(model, "model_type", type(model).__name__))

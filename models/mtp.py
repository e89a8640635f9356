"""MTP (DeepSeek-V3, arXiv 2412.19437): a module for the token after next, from the last state.

Covers AngelSpec's, Qwen3-Next's and 3.5's, GLM-4.5's, DeepSeek-V3's, MiMo's and Hy3's, which ship
with or for a target and differ in names alone once their configuration is said.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from localspec.models.chain import ChainDrafter
from localspec.models.config import DrafterConfig
from localspec.models.drafter import TargetView


class Model(ChainDrafter):
    """Both halves of a pair are normed, then projected to one."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = nn.RMSNorm(size, eps=eps)
        self.hnorm = nn.RMSNorm(size, eps=eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self._taps: tuple[int, ...] = ()

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The target's last state, after its final norm or before; empty until `bind`."""
        return self._taps

    def bind(self, target: TargetView) -> None:
        super().bind(target)
        self._taps = (target.num_layers - (not self.chain.target_normed),)

    def target_states(self, taps: mx.array) -> mx.array:
        """The one tap."""
        return taps[:, :, 0]

    def fuse(self, embeddings: mx.array, states: mx.array) -> tuple[mx.array, mx.array]:
        """eh_proj([norm(embedding); norm(state)]) is the residual, and normed the input."""
        both = mx.concatenate([self.enorm(embeddings), self.hnorm(states)], axis=-1)
        residual = self.eh_proj(both)
        (layer,) = self.layers
        return layer.input_layernorm(residual), residual

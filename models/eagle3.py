"""EAGLE-3 (SafeAILab/EAGLE, arXiv 2503.01840): one layer over [embedding; projected taps]."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from localspec.models.block import flatten_taps
from localspec.models.chain import ChainDrafter
from localspec.models.config import DrafterConfig


class Model(ChainDrafter):
    """The layer has a norm for each half of its input; `fc` is for the target's states alone."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config, input_size=2 * config.hidden_size)
        size, eps, num_taps = config.hidden_size, config.rms_norm_eps, len(config.tap_layers)
        (layer,) = self.layers
        layer.hidden_norm = nn.RMSNorm(size, eps=eps)
        self.fc = nn.Linear(num_taps * config.target_hidden_size, size, bias=False)
        if self.chain.tap_norm == "each":
            self.fc_norm = [nn.RMSNorm(config.target_hidden_size, eps=eps) for _ in range(num_taps)]
        elif self.chain.tap_norm == "all":
            self.input_norm = nn.RMSNorm(num_taps * config.target_hidden_size, eps=eps)

    def target_states(self, taps: mx.array) -> mx.array:
        """fc over the taps, normed each or all together where the drafter has it so."""
        if self.chain.tap_norm == "each":
            normed = [norm(taps[:, :, tap]) for tap, norm in enumerate(self.fc_norm)]
            taps = mx.stack(normed, axis=2)
        flat = flatten_taps(taps)
        if self.chain.tap_norm == "all":
            flat = self.input_norm(flat)
        return self.fc(flat)

    def fuse(self, embeddings: mx.array, states: mx.array) -> tuple[mx.array, mx.array]:
        """[norm(embedding); norm(state)]; the residual is the state, normed or not."""
        (layer,) = self.layers
        normed = layer.hidden_norm(states)
        fused = mx.concatenate([layer.input_layernorm(embeddings), normed], axis=-1)
        return fused, normed if self.chain.norm_before_residual else states

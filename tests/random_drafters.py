"""Drafters of every architecture with random weights, for any target; and ways to spoil or help them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from test_models_drafters import block, config, random_tensors

from localspec.models.config import (
    ChainConfig,
    ConfidenceConfig,
    DrafterConfig,
    LayerConfig,
    MarkovConfig,
    QuantizationConfig,
)
from localspec.models.drafter import Drafter, Draw, Proposal, TargetView
from localspec.models.load import quantize, with_tensors

BLOCKS = ("dflash", "dflare", "dspark", "dfly")
CHAINS = ("eagle3", "eagle3-reduced", "mtp")
ALL = (*BLOCKS, *CHAINS)


def random_drafter(
    architecture: str,
    target: TargetView,
    *,
    layers: int = 1,
    bits: int | None = None,
    seed: int = 0,
) -> Drafter:
    """A small drafter that fits a target, bound to it.

    Args:
        architecture: one of `ALL`; `eagle3-reduced` has half of the target's vocabulary.
        layers: of a block drafter; the others have one.
        bits: quantise its large matrices.
    """
    shape = _config(architecture, target, layers)
    tensors = random_tensors(shape, seed)
    if "d2t" in tensors:
        # Draft id j is target id 2j.
        tensors["d2t"] = mx.arange(shape.draft_vocab_size, dtype=mx.int32)
    if bits:
        shape, tensors = quantize(shape, tensors, QuantizationConfig(bits, 32))
        assert any(name.endswith(".scales") for name in tensors)
    made = with_tensors(shape, tensors, "random weights")
    mx.eval(made.parameters())
    made.bind(target)
    return made


def _config(architecture: str, target: TargetView, layers: int) -> DrafterConfig:
    size, vocab = target.hidden_size, target.vocab_size
    last = target.num_layers - 2
    values: dict[str, Any] = {
        "hidden_size": size,
        "intermediate_size": 64,
        "num_layers": 1,
        "vocab_size": vocab,
        "draft_vocab_size": vocab,
        "target_hidden_size": size,
        "target_layers": target.num_layers,
        "tap_layers": tuple(sorted({-1, last // 2, last})),
    }
    kind, _, reduced = architecture.partition("-")
    if kind == "mtp":
        return config(kind, **values | {"tap_layers": ()}, chain=ChainConfig(feed_normed=True))
    if kind == "eagle3":
        if reduced:
            values |= {"draft_vocab_size": vocab // 2, "own_head": True}
        return config(kind, **values, chain=ChainConfig(feed_normed=False))
    # A window on one layer of several: the drafter's cache then drops rows, as the target's do.
    windows = (LayerConfig(False, 16), *[LayerConfig()] * (layers - 1))
    shape = block(mask_token_id=vocab - 1, layers=windows if layers > 1 else (LayerConfig(),))
    if kind == "dspark":
        confidence = ConfidenceConfig(with_markov=True, bias=True)
        shape = replace(shape, markov=MarkovConfig("vanilla", 8), confidence=confidence)
    if kind == "dfly":
        shape = replace(shape, correction_size=64)
    return config(kind, **values | {"num_layers": layers}, block=shape)


class Wrapped:
    """A drafter whose proposals can be tampered with; all else is its own."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.tap_layers = drafter.tap_layers
        self.max_width = drafter.max_width

    def bind(self, target: TargetView) -> None:
        self._drafter.bind(target)

    def new_state(self) -> Any:
        return self._drafter.new_state()

    def observe(self, state: Any, next_tokens: mx.array, taps: mx.array | None) -> None:
        self._drafter.observe(state, next_tokens, taps)

    def propose(self, state: Any, anchor: mx.array, width: int, draw: Draw) -> Proposal | None:
        return self._drafter.propose(state, anchor, width, draw)


class Helped(Wrapped):
    """Certain drafts of which a random number, the first ones, are made right.

    Args:
        text: prompt and continuation, as plain decoding writes them.
        seed: decides how many.
    """

    def __init__(self, drafter: Drafter, text: Sequence[int], seed: int = 0) -> None:
        super().__init__(drafter)
        self._text = list(text)
        self._rng = np.random.default_rng(seed)

    def propose(self, state: Any, anchor: mx.array, width: int, draw: Draw) -> Proposal | None:
        proposal = super().propose(state, anchor, width, draw)
        if proposal is None:
            return None
        assert proposal.q is None
        # Position p was observed with the token at p+1; the anchor is the last of those.
        start = state.position + 1
        right = self._text[start : start + self._num_right(width)]
        known = mx.array([right], dtype=mx.int32).reshape(1, -1)
        tokens = mx.concatenate([known, proposal.tokens[:, len(right) :]], axis=1)
        return replace(proposal, tokens=tokens)

    def _num_right(self, width: int) -> int:
        return int(self._rng.integers(0, width + 1))


class Misreporting(Wrapped):
    """A planted mistake: drafts drawn at half the temperature of the q that is reported."""

    def propose(self, state: Any, anchor: mx.array, width: int, draw: Draw) -> Proposal | None:
        def wrong(logits: mx.array) -> tuple[mx.array, mx.array | None]:
            drawn, _ = draw(2 * logits)
            return drawn, draw(logits)[1]

        return super().propose(state, anchor, width, wrong)

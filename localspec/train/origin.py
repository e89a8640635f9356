"""A trained drafter to go on from: of the same architecture, for a target of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from localspec.converters.foreign import TargetFacts
from localspec.drafter_catalog import resolve_drafter
from localspec.engine.drafters import AUTO, NGRAM, NONE
from localspec.engine.target import Target
from localspec.errors import UsageError
from localspec.models import load as drafters
from localspec.models.block import BlockDrafter
from localspec.models.chain import ChainDrafter
from localspec.models.config import Architecture, DrafterConfig
from localspec.train.card import Card, read_card
from localspec.train.start import default_taps


@dataclass(frozen=True, slots=True)
class Origin:
    """A trained drafter, unquantised.

    Attributes:
        config: of it, without quantisation.
        weights: by name, in float32.
        card: how it was trained.
    """

    config: DrafterConfig
    weights: Mapping[str, mx.array]
    card: Card

    @property
    def summary(self) -> dict[str, object]:
        """For the card of what is made of it."""
        return {"command": self.card.command, "tokens": self.card.tokens}

    @property
    def reduced_ids(self) -> np.ndarray | None:
        """Tokens that its own reduced head has rows for, ascending: int64 [K]; None: it has none."""
        if "d2t" not in self.weights:
            return None
        offsets = np.array(self.weights["d2t"], dtype=np.int64)
        return offsets + np.arange(offsets.size)

    def drafter(self, target: Target) -> BlockDrafter | ChainDrafter:
        """Bound to its target, its weights to be trained."""
        drafter = drafters.build(self.config)
        drafter.bind(target)
        drafter.load_weights(list(self.weights.items()))
        mx.eval(drafter.parameters())
        return drafter


def read_origin(name: str, architecture: Architecture, target: Target) -> Origin:
    """The drafter of a name.

    Args:
        name: a bundled one's, or a folder.

    Raises:
        ModelNotFound: nothing has that name.
        CheckpointRefused: it cannot be read.
        DrafterMismatch: it was made for a target of another shape.
        UsageError: it is of another architecture, or was not trained by localspec.
    """
    if name in ("", NONE, NGRAM, AUTO):
        raise UsageError(f"'{name}' was not trained; give a bundled drafter's name or a folder")
    facts = TargetFacts(target.hidden_size, target.vocab_size, target.num_layers)
    folder = resolve_drafter(name, target=facts)
    card = read_card(folder)
    if card is None:
        raise UsageError(f"{name} was not trained by localspec, which goes on from its own alone")
    config = drafters.load_config(folder)
    if config.architecture != architecture:
        raise UsageError(
            f"{name} is a drafter of the kind {config.architecture}, not {architecture}"
        )
    drafter = drafters.load(folder)
    drafter.bind(target)  # refuses a target of another shape
    if config.tap_layers not in ((), default_taps(target)):
        raise UsageError(f"{name} reads other layers than a new drafter of this target would")
    return Origin(replace(config, quantization=None), _dequantized(drafter, config), card)


def _dequantized(
    drafter: BlockDrafter | ChainDrafter, config: DrafterConfig
) -> dict[str, mx.array]:
    stored: dict[str, mx.array] = dict(tree_flatten(drafter.parameters()))
    weights = {}
    for name, array in stored.items():
        path, _, leaf = name.rpartition(".")
        if leaf in ("scales", "biases"):
            continue
        if (scales := stored.get(f"{path}.scales")) is not None:
            assert config.quantization is not None
            array = mx.dequantize(
                array,
                scales,
                stored[f"{path}.biases"],
                config.quantization.group_size,
                config.quantization.bits,
            )
        floating = mx.issubdtype(array.dtype, mx.floating)
        weights[name] = array.astype(mx.float32) if floating else array
    return weights

"""From a folder to a `Target`: mlx-lm's loader, then the precision that suits the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model

from localspec.engine.precision import to_float32, to_one_float
from localspec.engine.target import Target
from localspec.errors import ModelRefused

_DEFAULT_CONTEXT = 4096


def load_target(folder: Path) -> Target:
    """Load any causal model that mlx-lm loads.

    On Metal the weights stay as they are stored. On the CPU, whose 16-bit and quantised kernels are
    slow, they become float32, quantised ones too.

    Raises:
        ModelRefused: mlx-lm cannot load the folder, or the family cannot be verified.
    """
    try:
        model, config = load_model(folder, lazy=True)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ModelRefused(f"{folder} cannot be loaded as a model: {reason}") from error
    if mx.default_device() == mx.Device(mx.cpu):
        to_float32(model)
    else:
        to_one_float(model)
    mx.eval(model.parameters())
    return Target(model, context_length=context_length(config))


def context_length(config: dict[str, Any]) -> int:
    """Positions that the model was made for, by its config.json (nested text configs included)."""
    for part in (config, config.get("text_config", {})):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length"):
            value = part.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return _DEFAULT_CONTEXT

"""The precision that suits a device: float32 on the CPU, the stored weights' own on Metal."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear


def to_float32(model: nn.Module) -> None:
    """Turn every quantised layer into its plain float32 form and all other floats to float32, in place.

    The layers go one at a time, so that the peak is the float32 model and one layer. Scales and
    biases become float32 before they are multiplied, so nothing is rounded on the way.
    """
    plain_of: dict[int, nn.Module] = {}
    for path, layer in list(model.named_modules()):
        if type(layer) not in (
            nn.QuantizedLinear,
            nn.QuantizedEmbedding,
            QuantizedSwitchLinear,
            QuantizedMultiLinear,
        ):
            continue
        # A layer that two paths share stays shared.
        if id(layer) not in plain_of:
            plain_of[id(layer)] = _plain(layer)
            layer.clear()
        model.update_modules(tree_unflatten([(path, plain_of[id(layer)])]))
    _cast(model, mx.float32)


def to_one_float(model: nn.Module) -> None:
    """Give the floats of a mixed model the type of its quantisation scales, in place.

    A float32 norm between 16-bit layers makes every later activation float32, which Metal's 16-bit
    kernels then have to convert. Nothing changes where no layer is quantised to 16-bit scales.
    """
    scales = [
        value.dtype
        for name, value in _arrays(model)
        if name.endswith(".scales") and value.dtype in (mx.float16, mx.bfloat16)
    ]
    if not scales or len(set(scales)) > 1:
        return
    _cast(model, scales[0], only=mx.float32)


def _arrays(model: nn.Module) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def _plain(layer: Any) -> nn.Module:
    """The float32 layer that a quantised one stands for, evaluated."""
    plain: nn.Module
    if isinstance(layer, nn.QuantizedEmbedding):
        plain = nn.Embedding(1, 1)
    elif isinstance(layer, QuantizedSwitchLinear):
        plain = SwitchLinear(1, 1, 1, bias=False)
    elif isinstance(layer, QuantizedMultiLinear):
        plain = MultiLinear(1, 1, 1)
    else:
        plain = nn.Linear(1, 1, bias=False)
    plain.weight = _dequantised(layer)
    if "bias" in layer:
        plain.bias = layer.bias.astype(mx.float32)
    plain.freeze()
    mx.eval(plain.parameters())
    return plain


def _dequantised(layer: Any) -> mx.array:
    scales, biases = layer.scales, layer.get("biases")
    if layer.mode == "affine":
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)

    def dequantised(
        weight: mx.array, scales: mx.array, biases: mx.array | None, global_scale: mx.array | None
    ) -> mx.array:
        return mx.dequantize(
            weight,
            scales,
            biases,
            group_size=layer.group_size,
            bits=layer.bits,
            mode=layer.mode,
            global_scale=global_scale,
            dtype=mx.float32,
        )

    global_scale = layer.get("global_scale")
    if global_scale is None:
        return dequantised(layer.weight, scales, biases, None)
    # Each expert has a scale of its own.
    experts = range(layer.weight.shape[0])
    return mx.stack(
        [dequantised(layer.weight[e], scales[e], None, global_scale[e]) for e in experts]
    )


def _cast(model: nn.Module, dtype: mx.Dtype, only: mx.Dtype | None = None) -> None:
    """Cast all floating parameters (or those of type `only`), evaluating one at a time."""

    def converted(value: mx.array) -> mx.array:
        if only is None:
            return value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
        return value.astype(dtype) if value.dtype == only else value

    model.update(tree_map(converted, model.parameters()))
    for _, value in _arrays(model):
        mx.eval(value)

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear

from localspec.engine.precision import to_float32, to_one_float


class Layers(nn.Module):
    """One layer of each kind that mlx-lm quantises, and parameters of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(0)
        self.embed = nn.Embedding(10, 64)
        self.blocks = [{"linear": nn.Linear(64, 64), "norm": nn.RMSNorm(64)} for _ in range(2)]
        self.experts = SwitchLinear(64, 32, 3, bias=True)
        self.heads = MultiLinear(64, 32, 4)
        self.scale = mx.array([0.5], mx.bfloat16)
        self.table = mx.array([1, 2], mx.int32)

    def __call__(self, ids: mx.array) -> mx.array:
        x = self.embed(ids)
        for block in self.blocks:
            x = block["norm"](block["linear"](x)) * self.scale
        routed = self.experts(x[:, None, None, :], mx.array([[0, 2]] * len(ids)))
        heads = self.heads(mx.broadcast_to(x, (4, *x.shape))).swapaxes(0, 1)
        parts = [self.embed.as_linear(x), routed, heads]
        return mx.concatenate([part.reshape(len(ids), -1) for part in parts], axis=-1)


def dtypes(model: nn.Module) -> set[Any]:
    return {value.dtype for _, value in tree_flatten(model.parameters())}


@pytest.mark.parametrize(
    "quantisation",
    [
        {"group_size": 32, "bits": 4},
        {"group_size": 64, "bits": 8},
        {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    ],
    ids=str,
)
def test_every_layer_becomes_plain_and_computes_the_same(quantisation: dict[str, Any]) -> None:
    model = Layers()
    nn.quantize(model, **quantisation)
    ids = mx.array([1, 7, 3])
    before = model(ids)
    to_float32(model)
    assert dtypes(model) == {mx.float32, mx.int32}
    assert not any("scales" in name for name, _ in tree_flatten(model.parameters()))
    assert isinstance(model.blocks[1]["linear"], nn.Linear)
    assert isinstance(model.experts, SwitchLinear)
    # An mxfp4 embedding gives bfloat16, so the first result was rounded to it.
    tolerance = 1e-2 if "mode" in quantisation else 1e-4
    assert mx.allclose(model(ids), before, rtol=tolerance, atol=tolerance)


def test_scales_become_float32_before_they_multiply() -> None:
    model = nn.Sequential(nn.Linear(64, 8, bias=False))
    model.set_dtype(mx.float16)
    nn.quantize(model, group_size=32, bits=4)
    layer = model.layers[0]
    expected = mx.dequantize(
        layer.weight,
        layer.scales.astype(mx.float32),
        layer.biases.astype(mx.float32),
        group_size=32,
        bits=4,
    )
    mx.eval(expected)
    to_float32(model)
    assert mx.array_equal(model.layers[0].weight, expected)
    assert not mx.array_equal(expected, expected.astype(mx.float16))


def test_a_shared_layer_stays_shared() -> None:
    shared = nn.Linear(64, 64)
    model = nn.Sequential(shared, shared)
    nn.quantize(model, group_size=32, bits=4)
    model.layers[1] = model.layers[0]
    to_float32(model)
    assert isinstance(model.layers[0], nn.Linear)
    assert model.layers[0] is model.layers[1]


def test_one_float_type_for_a_mixed_model() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64))
    model.layers[0].set_dtype(mx.float16)
    nn.quantize(model, group_size=32, bits=4)
    to_one_float(model)
    assert dtypes(model) == {mx.float16, mx.uint32}


def test_a_model_without_scales_keeps_its_types() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64))
    model.layers[0].set_dtype(mx.bfloat16)
    to_one_float(model)
    assert dtypes(model) == {mx.bfloat16, mx.float32}

"""Drafters as folders: build from a configuration, load, save, quantise.

Knows nothing of foreign checkpoints; `localspec.converters` turns those into such folders.

A drafter is a folder with `config.json` (this, as JSON) and `model.safetensors`. Its tensors, as
[out, in] like PyTorch's and MLX's (n draft layers, T taps, D and Dt the drafter's and the target's
hidden size, H and Hkv heads of hd, I the MLP's width, V and Vd vocabularies, r the Markov rank, E
experts; norms are plain w * x, so zero-centred ones are stored plus one):

    norm.weight [D]                  before the head
    embed_tokens.weight [V, D]       own_embedding; else the target's is used
    lm_head.weight [Vd, D]           own_head; else the target's is used
    d2t [Vd] int32                   draft_vocab_size < vocab_size: target id = j + d2t[j]
    layers.N.input_layernorm.weight, .post_attention_layernorm.weight [D]
    layers.N.self_attn.q_proj.weight [H*hd, D], k_proj, v_proj [Hkv*hd, D], o_proj [D, H*hd]
    layers.N.self_attn.{q,k,v}_proj.bias, o_proj.bias    qkv_bias; o_bias
    layers.N.self_attn.{q,k}_norm.weight [hd]            qk_norm
    layers.N.mlp.{gate,up}_proj.weight [I, D], down_proj [D, I]

    dflash, dspark, dfly: fc.weight [D, T*Dt], hidden_norm.weight [D]
    dflare: hidden_norm.weight [Dt], layers.N.self_attn.{k,v}_proj_target.weight [Hkv*hd, Dt] and
        .bias (qkv_bias)
    dflare, dfly: layer_fusion_weights [n, T]
    dspark, block.markov: markov_head.markov_w1.weight [V, r], markov_head.markov_w2.weight [Vd, r];
        gated: markov_head.gate_proj.weight [r, D+r], .bias [r];
        rnn: markov_head.joint_proj.weight [3r, 2r+D], .bias [3r]
    dspark, block.confidence: confidence_head.proj.weight [1, D] or [1, D+r], .bias [1]
    dfly: hidden_correction.{hidden_norm,embed_norm}.weight [D], hidden_correction.{gate,up}_proj
        .weight [Ic, 2D], hidden_correction.down_proj.weight [D, Ic]; Ic = block.correction_size
    eagle3: fc.weight [D, T*Dt], layers.0.hidden_norm.weight [D]; q, k, v over [embedding; hidden],
        [.., 2D]; chain.tap_norm each: fc_norm.I.weight [Dt]; all: input_norm.weight [T*Dt]
    mtp: enorm.weight, hnorm.weight [D], eh_proj.weight [D, 2D] over [embedding; hidden];
        chain.gated_attention: q_proj [2*H*hd, D], a head's query before its gate
    mtp, chain.mixture, in layers.0.mlp: gate.weight [E, D], expert_bias [E],
        switch_mlp.{gate,up}_proj.weight [E, I, D], switch_mlp.down_proj.weight [E, D, I],
        shared_expert.{gate,up,down}_proj.weight, shared_expert_gate.weight [1, D]
    eagle3, mtp, chain.latent, in layers.0.self_attn: q_a_proj, q_a_layernorm, q_b_proj (q_proj
        without q_rank), kv_a_proj_with_mqa, kv_a_layernorm, o_proj, as DeepSeek names them; of its
        kv_b_proj, as [H, unrotated + value, kv_rank]: embed_q.weight [H, kv_rank, unrotated], the
        first part transposed, and unembed_out.weight [H, value, kv_rank], the second

With `quantization`, large matrices are MLX affine: weight (uint32), scales and biases.
`expected_tensors` gives names and shapes for a configuration.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from localspec.errors import CheckpointRefused
from localspec.models.base import BaseDrafter
from localspec.models.block import BlockDrafter
from localspec.models.chain import ChainDrafter
from localspec.models.config import DrafterConfig, QuantizationConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"

# Routers and single rows decide more than they weigh; the Markov embedding is only ever looked up.
_NOT_QUANTIZED = ("gate", "shared_expert_gate", "proj", "markov_w1")


def build(config: DrafterConfig) -> BlockDrafter | ChainDrafter:
    """The drafter of this configuration, with random weights that nothing has computed yet.

    Raises:
        CheckpointRefused: rotary positions of a kind that is not supported.
    """
    module = importlib.import_module(f"localspec.models.{config.architecture}")
    drafter: BlockDrafter | ChainDrafter = module.Model(config)
    if config.quantization:
        _quantize(drafter, config.quantization)
    return drafter


def expected_tensors(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a drafter of this configuration; allocates nothing."""
    return {name: array.shape for name, array in _parameters(build(config)).items()}


def check_tensors(config: DrafterConfig, tensors: Mapping[str, mx.array], where: str) -> None:
    """Exactly the expected tensors, each in its shape and of a fitting type.

    Args:
        where: the file to name in messages.

    Raises:
        CheckpointRefused: the first tensor that is missing, superfluous or different.
    """
    expected = _parameters(build(config))
    for name in expected:
        if name not in tensors:
            raise CheckpointRefused(f"{where} has no tensor {name}")
    for name, array in tensors.items():
        if name not in expected:
            raise CheckpointRefused(
                f"{where} has the tensor {name}, which this drafter does not use"
            )
        if array.shape != expected[name].shape:
            raise CheckpointRefused(
                f"{name} in {where} has the shape {list(array.shape)}, but the configuration says "
                f"{list(expected[name].shape)}"
            )
        floating = mx.issubdtype(expected[name].dtype, mx.floating)
        if mx.issubdtype(array.dtype, mx.floating) != floating:
            raise CheckpointRefused(f"{name} in {where} has the type {array.dtype}")
    if "d2t" in tensors:
        ids = mx.arange(config.draft_vocab_size) + tensors["d2t"]
        if not bool(mx.all((ids >= 0) & (ids < config.vocab_size))):
            raise CheckpointRefused(f"d2t in {where} leads outside the target's vocabulary")


def with_tensors(
    config: DrafterConfig, tensors: Mapping[str, mx.array], where: str
) -> BlockDrafter | ChainDrafter:
    """A drafter of these tensors.

    Raises:
        CheckpointRefused: as `check_tensors`.
    """
    check_tensors(config, tensors, where)
    drafter = build(config)
    drafter.load_weights(list(tensors.items()))
    drafter.eval()
    return drafter


def load(folder: Path) -> BlockDrafter | ChainDrafter:
    """The drafter that `save` wrote.

    Raises:
        CheckpointRefused: files that are missing or broken, or do not fit each other.
    """
    config = load_config(folder)
    path = folder / WEIGHTS_FILE
    try:
        tensors = mx.load(str(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointRefused(f"{path} cannot be read as safetensors: {error}") from error
    assert isinstance(tensors, dict)
    drafter = with_tensors(config, tensors, str(path))
    mx.eval(drafter.parameters())
    return drafter


def load_config(folder: Path) -> DrafterConfig:
    """The configuration in a drafter's folder.

    Raises:
        CheckpointRefused: it is missing, or is no localspec drafter's.
    """
    path = folder / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointRefused(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointRefused(f"{path} is not JSON: {error}") from error
    try:
        return DrafterConfig.from_json(values)
    except CheckpointRefused as error:
        raise CheckpointRefused(f"{path}: {error}") from error


def save(config: DrafterConfig, tensors: Mapping[str, mx.array], folder: Path) -> None:
    """Write a drafter's two files into an existing folder; the same input gives the same bytes."""
    ordered = {name: tensors[name] for name in sorted(tensors)}
    mx.save_safetensors(str(folder / WEIGHTS_FILE), ordered, {"format": "mlx"})
    # Last, so that a folder half written does not load.
    text = json.dumps(config.to_json(), indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")


def quantize(
    config: DrafterConfig, tensors: Mapping[str, mx.array], quantization: QuantizationConfig
) -> tuple[DrafterConfig, dict[str, mx.array]]:
    """The same drafter with its large matrices quantised: configuration and tensors.

    Matrices whose rows the group size does not divide stay as they are.
    """
    drafter = build(config)
    drafter.load_weights(list(tensors.items()))
    _quantize(drafter, quantization)
    return replace(config, quantization=quantization), _parameters(drafter)


def _parameters(drafter: BaseDrafter) -> dict[str, mx.array]:
    return dict(tree_flatten(drafter.parameters()))


def _quantize(drafter: BaseDrafter, quantization: QuantizationConfig) -> None:
    def chosen(path: str, module: nn.Module) -> bool:
        return (
            hasattr(module, "to_quantized")
            and path.rpartition(".")[2] not in _NOT_QUANTIZED
            and module.weight.shape[-1] % quantization.group_size == 0
        )

    nn.quantize(drafter, quantization.group_size, quantization.bits, class_predicate=chosen)

"""Import of llama-family GGUF targets: a file in, a folder that mlx-lm loads out.

Quantised weights keep their bits and scales; nothing is rounded, except that Q6_K tensors, which MLX
has no form for, become float16.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from localspec.converters._gguf_file import GROUP_SIZE, MAGIC, GGUFFile, Part
from localspec.converters._gguf_tokenizer import token_id, vocabulary, write_tokenizer
from localspec.errors import CheckpointRefused, reason

__all__ = ["FORMAT_VERSION", "MAGIC", "import_gguf"]

FORMAT_VERSION = 1
"""Of the folders that `import_gguf` writes; a change of what it writes raises it."""

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"

_NEUTRAL = {
    "llama.expert_count": 0,
    "llama.attention.sliding_window": 0,
    "llama.logit_scale": 1.0,
    "llama.embedding_scale": 1.0,
    "llama.residual_scale": 1.0,
    "llama.attention.scale": 0.0,
    "split.count": 1,
}
"""Keys that change what is computed, and the value with which they do not."""

_SAFETENSORS_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}


def import_gguf(source: Path, destination: Path) -> None:
    """Write the model folder that a GGUF file stands for.

    The folder appears whole or not at all; of several imports at once, one provides it.

    Args:
        source: a GGUF file of architecture `llama` with a byte-level BPE tokenizer.
        destination: the folder to make; it must not exist, or be empty.

    Raises:
        CheckpointRefused: the file cannot be imported right, with the reason, or the folder is taken.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise CheckpointRefused(f"{destination} exists already; choose another folder or remove it")
    file = GGUFFile(source)
    config = _config(file)
    tensors = _tensors(file, config)
    quantization = _quantization(file, tensors)
    if quantization:
        config["quantization"] = quantization
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.parent / f".{destination.name}.{uuid.uuid4().hex}.partial"
    partial.mkdir()
    try:
        write_tokenizer(file, partial)
        _write_safetensors(file, tensors, config, partial / "model.safetensors")
        generation = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
        (partial / "generation_config.json").write_text(json.dumps(generation, indent=2))
        # Last, for without it nothing takes the folder for a model.
        (partial / "config.json").write_text(json.dumps(config, indent=2))
        _publish(partial, destination)
    except OSError as error:
        raise CheckpointRefused(f"{destination} cannot be written: {reason(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, destination: Path) -> None:
    try:
        partial.rename(destination)
    except OSError:
        # Another import of the same file was quicker.
        if not (destination / "config.json").is_file():
            raise


def _config(file: GGUFFile) -> dict[str, Any]:
    """The config.json of mlx-lm's llama, without the quantisation."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointRefused(
            f"{file.path}: general.architecture is {architecture!r}, but 'llama' was expected"
        )
    for key, neutral in _NEUTRAL.items():
        value = file.metadata.get(key, neutral)
        if value != neutral:
            raise CheckpointRefused(f"{file.path}: {key} is {value!r}, but {neutral} was expected")
    heads = _count(file, "llama.attention.head_count")
    hidden = _count(file, "llama.embedding_length")
    head_dim = _count(file, "llama.attention.key_length", hidden // heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if _count(file, key, head_dim) != head_dim:
            raise CheckpointRefused(
                f"{file.path}: {key} is {file.metadata[key]}, but {head_dim}, the size of a head, "
                "was expected"
            )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointRefused(f"{file.path}: the matrix token_embd.weight was expected")
    num_tokens = len(vocabulary(file))
    if num_tokens > embedding.shape[0]:
        raise CheckpointRefused(
            f"{file.path}: token_embd.weight has {embedding.shape[0]} rows, but {num_tokens} were "
            "expected, one a token"
        )
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": _count(file, "llama.block_count"),
        "intermediate_size": _count(file, "llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _count(file, "llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _shortest(_number(file, "llama.attention.layer_norm_rms_epsilon")),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": _count(file, "llama.context_length"),
        "rope_theta": _number(file, "llama.rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if scaling := _rope_scaling(file, head_dim, config["rope_theta"]):
        config["rope_scaling"] = scaling
    for key, name in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        if (token := token_id(file, name, num_tokens)) is not None:
            config[key] = token
    ends = [token_id(file, name, num_tokens) for name in ("eos", "eot", "eom")]
    if stops := list(dict.fromkeys(token for token in ends if token is not None)):
        config["eos_token_id"] = stops[0] if len(stops) == 1 else stops
    return config


def _count(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    # A list gives one value a layer; a uniform one is the plain value.
    if isinstance(value, list) and value and len(set(value)) == 1:
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointRefused(
            f"{file.path}: {key} is {_seen(value)}, but a positive whole number was expected"
        )
    return value


def _number(file: GGUFFile, key: str, default: float | None = None) -> float:
    value = file.metadata.get(key, default)
    if not isinstance(value, float | int) or not math.isfinite(value) or value <= 0:
        raise CheckpointRefused(
            f"{file.path}: {key} is {_seen(value)}, but a positive number was expected"
        )
    return float(value)


def _seen(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope_scaling(file: GGUFFile, head_dim: int, base: float) -> dict[str, Any] | None:
    factors = file.tensors.get(_ROPE_FACTORS)
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if factors is not None:
        if kind != "none":
            raise CheckpointRefused(
                f"{file.path}: llama.rope.scaling.type is {kind!r}, but 'none' was expected beside "
                f"{_ROPE_FACTORS}"
            )
        return _llama3_scaling(file, head_dim, base)
    if kind == "none":
        factor = file.metadata.get("llama.rope.scale_linear")
        if factor in (None, 0.0, 1.0):
            return None
        return {"rope_type": "linear", "factor": _number(file, "llama.rope.scale_linear")}
    if kind == "linear":
        return {"rope_type": "linear", "factor": _number(file, "llama.rope.scaling.factor")}
    raise CheckpointRefused(
        f"{file.path}: llama.rope.scaling.type is {kind!r}, but 'none' or 'linear' was expected"
    )


def _llama3_scaling(file: GGUFFile, head_dim: int, base: float) -> dict[str, Any]:
    """The scaling that a table of rotary factors was computed from.

    The table does not say its parameters; the factor is its largest value, and the others have been
    the same in every release since Llama 3.1.
    """
    (part,) = file.read(_ROPE_FACTORS)
    table = part.values.astype(np.float64)
    if table.shape != (head_dim // 2,):
        raise CheckpointRefused(
            f"{file.path}: {_ROPE_FACTORS} has shape {list(table.shape)}, but [{head_dim // 2}] was "
            "expected"
        )
    factor = float(table.max())
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((8192 / wavelengths - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(table, expected, rtol=1e-3):
        raise CheckpointRefused(
            f"{file.path}: {_ROPE_FACTORS} was expected to be Llama 3's rotary scaling"
        )
    return scaling


def _tensors(file: GGUFFile, config: dict[str, Any]) -> dict[str, str]:
    """mlx-lm's name of each tensor, in the file's order, after a check of names and shapes."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "model.embed_tokens": (config["vocab_size"], hidden),
        "model.norm": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head"] = (config["vocab_size"], hidden)
    # A damaged count may be huge; one layer more than there can be is enough to find one missing.
    for layer in range(min(config["num_hidden_layers"], len(file.tensors))):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm"] = (hidden,)
        shapes[f"{prefix}self_attn.q_proj"] = (queries, hidden)
        shapes[f"{prefix}self_attn.k_proj"] = (keys, hidden)
        shapes[f"{prefix}self_attn.v_proj"] = (keys, hidden)
        shapes[f"{prefix}self_attn.o_proj"] = (hidden, queries)
        shapes[f"{prefix}post_attention_layernorm"] = (hidden,)
        shapes[f"{prefix}mlp.gate_proj"] = (inner, hidden)
        shapes[f"{prefix}mlp.up_proj"] = (inner, hidden)
        shapes[f"{prefix}mlp.down_proj"] = (hidden, inner)
    names: dict[str, str] = {}
    for name, info in file.tensors.items():
        if name == _ROPE_FACTORS:
            continue
        target = _target_name(name)
        if target is None or target not in shapes:
            raise CheckpointRefused(
                f"{file.path}: tensor '{name}' was not expected in a llama model of "
                f"{config['num_hidden_layers']} layers"
            )
        if info.shape != shapes[target]:
            raise CheckpointRefused(
                f"{file.path}: tensor '{name}' has shape {list(info.shape)}, but "
                f"{list(shapes[target])} was expected"
            )
        if info.bits and len(info.shape) == 1:
            raise CheckpointRefused(
                f"{file.path}: tensor '{name}' has type {info.type_name}, but a plain float type was "
                "expected"
            )
        names[name] = target
    if missing := shapes.keys() - set(names.values()):
        raise CheckpointRefused(
            f"{file.path}: no tensor gives {min(missing)}.weight, which was expected"
        )
    return names


def _target_name(name: str) -> str | None:
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        part = _LAYER_NAMES.get(match[2])
        return part and f"model.layers.{int(match[1])}.{part}"
    return _NAMES.get(name.removesuffix(".weight")) if name.endswith(".weight") else None


def _quantization(file: GGUFFile, tensors: dict[str, str]) -> dict[str, Any] | None:
    """mlx-lm's entry: what most layers have, and each layer that differs."""
    bits = {target: b for name, target in tensors.items() if (b := file.tensors[name].bits)}
    if not bits:
        return None
    values = list(bits.values())
    common = max(sorted(set(values)), key=values.count)
    entry: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": common, "mode": "affine"}
    for target, own in bits.items():
        if own != common:
            entry[target] = {"group_size": GROUP_SIZE, "bits": own, "mode": "affine"}
    return entry


def _write_safetensors(
    file: GGUFFile, tensors: dict[str, str], config: dict[str, Any], path: Path
) -> None:
    """Write one tensor after the other, so that memory holds one at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, target in tensors.items():
        for suffix, dtype, shape in _plan(file, name):
            size = math.prod(shape) * _SAFETENSORS_SIZES[dtype]
            header[f"{target}{suffix}"] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [at, at + size],
            }
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, target in tensors.items():
            for part in _parts(file, name, heads.get(target.rpartition(".")[2])):
                out.write(np.ascontiguousarray(part.values).data)
        assert out.tell() == 8 + len(text) + at, "the header and the tensors disagree"


def _plan(file: GGUFFile, name: str) -> Iterator[tuple[str, str, list[int]]]:
    """Suffix, type and shape of each array that a tensor becomes."""
    info = file.tensors[name]
    rows, columns = list(info.shape[:-1]), info.shape[-1]
    if info.bits is None:
        yield ".weight", "F16" if info.type_name == "Q6_K" else info.type_name, [*rows, columns]
        return
    yield ".weight", "U32", [*rows, columns * info.bits // 32]
    yield ".scales", "F16", [*rows, columns // GROUP_SIZE]
    yield ".biases", "F16", [*rows, columns // GROUP_SIZE]


def _parts(file: GGUFFile, name: str, num_heads: int | None) -> Iterator[Part]:
    for part in file.read(name):
        values = part.values
        if num_heads:
            # llama.cpp rotates neighbouring rows, mlx-lm the two halves of a head.
            halves = values.reshape(num_heads, -1, 2, values.shape[-1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        yield Part(part.suffix, part.dtype, values)

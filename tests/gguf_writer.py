"""Writes GGUF files: a small llama with random weights, and whatever a test wants to be wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 32, 2

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}


@dataclass
class Tensor:
    """What a file stores: type, shape (rows first) and bytes."""

    type_name: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: np.ndarray[Any, Any]) -> Tensor:
        type_name = {"float32": "F32", "float16": "F16"}[str(values.dtype)]
        return cls(type_name, values.shape, values.tobytes())

    @classmethod
    def random(cls, type_name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
        """Random bits, the 16-bit scales small and finite."""
        block, num_bytes = BLOCKS[type_name]
        blocks = rng.integers(0, 256, (int(np.prod(shape)) // block, num_bytes), np.uint8)
        scales = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q6_K": [208]}[type_name]
        for at in scales:
            small = rng.normal(0, 0.01, len(blocks)).astype(np.float16)
            blocks[:, at : at + 2] = small.view(np.uint8).reshape(-1, 2)
        return cls(type_name, shape, blocks.tobytes())


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and merges: two control tokens, the bytes, a few words, one added word."""
    tokens = ["<s>", "</s>", *sorted(ByteLevel.alphabet())]
    types = [3, 3] + [1] * (len(tokens) - 2)
    merges = ["t h", "th e", "Ġ the", "1 2", "12 3"]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<tool>"]
    return tokens, [*types, *[1] * len(merges), 4], merges


def metadata(**changes: Any) -> dict[str, Any]:
    """A small llama's metadata; `changes` are keys with `__` for `.`, None removes one."""
    tokens, types, merges = vocabulary()
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM,
        "llama.attention.value_length": HEAD_DIM,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in keys.items() if value is not None}


def weights(seed: int = 0, tied: bool = True) -> dict[str, np.ndarray[Any, Any]]:
    """Random float32 weights under mlx-lm's names."""
    rng = np.random.default_rng(seed)
    num_tokens = len(vocabulary()[0])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (num_tokens, HIDDEN)}
    shapes["model.norm"] = (HIDDEN,)
    if not tied:
        shapes["lm_head"] = (num_tokens, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm": (HIDDEN,),
            f"{prefix}self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}post_attention_layernorm": (HIDDEN,),
            f"{prefix}mlp.gate_proj": (INNER, HIDDEN),
            f"{prefix}mlp.up_proj": (INNER, HIDDEN),
            f"{prefix}mlp.down_proj": (HIDDEN, INNER),
        }
    return {
        f"{name}.weight": rng.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors(plain: dict[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """mlx-lm's weights as llama.cpp stores them: its names, its order of query and key rows."""
    stored = {}
    for name, values in plain.items():
        path = name.removesuffix(".weight")
        if path.startswith("model.layers."):
            _, _, layer, part = path.split(".", 3)
            target = f"blk.{layer}.{_NAMES[part]}.weight"
        else:
            part, target = path, f"{_NAMES[path]}.weight"
        if part.endswith(("q_proj", "k_proj")):
            heads = HEADS if part.endswith("q_proj") else KV_HEADS
            halves = values.reshape(heads, 2, HEAD_DIM // 2, HIDDEN)
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        stored[target] = Tensor.of(values)
    return stored


def write_gguf(
    path: Path, keys: dict[str, Any], stored: dict[str, Tensor], version: int = 3
) -> Path:
    """Write a GGUF file."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(stored), len(keys)))
    for key, value in keys.items():
        out += _text(key) + _value(value)
    at = 0
    for name, tensor in stored.items():
        out += _text(name) + struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        out += struct.pack("<IQ", TYPES[tensor.type_name], at)
        at += -(-len(tensor.data) // 32) * 32
    for tensor in stored.values():
        out += b"\0" * (-len(out) % 32) + tensor.data
    path.write_bytes(out)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    items = [_value(item) for item in value]
    return (
        struct.pack("<I", 9)
        + items[0][:4]
        + struct.pack("<Q", len(items))
        + b"".join(item[4:] for item in items)
    )

"""A tiny random target as files, with a tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from families import build, randomised
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = 120
"""Words of the tiny language, beside four marks."""


def write_tiny_target(folder: Path) -> None:
    """A random llama whose text is mostly decided by its last words."""
    marks = ["<end>", "<user>", "<model>", "<unused>"]
    vocab = {word: n for n, word in enumerate([*marks, *(f"w{n}" for n in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<user> {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}<model>{% endif %}"
    )
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    config: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(0)
    model = randomised(build("llama", config))
    weights: Any = dict(tree_flatten(model.parameters()))
    for name in weights:
        if name.endswith("o_proj.weight"):
            weights[name] = 0.1 * weights[name]
    mx.save_safetensors(str(folder / "model.safetensors"), weights)

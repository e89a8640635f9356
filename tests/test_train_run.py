"""`localspec train` as a user runs it, on a tiny random target with a tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from families import build, randomised
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from localspec.cli import app

WORDS = 120
"""Words of the tiny language, beside four marks."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random llama whose text is mostly decided by its last words."""
    folder = tmp_path_factory.mktemp("tiny")
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
    return folder


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["train", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "drafter"
    done = run("dspark", "-m", str(tiny), "-o", str(folder), "--minutes", "1", "--json")
    assert json.loads(done.stdout) == json.loads((folder / "training.json").read_text())
    return folder


def test_a_minute_of_training_makes_a_better_drafter(trained: Path) -> None:
    card = json.loads((trained / "training.json").read_text())
    assert card["curve"][0][0] == 0
    assert card["accepted_length"] > card["curve"][0][1] + 0.1
    assert card["held_out_prompts"] > 0
    assert f"{card['accepted_length']:.2f}" in (trained / "README.md").read_text()

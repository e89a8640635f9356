"""A tiny model folder whose tokenizer is a SentencePiece model alone."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import sentencepiece

_TEXT = (
    "the quick brown fox jumps over a lazy dog while rain falls on old stone houses and people "
    "walk home with bread , milk 2024 café naïve ."
)


def write_sentencepiece_folder(folder: Path, model_type: str = "bpe") -> Path:
    """Train a SentencePiece model with byte fallback and write it beside a config.json."""
    rng = random.Random(0)
    words = _TEXT.split()
    lines = [" ".join(rng.choices(words, k=rng.randint(3, 12))) for _ in range(400)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=400,
        model_type=model_type,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    return folder

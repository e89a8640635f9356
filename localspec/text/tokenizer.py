"""The one place where a target's tokenizer is loaded."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from localspec.errors import ModelRefused
from localspec.text.harmony import CALL, is_harmony

_BEGIN_WITH_BOS = {"llama", "mistral", "mixtral", "gemma", "gemma2"}
"""Model types whose SentencePiece tokenizers put a BOS token first unless a file says otherwise."""


def load_tokenizer(folder: Path) -> Any:
    """Load a model folder's tokenizer as mlx-lm does: a `TokenizerWrapper`.

    A folder that has only a SentencePiece `tokenizer.model` works too, and gives SentencePiece's ids.

    Raises:
        ModelRefused: there is no tokenizer, or it cannot be loaded.
    """
    # Both take a second to import, and MLX comes with mlx-lm.
    from mlx_lm.utils import load_tokenizer as load_with_mlx_lm
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        if (folder / "tokenizer.model").is_file() and not (folder / "tokenizer.json").is_file():
            with tempfile.TemporaryDirectory(prefix="localspec-") as converted:
                _convert_sentencepiece(folder, Path(converted))
                tokenizer = load_with_mlx_lm(Path(converted))
        else:
            tokenizer = load_with_mlx_lm(folder)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelRefused(f"the tokenizer in {folder} cannot be loaded: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
    # Dropping spaces before punctuation would make text depend on what comes after it.
    tokenizer.clean_up_tokenization_spaces = False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # Else encoding would change the tokenizer each time, while another thread decodes with it.
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def stop_token_ids(tokenizer: Any, folder: Path) -> frozenset[int]:
    """The tokens that end a text: the tokenizer's, config.json's and generation_config.json's."""
    stops = set(getattr(tokenizer, "eos_token_ids", ()))
    vocabulary = tokenizer.get_vocab()
    if is_harmony(vocabulary):
        # Converted folders may lack the file that names it.
        stops.add(vocabulary[CALL])
    for name in ("config.json", "generation_config.json"):
        config = _read_json(folder / name)
        text_config = config.get("text_config")
        for part in (config, text_config if isinstance(text_config, dict) else {}):
            value = part.get("eos_token_id")
            stops.update(value if isinstance(value, list) else [value])
    return frozenset(stop for stop in stops if isinstance(stop, int))


def _convert_sentencepiece(folder: Path, converted: Path) -> None:
    """Write tokenizer.json for a folder without it.

    The generic class converts the SentencePiece model as it is; transformers' Llama class takes every
    model for BPE and loses leading spaces.
    """
    from transformers import PreTrainedTokenizerFast

    options = _read_json(folder / "tokenizer_config.json")
    model_type = _read_json(folder / "config.json").get("model_type")
    by_class = str(options.get("tokenizer_class", "")).startswith(("Llama", "Gemma"))
    extra = {}
    if "add_bos_token" not in options and (by_class or model_type in _BEGIN_WITH_BOS):
        extra["add_bos_token"] = True
    PreTrainedTokenizerFast.from_pretrained(folder, **extra).save_pretrained(converted)
    for name in ("config.json", "generation_config.json", "chat_template.jinja"):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, converted / name)


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where the file is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

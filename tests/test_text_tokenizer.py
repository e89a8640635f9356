from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece_folder import write_sentencepiece_folder

from localspec.errors import ModelRefused
from localspec.text.tokenizer import load_tokenizer, stop_token_ids

TEXTS = ("the quick fox 2024", "  two  spaces", "🙂 漢字", "a\nb\n", " café")


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("tokenizer_class", [None, "LlamaTokenizer"])
def test_a_sentencepiece_model_alone_gives_its_own_ids(
    tmp_path: Path, model_type: str, tokenizer_class: str | None
) -> None:
    folder = write_sentencepiece_folder(tmp_path, model_type)
    if tokenizer_class:
        options = {"tokenizer_class": tokenizer_class, "chat_template": "{{ messages }}"}
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    tokenizer = load_tokenizer(folder)
    for text in TEXTS:
        ids = reference.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.encode(text) == [reference.bos_id(), *ids]
        assert tokenizer.decode(ids) == text
    assert tokenizer.has_chat_template == (tokenizer_class is not None)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["config.json", "tokenizer.model"] + ["tokenizer_config.json"] * bool(tokenizer_class)
    )


def test_a_file_that_says_so_leaves_the_bos_token_out(tmp_path: Path) -> None:
    folder = write_sentencepiece_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("the") == tokenizer.encode("the", add_special_tokens=False)


def test_stop_tokens_come_from_every_file(tmp_path: Path) -> None:
    folder = write_sentencepiece_folder(tmp_path)
    tokenizer = load_tokenizer(folder)
    assert stop_token_ids(tokenizer, folder) == {2}
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 7}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert stop_token_ids(tokenizer, folder) == {2, 5, 6, 7}


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelRefused, match=r"tokenizer in .* cannot be loaded") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_sentencepiece_folder(tmp_path)
    (folder / "tokenizer.model").write_bytes(b"nonsense")
    with pytest.raises(ModelRefused, match="cannot be loaded"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelRefused, match="cannot be loaded"):
        load_tokenizer(folder)

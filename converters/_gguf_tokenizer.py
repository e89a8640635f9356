"""From a GGUF file's metadata to the tokenizer files of a model folder: byte-level BPE only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from localspec.converters._gguf_file import GGUFFile
from localspec.errors import CheckpointRefused

_CONTROL = 3
_USER_DEFINED = 4

_CONTRACTIONS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"(?:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is cut before byte-pair merging: each pattern in turn cuts what the one before left.

    Attributes:
        patterns: regular expressions.
        ignore_merges: a piece that is a token as a whole needs no merges.
        add_bos: whether prompts begin with the BOS token where the file does not say.
        nfc: whether text is put into Unicode's normal form C first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_DEFAULT = _PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_PLAIN = _PreTokenizer((_GPT2,))
_DIGITS = _PreTokenizer((r"\p{N}", _GPT2))
_WHOLE_FIRST = _PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_PRE_TOKENIZERS = {
    "default": _DEFAULT,
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "jais": _PLAIN,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "exaone": _DIGITS,
    "minerva-7b": _DIGITS,
    "llama-bpe": _WHOLE_FIRST,
    "llama3": _WHOLE_FIRST,
    "llama-v3": _WHOLE_FIRST,
    "falcon3": _WHOLE_FIRST,
    "smaug-bpe": _PreTokenizer((_LLAMA3,)),
    "dbrx": _PreTokenizer((_LLAMA3,)),
    "qwen2": _PreTokenizer((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": _PreTokenizer((_QWEN2,), nfc=True),
    "tekken": _PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
}


def write_tokenizer(file: GGUFFile, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and, if there is one, chat_template.jinja.

    Raises:
        CheckpointRefused: another kind of tokenizer, an unknown pre-tokenizer, or broken tables.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise CheckpointRefused(
            f"{file.path}: tokenizer.ggml.model is {kind!r}, but 'gpt2' (byte-level BPE) was expected; "
            "use a folder or Hub model with the original tokenizer instead"
        )
    pre = _pre_tokenizer(file)
    tokens = vocabulary(file)
    tokenizer = _bpe(file, pre, tokens)
    special = {
        name: tokens[token]
        for name in ("bos", "eos", "unknown", "padding")
        if (token := token_id(file, name, len(tokens))) is not None
    }
    add_bos = file.metadata.get("tokenizer.ggml.add_bos_token", pre.add_bos)
    if not isinstance(add_bos, bool):
        raise CheckpointRefused(
            f"{file.path}: tokenizer.ggml.add_bos_token is {add_bos!r}, but true or false was expected"
        )
    after: list[Any] = [processors.ByteLevel(trim_offsets=False)]
    if add_bos and "bos" in special:
        bos = special["bos"]
        # A template cannot name the token itself, which may hold spaces and colons.
        named = {"id": "BOS", "ids": [tokens.index(bos)], "tokens": [bos]}
        after.append(
            processors.TemplateProcessing(
                single="BOS $A", pair="BOS $A BOS $B", special_tokens=[named]
            )
        )
    tokenizer.post_processor = processors.Sequence(after)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": special.get("bos"),
        "eos_token": special.get("eos"),
        "unk_token": special.get("unknown"),
        "pad_token": special.get("padding"),
    }
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def pre_tokenizer(pre: _PreTokenizer) -> Any:
    """The `tokenizers` object that cuts text and turns it into byte-level characters."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def vocabulary(file: GGUFFile) -> list[str]:
    """The tokens by id.

    Raises:
        CheckpointRefused: the file has none.
    """
    return _texts(file, "tokenizer.ggml.tokens")


def token_id(file: GGUFFile, name: str, num_tokens: int) -> int | None:
    """The id of a token with a role (`bos`, `eos`, `eot`, …), or None.

    Raises:
        CheckpointRefused: it is not an id of the vocabulary.
    """
    key = f"tokenizer.ggml.{name}_token_id"
    token = file.metadata.get(key)
    if token is None:
        return None
    if not isinstance(token, int) or not 0 <= token < num_tokens:
        raise CheckpointRefused(
            f"{file.path}: {key} is {token!r}, but an id below {num_tokens} was expected"
        )
    return token


def _pre_tokenizer(file: GGUFFile) -> _PreTokenizer:
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    pre = _PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if pre is None:
        raise CheckpointRefused(
            f"{file.path}: tokenizer.ggml.pre is {name!r}, but one of "
            f"{', '.join(sorted(_PRE_TOKENIZERS))} was expected"
        )
    return pre


def _texts(file: GGUFFile, key: str) -> list[str]:
    texts = file.metadata.get(key)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise CheckpointRefused(f"{file.path}: {key} was expected to be a list of texts")
    return texts


def _bpe(file: GGUFFile, pre: _PreTokenizer, tokens: list[str]) -> Tokenizer:
    """The tokenizer without what it adds around a prompt."""
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    if types and len(types) != len(tokens):
        raise CheckpointRefused(
            f"{file.path}: tokenizer.ggml.token_type has {len(types)} entries, but "
            f"{len(tokens)} were expected, one a token"
        )
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CheckpointRefused(
            f"{file.path}: tokenizer.ggml.tokens was expected to hold every token once, but "
            f"{len(tokens) - len(vocab)} occur again"
        )
    pairs = [merge.partition(" ")[::2] for merge in _texts(file, "tokenizer.ggml.merges")]
    try:
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre.ignore_merges)
    except Exception as error:
        raise CheckpointRefused(
            f"{file.path}: tokenizer.ggml.merges was expected to join tokens of the vocabulary: {error}"
        ) from error
    tokenizer = Tokenizer(model)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=False)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer

"""A vocabulary of bytes and a few special tokens, for llguidance and for the fake engine."""

from __future__ import annotations

from functools import cache

from llguidance import LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

THINK, THOUGHT, END = 256, 257, 258
SIZE = 259


class ByteTokenizer:
    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<think>", b"</think>", b"<end>")
    special_token_ids = (THINK, THOUGHT, END)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def grammar_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteTokenizer()), n_vocab=SIZE)

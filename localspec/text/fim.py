"""Fill in the middle: the text between a prefix and a suffix, by a model's own special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
)
_ALSO_END = ("<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<|file_sep|>", "<file_sep>")


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Ids of the tokens around prefix and suffix.

    Attributes:
        before, between, after: prefix and suffix stand between them; the middle follows `after`.
        never: ids that are marks and never part of the answer.
    """

    before: int
    between: int
    after: int
    never: frozenset[int]

    def prompt(self, prefix: list[int], suffix: list[int]) -> list[int]:
        return [self.before, *prefix, self.between, *suffix, self.after]


def find_fim_tokens(vocabulary: Mapping[str, int]) -> FimTokens | None:
    """The tokens of a vocabulary's family; None: it has none."""
    for before, between, after in _FAMILIES:
        if before in vocabulary and between in vocabulary and after in vocabulary:
            ids = [vocabulary[name] for name in (before, between, after)]
            also = [vocabulary[name] for name in _ALSO_END if name in vocabulary]
            return FimTokens(ids[0], ids[1], ids[2], frozenset([*ids, *also]))
    return None

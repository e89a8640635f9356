"""Prompts to train on: the user's chats, and what of all prompts is held out of training."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from localspec.errors import UsageError
from localspec.prompts import Prompt
from localspec.sessions import Sessions

CHATS = "chats"
"""In place of a file: what the user wrote in the terminal chat."""

_SHINGLE_WORDS = 5
_TOO_SIMILAR = 0.5
_TEMPLATE_SHARE = 0.01
_HELD_OUT_SHARE = 1 / 24
_MOST_HELD_OUT = 48


def read_chats(path: Path) -> list[Prompt]:
    """What the user wrote in saved conversations, each text once.

    Args:
        path: the conversations' database.

    Raises:
        UsageError: there are none.
        LocalspecError: they cannot be read.
    """
    texts: list[str] = []
    if path.is_file():
        with contextlib.closing(Sessions(path)) as sessions:
            texts = sessions.prompts(limit=None)
    if not texts:
        raise UsageError("there are no saved chats to train on; `localspec chat` saves them")
    return [Prompt(text, CHATS) for text in texts]


def split_held_out(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """Training prompts, and a few of every kind that are held out of training.

    Whether a prompt is held out hangs on its own text, so that it stays so when the text grows, and for
    a drafter that is trained on. What is nearly a held-out prompt, and what would be too many of a kind,
    is in neither. Of a kind so small that no text is to be held out, the first ones are.
    """
    held_out: list[Prompt] = []
    left_out: list[Prompt] = []
    kinds = sorted({prompt.kind for prompt in prompts})
    for kind in kinds:
        unique = {prompt.text: prompt for prompt in prompts if prompt.kind == kind}
        ranked = sorted(unique.values(), key=lambda prompt: _place(prompt.text))
        chosen = [prompt for prompt in ranked if _place(prompt.text) < _HELD_OUT_SHARE]
        chosen = chosen or ranked[: round(len(ranked) * _HELD_OUT_SHARE)]
        most = _MOST_HELD_OUT // len(kinds)
        held_out += chosen[:most]
        left_out += chosen[most:]
    return without_duplicates(prompts, [*held_out, *left_out]), held_out


def without_duplicates(prompts: Iterable[Prompt], held_out: Sequence[Prompt]) -> list[Prompt]:
    """The prompts, each once, without those that are nearly a held-out one.

    Two texts are nearly the same if they share half of the shorter one's runs of five words. Runs
    that many prompts have are a template and do not count.
    """
    unique = list({" ".join(_words(p.text)): p for p in prompts}.values())
    shingles = {prompt.text: _shingles(prompt.text) for prompt in [*unique, *held_out]}
    frequency = Counter(shingle for found in shingles.values() for shingle in found)
    most = max(4, int(_TEMPLATE_SHARE * len(shingles)))
    holders: dict[str, list[int]] = {}
    telling = []
    for index, prompt in enumerate(held_out):
        telling.append({s for s in shingles[prompt.text] if frequency[s] <= most})
        for shingle in telling[-1]:
            holders.setdefault(shingle, []).append(index)
    held_texts = {" ".join(_words(prompt.text)) for prompt in held_out}

    def near(prompt: Prompt) -> bool:
        own = {s for s in shingles[prompt.text] if frequency[s] <= most}
        shared = Counter(index for shingle in own for index in holders.get(shingle, ()))
        return any(
            count >= _TOO_SIMILAR * min(len(own), len(telling[index]))
            for index, count in shared.items()
        )

    return [p for p in unique if " ".join(_words(p.text)) not in held_texts and not near(p)]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _shingles(text: str) -> set[str]:
    words = _words(text)
    last = max(1, len(words) - _SHINGLE_WORDS + 1)
    return {" ".join(words[start : start + _SHINGLE_WORDS]) for start in range(last)}


def _place(text: str) -> float:
    """In [0, 1), as if at random."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48

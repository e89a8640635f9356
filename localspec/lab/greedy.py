"""Greedy decoding three ways on one target: mlx-lm's own loop, plain, and with the n-gram drafter.

Plain text must be mlx-lm's token by token. A pass over several tokens adds floats in another order than
a pass over one, so drafted text may differ where the two best logits are nearly tied, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.generate import generate_step

from localspec.engine.request import Request
from localspec.engine.target import Target
from localspec.lab.verify import decode, margin_at, parting
from localspec.models.ngram import NgramDrafter

PROMPTS = (
    "Repeat this sentence five times: the quick brown fox jumps over the lazy dog.",
    "Rename x to total in this code:\n\nx = 0\nfor i in range(10):\n    x = x + i\nprint(x)",
    "What is the capital of France? Answer in one sentence.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five uses for a brick.",
    "Why is the sky blue?",
    "Explain photosynthesis to a child.",
    "Translate to Spanish: good morning, my friend.",
    "What is 17 times 23? Show your work.",
    "Write a short poem about autumn.",
    "Write a SQL query that counts orders per customer.",
    "Give me a recipe for pancakes.",
    "What does the HTTP status 404 mean?",
    "Describe the water cycle.",
    "Write a for loop in C that prints the numbers 1 to 10.",
    "Who wrote Romeo and Juliet, and what is it about?",
    "How do I reverse a linked list?",
    "Name three planets and say one thing about each.",
    "Write an email that asks for a day off.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h?",
)
NEAR_TIE = 1e-3
_WIDTH = 6


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, three ways.

    Attributes:
        plain_is_mlx_lms: the same ids.
        accepted: drafts that were committed.
        margin: between the two best logits where drafted and plain text part; None: they do not.
    """

    plain_is_mlx_lms: bool
    accepted: int
    margin: float | None


def compare(target: Target, prompt: Sequence[int], num_tokens: int) -> Comparison:
    """Decode exactly `num_tokens`, whatever they are; on the engine thread if there is one."""
    request = Request(prompt, num_tokens, width=_WIDTH)
    plain = decode(target, None, request).tokens
    steps = generate_step(mx.array(list(prompt)), target.model, max_tokens=num_tokens)
    theirs = [*prompt, *(int(token) for token, _ in steps)]
    drafted = decode(target, NgramDrafter(), request)
    at = parting(plain, drafted.tokens)
    return Comparison(
        plain_is_mlx_lms=plain == theirs,
        accepted=drafted.stats.accepted,
        margin=None if at is None else margin_at(target, plain, at),
    )

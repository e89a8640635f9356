"""Greedy ids on the real default model: mlx-lm's own, plain and drafted, 20 prompts of 128 tokens."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step

from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.model import Model, _worker
from localspec.models.ngram import NgramDrafter

PROMPTS = [
    "What is the capital of France? Answer in one sentence.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain photosynthesis to a child.",
    "List five uses for a brick.",
    "Translate to Spanish: good morning, my friend.",
    "What is 17 times 23? Show your work.",
    "Write a short poem about autumn.",
    "Why is the sky blue?",
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
    "Repeat this sentence five times: the quick brown fox jumps over the lazy dog.",
    "Rename x to total in this code:\n\nx = 0\nfor i in range(10):\n    x = x + i\nprint(x)",
]
NUM_TOKENS = 128
NEAR_TIE = 1e-3


def decode(model: Model, prompt: list[int], drafter: NgramDrafter | None) -> Generation:
    """Exactly 128 tokens, whatever they are."""
    generation = Generation(model._target, drafter, Request(prompt, NUM_TOKENS, width=6))
    for _ in generation.run():
        pass
    return generation


def margin(model: Model, tokens: list[int]) -> float:
    """How far apart the two best logits lie after the tokens."""
    target = model._target
    logits = target.forward(mx.array([tokens]), target.new_cache(), rows=1).logits
    second, best = sorted(np.array(logits[0, -1]).tolist())[-2:]
    return float(best - second)


def theirs(model: Model, prompt: list[int]) -> list[int]:
    """mlx-lm's own greedy loop, on the same weights."""
    steps = generate_step(mx.array(prompt), model._target.model, max_tokens=NUM_TOKENS)
    return prompt + [int(token) for token, _ in steps]


def test_greedy_ids_are_mlx_lms_plain_and_drafted(smollm2: Model) -> None:
    """Drafted ids may differ only where the two best logits are nearly tied, which is counted."""
    accepted, near_ties = 0, 0
    for text in PROMPTS:
        prompt = smollm2.encode(text)
        plain = _worker.call(decode, smollm2, prompt, None).tokens
        assert plain == _worker.call(theirs, smollm2, prompt), text
        drafted = _worker.call(decode, smollm2, prompt, NgramDrafter())
        accepted += drafted.stats.accepted
        pairs = enumerate(zip(drafted.tokens, plain, strict=True))
        first = next((index for index, (ours, its) in pairs if ours != its), None)
        if first is not None:
            assert _worker.call(margin, smollm2, plain[:first]) < NEAR_TIE, text
            near_ties += 1
    assert len(PROMPTS) == 20
    assert accepted > 100, "the n-gram drafter must have been at work"
    assert near_ties <= 1

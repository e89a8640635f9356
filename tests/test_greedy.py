"""Greedy ids on the real default model: mlx-lm's own, plain and drafted (all: benchmarks/greedy.py)."""

from __future__ import annotations

from localspec.lab.greedy import NEAR_TIE, PROMPTS, compare
from localspec.model import Model
from localspec.targets import worker


def test_greedy_ids_are_mlx_lms_plain_and_drafted(smollm2: Model) -> None:
    """Drafted ids may differ only where the two best logits are nearly tied, which is counted."""
    found = [
        worker.call(compare, smollm2._target, smollm2.encode(text), 32) for text in PROMPTS[:4]
    ]
    assert all(one.plain_is_mlx_lms for one in found)
    assert sum(one.accepted for one in found) > 10, "the n-gram drafter must have been at work"
    near_ties = [one.margin for one in found if one.margin is not None]
    assert len(near_ties) <= 1
    assert all(margin < NEAR_TIE for margin in near_ties)

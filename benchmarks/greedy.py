"""Greedy ids over 20 prompts of 128 tokens: mlx-lm's own loop, plain, and with the n-gram drafter.

python benchmarks/greedy.py [--model NAME] [--prompts N] [--tokens N] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys

from localspec import catalog  # first: it loads a fast BLAS for MLX
from localspec.lab.greedy import NEAR_TIE, PROMPTS, compare
from localspec.model import load
from localspec.targets import worker


def main() -> int:
    """Compare and print; 1 where the ids differ beyond near ties."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    model = load(options.model, drafter="none")
    results = []
    for text in PROMPTS[: options.prompts]:
        one = worker.call(compare, model._target, model.encode(text), options.tokens)
        results.append(one)
        if not options.json:
            plain = "as mlx-lm" if one.plain_is_mlx_lms else "NOT as mlx-lm"
            drafted = "the same" if one.margin is None else f"parts at a margin of {one.margin:.2e}"
            print(f"plain {plain}; drafted {drafted}, {one.accepted} drafts accepted: {text!r}")
    summary = {
        "prompts": len(results),
        "tokens": options.tokens,
        "plain_is_mlx_lms": sum(one.plain_is_mlx_lms for one in results),
        "drafted_is_plain": sum(one.margin is None for one in results),
        "near_ties": sum(one.margin is not None and one.margin < NEAR_TIE for one in results),
        "accepted": sum(one.accepted for one in results),
    }
    print(json.dumps(summary))
    right = summary["drafted_is_plain"] + summary["near_ties"]
    return int(summary["plain_is_mlx_lms"] < len(results) or right < len(results))


if __name__ == "__main__":
    sys.exit(main())

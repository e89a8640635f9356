"""The width policy against every fixed width, by drafter and kind of prompt, in one run.

    python benchmarks/widths.py [--prompts N] [--tokens N] [--widths 1 2 3 4 6 8] [DRAFTER ...]

Every prompt goes through plain decoding, each fixed width and the policy, in turns. Prints Markdown; the
last column is the policy's speed over that of the best fixed width of the kind.
"""

from __future__ import annotations

import argparse

import localspec
from localspec.lab.compare import PLAIN, Settings, compare
from localspec.lab.prompts import bundled, spread
from localspec.measuring import ModelRunner

POLICY = "auto"


def table(
    model: str, drafter: str, widths: list[int], num_prompts: int, settings: Settings
) -> None:
    """The rows of a drafter."""
    plain = ModelRunner(localspec.load(model, drafter=PLAIN))
    # One drafter in memory; the policy's experience is its own, since fixed widths teach nothing.
    drafted = ModelRunner(localspec.load(model, drafter=drafter))
    fixed = {str(width): width for width in widths}
    runners = {PLAIN: plain, **dict.fromkeys(fixed, drafted), POLICY: drafted}
    settings = Settings(settings.temperature, settings.max_tokens, fixed)
    comparison = compare(runners, spread(bundled(), num_prompts), settings)
    for kind in comparison.kinds:
        figures = comparison.figures[kind]
        base = figures[PLAIN].speed
        best = max(figures[name].speed for name in (PLAIN, *fixed))
        cells = [f"{figures[name].speed / base:.2f}" for name in (*fixed, POLICY)]
        rounds = figures[POLICY].rounds
        mean = figures[POLICY].proposed / rounds
        cells += [f"{mean:.2f}", f"{figures[POLICY].parked / rounds:.0%}"]
        cells.append(f"{figures[POLICY].speed / best:.3f}")
        print(f"| {drafter} | {kind} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", nargs="*", default=["ngram"], metavar="DRAFTER")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    options = parser.parse_args()
    heads = [
        "drafter",
        "kind",
        *(f"width {width}" for width in options.widths),
        "policy",
        "its mean width",
        "parked",
        "of best",
    ]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    settings = Settings(options.temperature, options.tokens)
    for drafter in options.drafters:
        table(options.model, drafter, options.widths, options.prompts, settings)


if __name__ == "__main__":
    main()

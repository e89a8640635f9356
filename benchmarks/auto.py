"""`-d auto` against the fixed choices on a mixed stream of 60 prompts, in one run.

    python benchmarks/auto.py [--prompts N] [--tokens N] [DRAFTER ...]

Every prompt goes through plain decoding, every drafter and `auto`, in turns, the kinds mixed. Prints
Markdown: speed over plain, and that of `auto` over the best fixed choice of the kind, over the stream
and over its second half.
"""

from __future__ import annotations

import argparse

import numpy as np

import localspec
from localspec.lab.compare import PLAIN, Settings, compare
from localspec.lab.prompts import LabPrompt, bundled, spread
from localspec.measuring import ModelRunner
from localspec.model import fitting_drafters

AUTO = "auto"


def stream(count: int) -> list[LabPrompt]:
    """The bundled prompts mixed, and again with another end, so that none comes twice."""
    prompts = spread(bundled(), 30)
    again = [LabPrompt(f"{p.text}\n\nBe brief.", p.kind) for p in prompts]
    mixed = [*prompts, *again][:count]
    order = np.random.default_rng(0).permutation(len(mixed))
    return [mixed[place] for place in order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", nargs="*", metavar="DRAFTER", help="default: all that fit")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    fixed = options.drafters or fitting_drafters(options.model)
    runners = {
        name: ModelRunner(localspec.load(options.model, drafter=name))
        for name in (PLAIN, *fixed, AUTO)
    }
    prompts = stream(options.prompts)
    comparison = compare(runners, prompts, Settings(options.temperature, options.tokens))
    heads = ["kind", *fixed, AUTO, "of best fixed", "second half"]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for kind in comparison.kinds:
        figures = comparison.figures[kind]
        base = figures[PLAIN].speed
        best = max((PLAIN, *fixed), key=lambda name: figures[name].speed)
        speeds = [np.array(figures[name].speeds) for name in (AUTO, best)]
        late = [each[len(each) // 2 :].mean() for each in speeds]
        cells = [f"{figures[name].speed / base:.2f}" for name in (*fixed, AUTO)]
        cells += [f"{figures[AUTO].speed / figures[best].speed:.3f}", f"{late[0] / late[1]:.3f}"]
        print(f"| {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

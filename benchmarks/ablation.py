"""What the papers' choices are worth here: one table, the same training budget for every row.

    python benchmarks/ablation.py [-m MODEL] [--data FILE ...] [--tokens N] [--budget N]

Kinds of text (mixed, or code and mathematics alone), training-time test for MTP, and DFly's correction
(without it a DFly is a DFlash). Each row is trained on as many tokens, out of the corpus that
`localspec train --data … --tokens N` writes and keeps. Prints Markdown: held-out accepted length.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from localspec.models import load
from localspec.models.config import Architecture, DrafterConfig
from localspec.train.material import Material, gather
from localspec.train.plan import Plan
from localspec.train.run import make_trainer
from localspec.train.start import Shape, new_config, new_drafter
from localspec.train.trainer import Settings

WIDTH = 4
NARROW = ("code", "math")
KINDS = ("code", "math", "self")


def only(kinds: tuple[str, ...]) -> Callable[[Material], Material]:
    """The part of the material whose prompts are of these kinds."""

    def part(material: Material) -> Material:
        kept = [i for i in material.training if material.corpus[i].kind in kinds]
        return replace(material, training=kept)

    return part


def whole(material: Material) -> Material:
    return material


ROWS: tuple[tuple[str, Architecture, Callable[[Material], Material], int], ...] = (
    ("DFlash, mixed text", "dflash", whole, WIDTH),
    ("DFlash, code and mathematics alone", "dflash", only(NARROW), WIDTH),
    ("DFly: DFlash with correction, mixed text", "dfly", whole, WIDTH),
    ("MTP with training-time test", "mtp", whole, WIDTH),
    ("MTP without: one step", "mtp", whole, 1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--data", action="append", help="as of localspec train")
    parser.add_argument("--tokens", type=int, default=350_000, help="of the corpus")
    parser.add_argument("--budget", type=int, default=300_000, help="tokens trained on, a row")
    options = parser.parse_args()
    plan = Plan(
        "dflash",
        options.model,
        Path("unused"),
        data=tuple(options.data or ["self"]),
        tokens=options.tokens,
    )
    material = gather(plan, time.monotonic(), say, lambda answered: None)
    print(f"| {options.budget:,} tokens | {' | '.join(KINDS)} | all |")
    print("|---" * (len(KINDS) + 2) + "|")
    for name, architecture, part, steps in ROWS:
        by_kind, length = trained(architecture, part(material), steps, options.budget)
        kinds = [f"{by_kind[kind]:.2f}" if kind in by_kind else "–" for kind in KINDS]
        print(f"| {name} | {' | '.join(kinds)} | {length:.2f} |", flush=True)


def trained(
    architecture: Architecture, material: Material, steps: int, tokens: int
) -> tuple[dict[str, float], float]:
    """Held-out accepted length by kind, and overall, of a drafter trained on the material."""
    vocabulary = material.vocabulary(architecture)
    config: DrafterConfig = new_config(
        architecture,
        material.target,
        material.settings,
        Shape(1 if architecture == "mtp" else 2, WIDTH),
        mask_token_id=material.mask_token_id,
        draft_vocab_size=vocabulary.ids.size,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(tokens=tokens, chain_steps=steps, evaluations=1)
        # Not measured on the way: the last checkpoint counts as the best.
        order = itertools.count()
        trainer = make_trainer(
            new_drafter(config, material.target, vocabulary, settings.seed),
            material,
            vocabulary,
            lambda drafter: next(order),
            Path(folder),
            settings,
        )
        trainer.run()
        drafter = load.with_tensors(config, trainer.best_weights(), architecture)
    drafter.bind(material.target)
    accepted = material.measure(drafter, WIDTH)
    return accepted.by_kind(), accepted.length


def say(note: str) -> None:
    print(note, file=sys.stderr)


if __name__ == "__main__":
    main()

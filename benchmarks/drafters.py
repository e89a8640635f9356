"""What each drafter gives, by kind of prompt: accepted length, acceptance, speed against plain decoding.

    python benchmarks/drafters.py [--prompts N] [--tokens N] [DRAFTER ...]

Every prompt goes through plain decoding and every drafter in turn, at temperature 0 and 1, each drafter
at the width that was fastest in a first, short round. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import localspec
from localspec.engine.metrics import Stats
from localspec.model import Model

PROMPTS = Path(__file__).parent / "prompts" / "eval.jsonl"
KINDS = ("code", "math", "chat")
TEMPERATURES = (0.0, 1.0)
WIDTHS = (1, 2, 3, 4, 6)
PLAIN = "none"


@dataclass
class Sum:
    """Figures of several generations."""

    tokens: int = 0
    rounds: int = 0
    seconds: float = 0.0
    proposed: list[int] = field(default_factory=lambda: [0] * 32)
    accepted: list[int] = field(default_factory=lambda: [0] * 32)

    def add(self, stats: Stats) -> None:
        self.tokens += stats.generated_tokens
        self.rounds += stats.rounds
        self.seconds += stats.decode_s
        for place, count in enumerate(stats.proposed_by_position):
            self.proposed[place] += count
            self.accepted[place] += stats.accepted_by_position[place]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    def positions(self) -> str:
        pairs = zip(self.accepted, self.proposed, strict=True)
        return " ".join(f"{a / p:.0%}" for a, p in pairs if p) or "–"


def read_prompts(count: int) -> dict[str, list[str]]:
    """The first prompts of every kind."""
    lines = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    return {kind: [x["prompt"] for x in lines if x["kind"] == kind][:count] for kind in KINDS}


def measure(
    model: Model, prompt: str, temperature: float, width: int | None, tokens: int, seed: int
) -> Stats:
    return model.generate(
        prompt, temperature=temperature, width=width, max_tokens=tokens, seed=seed
    ).stats


def best_widths(arms: dict[str, Model], prompts: Sequence[str], tokens: int) -> dict[str, int]:
    """The fastest width of each drafter over a few prompts, greedy, in turns."""
    sums = {(name, width): Sum() for name in arms if name != PLAIN for width in WIDTHS}
    for prompt in prompts:
        for (name, width), total in sums.items():
            total.add(measure(arms[name], prompt, 0.0, width, tokens, 0))
    return {
        name: max(WIDTHS, key=lambda width: sums[name, width].speed)
        for name in arms
        if name != PLAIN
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", nargs="*", default=["ngram"], metavar="DRAFTER")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=8, help="of every kind")
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    prompts = read_prompts(options.prompts)
    arms = {
        name: localspec.load(options.model, drafter=name) for name in (PLAIN, *options.drafters)
    }
    measure(arms[PLAIN], "warm up", 0.0, None, 8, 0)
    widths = best_widths(arms, [texts[0] for texts in prompts.values()], options.tokens // 2)
    sums = {(t, kind, arm): Sum() for t in TEMPERATURES for kind in KINDS for arm in arms}
    for turn in range(options.prompts):
        for temperature in TEMPERATURES:
            for kind, texts in prompts.items():
                for name, model in arms.items():
                    stats = measure(
                        model, texts[turn], temperature, widths.get(name), options.tokens, turn
                    )
                    sums[temperature, kind, name].add(stats)
    print(
        f"{options.model} on {platform.machine()} {platform.system()}, {options.prompts} prompts of "
        f"each kind, {options.tokens} tokens\n"
    )
    print("| drafter | width | T | kind | accepted length | acceptance by position | of plain |")
    print("|---|---|---|---|---|---|---|")
    for name in arms:
        for temperature in TEMPERATURES:
            for kind in KINDS:
                total = sums[temperature, kind, name]
                ratio = total.speed / sums[temperature, kind, PLAIN].speed
                print(
                    f"| {name} | {widths.get(name, 0)} | {temperature:g} | {kind} "
                    f"| {total.tokens / total.rounds:.2f} | {total.positions()} | {ratio:.2f} |"
                )


if __name__ == "__main__":
    main()

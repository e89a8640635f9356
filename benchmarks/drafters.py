"""What each drafter gives, by kind of prompt: accepted length, acceptance, tokens a second, of plain.

    python benchmarks/drafters.py [--prompts N] [--tokens N] [--width N] [DRAFTER ...]

Prompts that no bundled drafter was trained on, at temperature 0 and 1, measured as `localspec compare`
does: plain decoding and every drafter in turns. Prints Markdown.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import localspec
from localspec.lab.compare import PLAIN, Settings, compare, ratios
from localspec.lab.prompts import LabPrompt, read
from localspec.measuring import ModelRunner
from localspec.model import fitting_drafters

PROMPTS = Path(__file__).parent / "prompts" / "eval.jsonl"
KINDS = ("code", "math", "chat")
TEMPERATURES = (0.0, 1.0)


def read_prompts(count: int) -> list[LabPrompt]:
    """The first prompts of every kind, the kinds in turns."""
    every = read(PROMPTS)
    by_kind = [[prompt for prompt in every if prompt.kind == kind][:count] for kind in KINDS]
    return [prompt for turn in zip(*by_kind, strict=True) for prompt in turn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", nargs="*", metavar="DRAFTER", help="default: all that fit")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=8, help="of every kind")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--width", type=int, help="default: as generation chooses it")
    options = parser.parse_args()
    prompts = read_prompts(options.prompts)
    names = dict.fromkeys((PLAIN, *(options.drafters or fitting_drafters(options.model))))
    runners = {name: ModelRunner(localspec.load(options.model, drafter=name)) for name in names}
    drafters = [name for name in names if name != PLAIN]
    widths = {} if options.width is None else dict.fromkeys(drafters, options.width)
    print(
        f"{options.model} on {platform.machine()} {platform.system()}, {options.prompts} prompts of "
        f"each kind, {options.tokens} tokens, width {options.width or 'chosen'}\n"
    )
    print(
        "| drafter | T | kind | accepted length | acceptance by position | tokens/s | of plain "
        "| quartiles |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for temperature in TEMPERATURES:
        comparison = compare(runners, prompts, Settings(temperature, options.tokens, widths))
        for kind in comparison.kinds:
            plain = comparison.figures[kind][PLAIN]
            for name, each in comparison.figures[kind].items():
                ratio, low, high = ratios(each, plain)
                positions = " ".join(f"{share:.0%}" for share in each.acceptance) or "–"
                print(
                    f"| {name} | {temperature:g} | {kind} | {each.accepted_length:.2f} | {positions} "
                    f"| {each.speed:.1f} | {ratio:.2f} | {low:.2f}–{high:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

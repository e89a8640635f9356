"""`localspec profile`: what drafting costs on this machine, so that generation can choose widths."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.catalog import DEFAULT_MODEL
from localspec.cli import options
from localspec.cli.output import write
from localspec.cli.status import Status

if TYPE_CHECKING:
    from localspec.lab.noise import Noise
    from localspec.lab.profile import DepthCosts, Profile

_BAR = 40


def profile(
    model: options.Model = DEFAULT_MODEL,
    drafter: options.Drafter = "auto",
    depth: Annotated[
        list[int] | None,
        typer.Option(help="A context depth to measure at; may be repeated.", min=1),
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(
            help="Where to compare passes, at every width; default: as time allows.", min=32
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            help="How long to aim at, all drafters together; a few rounds of each are made anyway.",
            min=1,
        ),
    ] = 45.0,
    as_json: options.AsJson = False,
) -> None:
    """Measure what rounds cost by width and depth, for generation to use; with auto, of all that fit."""
    from localspec import profiles
    from localspec.lab.profile import measure
    from localspec.lab.prompts import bundled
    from localspec.model import fitting_drafters, load, load_usable

    status = Status(sys.stderr)
    names = fitting_drafters(model) if drafter == "auto" else [drafter]
    models = (
        load_usable(model, names, status.say)
        if drafter == "auto"
        else [(drafter, load(model, drafter=drafter, notify=status.say))]
    )
    reports = []
    noise: dict[int, Noise] = {}
    for name, loaded in models:
        if len(names) > 1:
            status.say(f"{name}:")
        text = [token for prompt in bundled() for token in loaded.encode(prompt.text)]
        measured = loaded.measure(
            measure,
            text,
            budget_s=seconds,
            share=1 / len(names),
            depths=sorted(set(depth)) if depth else None,
            positions=positions,
            known=noise,
            say=status.say,
        )
        noise |= measured.noise
        path = profiles.write(loaded.profile_key, measured.as_dict())
        reports.append({"drafter": name, "kept_in": str(path), **measured.as_dict()})
        if not as_json:
            write("\n".join(_report(loaded.name, name, measured)))
            write(f"\nkept in {path}\n")
    if as_json:
        write(json.dumps({"model": model, "profiles": reports}))


def _report(model: str, drafter: str, profile: Profile) -> list[str]:
    lines = [
        f"{model} with {drafter}: milliseconds of a round, by drafts verified",
        f"memory reads {profile.bandwidth / 1e9:.1f} GB/s, matrix products "
        f"{profile.arithmetic / 1e9:.0f} GFLOPS, a step reads {profile.weight_bytes / 1e6:.0f} MB of "
        "weights",
    ]
    for at in profile.depths:
        lines += ["", f"context of {at.depth} tokens", *_table(at, profile.widths)]
        lines.append(
            f"a plain step runs at {at.plain_share:.0%} of the memory's speed, the widest round's pass "
            f"at {at.wide_share:.0%} of the nearer limit"
        )
    lines += ["", "passes over several tokens against one by one"]
    for width, noise in profile.noise.items():
        margins = f", the widest apart {max(noise.margins):.2g}" if noise.margins else ""
        lines.append(
            f"  width {width:<3} logits differ by up to {noise.largest:.2g}; the best token agrees at "
            f"{noise.agreeing} of {noise.positions} positions{margins}"
        )
        if not noise.is_rounding:
            lines.append(f"  that is WRONG: rounding explains up to {noise.rounding:.2g}")
    return lines


def _table(at: DepthCosts, widths: tuple[int, ...]) -> list[str]:
    """A row a width: the parts, the whole in plain steps, which is the tokens it must give, a bar."""
    plain = at.plain.median
    wholes = [d.median + v.median for d, v in zip(at.draft, at.verify, strict=True)]
    scale = _BAR / max(wholes)
    lines = [
        f"{'width':>5} {'draft':>7} {'verify':>7} {'spread':>7} {'pays at':>8}",
        f"{'plain':>5} {'':>7} {1e3 * plain:7.1f} {1e3 * at.plain.spread:7.1f} {'':>8} "
        + "█" * max(1, round(scale * plain)),
    ]
    for width, draft, verify, whole in zip(widths, at.draft, at.verify, wholes, strict=True):
        drafting = round(scale * draft.median)
        bar = "▒" * drafting + "█" * max(1, round(scale * whole) - drafting)
        lines.append(
            f"{width:5} {1e3 * draft.median:7.1f} {1e3 * verify.median:7.1f} "
            f"{1e3 * (draft.spread + verify.spread):7.1f} {whole / plain:7.2f}x {bar}"
        )
    return lines

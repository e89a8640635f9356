"""`localspec profile`: what drafting costs on this machine, so that generation can choose widths."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli.output import write
from localspec.cli.status import Status

if TYPE_CHECKING:
    from localspec.lab.profile import DepthCosts, Profile

_BAR = 40


def profile(
    model: Annotated[
        str, typer.Option("-m", "--model", help="A name, a folder, a GGUF file or a Hub id.")
    ] = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option("-d", "--drafter", help="auto, ngram, or a drafter's name or folder.")
    ] = "auto",
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
    seconds: Annotated[float, typer.Option(help="How long it may take.", min=1)] = 45.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what rounds cost by width and context depth, and keep it for generation to use."""
    from localspec import profiles
    from localspec.lab.profile import measure
    from localspec.lab.prompts import bundled
    from localspec.model import load

    status = Status(sys.stderr)
    loaded = load(model, drafter=drafter, notify=status.say)
    text = [token for prompt in bundled() for token in loaded.encode(prompt.text)]
    measured = loaded.measure(
        measure,
        text,
        budget_s=seconds,
        depths=sorted(set(depth)) if depth else None,
        positions=positions,
        say=status.say,
    )
    path = profiles.write(loaded.profile_key, measured.as_dict())
    if as_json:
        about = {"model": loaded.name, "drafter": loaded.drafter, "kept_in": str(path)}
        write(json.dumps({**about, **measured.as_dict()}))
        return
    write("\n".join(_report(loaded.name, loaded.drafter, measured)))
    write(f"\nkept in {path}")


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

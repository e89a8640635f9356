"""`localspec compare`: which drafter is fastest on which kind of prompt, on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.catalog import DEFAULT_MODEL
from localspec.cli import options
from localspec.cli.output import write
from localspec.cli.status import Status
from localspec.errors import UsageError, reason

if TYPE_CHECKING:
    from localspec.lab.compare import Comparison
    from localspec.lab.prompts import LabPrompt

HISTORY = "history"
ALL = "all"


def compare(
    model: options.Model = DEFAULT_MODEL,
    drafter: Annotated[
        list[str] | None,
        typer.Option("-d", "--drafter", help="A drafter, or all; may be repeated. Default: all."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="A JSONL file with prompt and kind, or history; default: 30 bundled ones."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Of each answer.", min=1)] = 96,
    limit: Annotated[
        int | None, typer.Option(help="Only so many prompts, the kinds in turns.", min=1)
    ] = None,
    as_json: options.AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with plots.")] = None,
) -> None:
    """Send the same prompts through plain decoding and every drafter, in turns, and name the fastest."""
    from localspec.engine.machine import describe
    from localspec.engine.sampling import SamplingParams
    from localspec.lab.compare import PLAIN, Settings
    from localspec.lab.compare import compare as measure
    from localspec.lab.page import page
    from localspec.lab.prompts import spread
    from localspec.measuring import ModelRunner
    from localspec.model import fitting_drafters, load, load_usable

    SamplingParams(temperature=temperature)
    html = None if html is None else html.expanduser()
    given = _prompts(prompts, model)
    given = given if limit is None else spread(given, limit)
    if html is not None:
        _check_writable(html)
    status = Status(sys.stderr)
    wanted = drafter or [ALL]
    loaded = {PLAIN: load(model, drafter=PLAIN, notify=status.say)}
    for name in wanted:
        if name == ALL:
            loaded |= load_usable(model, fitting_drafters(model), status.say)
        elif name not in loaded:
            loaded[name] = load(model, drafter=name, notify=status.say)
    runners = {name: ModelRunner(each) for name, each in loaded.items()}
    comparison = measure(
        runners,
        given,
        Settings(temperature, max_tokens),
        lambda done, total: status.share("prompts", done, total),
    )
    status.clear()
    machine = str(describe())
    if html is not None:
        html.write_text(page(model, machine, comparison), encoding="utf-8")
    if as_json:
        write(json.dumps({"model": model, "machine": machine, **comparison.as_dict()}))
    else:
        write("\n".join(_report(model, machine, comparison)))


def _check_writable(page: Path) -> None:
    """Before minutes of measuring, not after; what is there stays as it is."""
    was_there = page.exists()
    try:
        page.open("a").close()
    except OSError as error:
        raise UsageError(f"{page} cannot be written: {reason(error)}") from error
    if not was_there:
        page.unlink()


def _prompts(source: str | None, model: str) -> list[LabPrompt]:
    from localspec import history
    from localspec.lab.prompts import LabPrompt, bundled, read

    if source is None:
        return bundled()
    if source == HISTORY:
        return [
            LabPrompt(entry.asked.text, entry.kind, entry.asked.raw)
            for entry in history.entries(model)
        ]
    return read(Path(source).expanduser())


def _report(model: str, machine: str, comparison: Comparison) -> list[str]:
    from localspec.lab.compare import OVERALL, PLAIN, ratios

    count = len(comparison.figures[OVERALL][PLAIN].speeds)
    lines = [
        f"{model}, {count} prompts, temperature {comparison.settings.temperature:g}, at most "
        f"{comparison.settings.max_tokens} tokens, on {machine}",
    ]
    name_width = max(len(name) for name in [*comparison.names, "drafter"])
    for kind in comparison.kinds:
        plain = comparison.figures[kind][PLAIN]
        lines += [
            "",
            f"{kind} ({len(plain.speeds)} prompt{'s' * (len(plain.speeds) != 1)})",
            f"{'drafter':<{name_width}} {'length':>7} {'tokens/s':>9} {'of plain':>9} {'quartiles':>11} "
            f"{'draft':>6} {'verify':>6} {'predicted':>10} {'MB':>6}  acceptance by position",
        ]
        for name, each in comparison.figures[kind].items():
            ratio, low, high = ratios(each, plain)
            speed = each.predicted_speed
            predicted = f"{'–':>10}" if speed is None else f"{speed:10.1f}"
            positions = " ".join(f"{share:.0%}" for share in each.acceptance[:6])
            lines.append(
                f"{'plain' if name == PLAIN else name:<{name_width}} {each.accepted_length:7.2f} "
                f"{each.speed:9.1f} {ratio:8.2f}x {f'{low:.2f}-{high:.2f}':>11} "
                f"{each.draft_share:6.0%} {each.verify_share:6.0%} {predicted} "
                f"{each.memory / 1e6:6.0f}  {positions}"
            )
        lines.append(_winner(comparison, kind))
    return lines


def _winner(comparison: Comparison, kind: str) -> str:
    from localspec.lab.compare import PLAIN

    winner = comparison.winner(kind)
    name = "plain decoding" if winner.name == PLAIN else winner.name
    if len(comparison.figures[kind][PLAIN].speeds) == 1:
        return f"fastest: {name}, but one prompt is too few to tell"
    if winner.within_noise and winner.runner_up is not None:
        second = "plain decoding" if winner.runner_up == PLAIN else winner.runner_up
        return f"fastest: {name}, but {second} is within noise"
    return f"fastest: {name}"

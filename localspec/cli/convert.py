"""`localspec convert`: import a drafter that was trained in PyTorch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from localspec.cli.output import write
from localspec.cli.status import Status
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.converters.convert import Report


def convert(
    source: Annotated[str, typer.Argument(help="A folder, a file of weights, or a Hub id.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The new folder; default: the name here.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The model it was trained for; checks the fit.")
    ] = None,
    bits: Annotated[Literal["4", "8"] | None, typer.Option(help="Quantise to these bits.")] = None,
    dialect: Annotated[str | None, typer.Option(help="Whose conventions hold.")] = None,
    layout: Annotated[
        Literal["anchor_slot_unused", "every_slot_predicts"] | None,
        typer.Option(help="Which slot of a block predicts which token."),
    ] = None,
    taps: Annotated[
        Literal["outputs", "inputs"] | None, typer.Option(help="What layer ids count.")
    ] = None,
    target_normed: Annotated[
        bool, typer.Option("--target-normed", help="MTP: reads the target's state after its norm.")
    ] = False,
    target_raw: Annotated[
        bool, typer.Option("--target-raw", help="MTP: reads it before the norm.")
    ] = False,
    norm_before: Annotated[
        bool,
        typer.Option("--norm-before-residual", help="EAGLE-3: the residual is the normed state."),
    ] = False,
    no_norm_before: Annotated[
        bool,
        typer.Option("--no-norm-before-residual", help="EAGLE-3: the residual is the raw state."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="With --target: measure the rival readings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON report.")] = False,
) -> None:
    """Import a drafter into localspec's own form, or say why that cannot be done right."""
    from localspec import catalog
    from localspec.converters.convert import convert as import_drafter
    from localspec.converters.foreign import Options, TargetFacts
    from localspec.converters.reading import read_config
    from localspec.drafter_catalog import find_checkpoint
    from localspec.engine.loading import load_target

    options = Options(
        dialect=dialect,
        layout=layout,
        taps=taps,
        target_normed=_either("target-normed", target_normed, "target-raw", target_raw),
        norm_before_residual=_either(
            "norm-before-residual", norm_before, "no-norm-before-residual", no_norm_before
        ),
    )
    if check and target is None:
        raise UsageError("--check needs --target, the model that the drafter was trained for")
    status = Status(sys.stderr)
    found = find_checkpoint(source, notify=status.say)
    facts, model = None, None
    if target is not None:
        folder = catalog.resolve_model(target, notify=status.say)
        facts = TargetFacts.of_config(read_config(folder))
        if check or facts is None:
            model = load_target(folder)
            facts = TargetFacts(model.hidden_size, model.vocab_size, model.num_layers)
    # Not the path found: in the Hub's cache its last part is a commit.
    name = Path(source).stem if found.is_file() else Path(source).absolute().name
    destination = output or Path(f"{name}-localspec")
    report = import_drafter(
        found,
        destination,
        target=facts,
        bits=int(bits) if bits else None,
        options=options,
        name=name,
    )
    readings = None
    if check and model is not None:
        from localspec.lab.readings import compare_readings

        readings = compare_readings(found, model, options)
    if as_json:
        whole = {**report.as_dict(), "folder": str(destination)}
        if readings is not None:
            whole["first_draft_agreement"] = readings.agreements
            whole["too_close_to_call"] = readings.too_close if readings.too_close[1:] else []
        write(json.dumps(whole))
        return
    write(f"{destination}\n{_text(report)}")
    if readings is not None:
        for reading, agreement in readings.agreements.items():
            write(f"first drafts that agree with the target, {reading}: {agreement:.1%}")
        if readings.too_close[1:]:
            write(f"too close to call: {'; '.join(readings.too_close)}")
        else:
            write(f"the checkpoint was trained for: {readings.too_close[0]}")


def _either(name: str, yes: bool, opposite: str, no: bool) -> bool | None:
    if yes and no:
        raise UsageError(f"--{name} and --{opposite} contradict each other")
    return yes if yes or no else None


def _text(report: Report) -> str:
    said = "declared" if report.layout_declared else "assumed"
    lines = [
        f"architecture   {report.architecture}",
        f"dialect        {report.dialect}",
        f"taps           {list(report.tap_layers) or 'the last state'} (outputs of target layers)",
        f"layout         {report.layout} ({said})",
        f"parameters     {report.parameters:,}",
        f"size           {report.size / 1e6:.1f} MB",
    ]
    return "\n".join(lines + [f"warning: {warning}" for warning in report.warnings])

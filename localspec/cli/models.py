"""`localspec models`: what is installed, and getting more."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from localspec.cli.output import write
from localspec.cli.status import Status

app = typer.Typer(
    help="List installed models, or get one.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def list_models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List installed models, their sizes and the drafters that fit."""
    if context.invoked_subcommand is not None:
        return
    from localspec import catalog
    from localspec.converters.public import drafters_for
    from localspec.downloads import size
    from localspec.drafter_catalog import bundled_names, installed_drafters

    found = catalog.installed()
    here = {
        model.name: [
            *bundled_names(model.name),
            *(drafter.name for drafter in installed_drafters(model.name)),
            "ngram",
        ]
        for model in found
    }
    rows = [
        {
            "name": model.name,
            "kind": model.kind,
            "bytes": model.size,
            "path": str(model.path),
            "drafters": here[model.name],
            "public_drafters": [drafter.name for drafter in drafters_for(model.name)],
        }
        for model in found
    ]
    if as_json:
        write(json.dumps(rows))
        return
    if not rows:
        write("no models are installed; `localspec models pull smollm2-135m` gets the default one")
        return
    width = max(len(model.name) for model in found)
    for model in found:
        drafters = ", ".join(here[model.name])
        write(
            f"{model.name:<{width}}  {size(model.size):>8}  {model.kind:<8}  drafters: {drafters}"
        )
        for drafter in drafters_for(model.name):
            if drafter.name not in here[model.name]:
                write(f"{'':<{width}}  on the Hub: {drafter.name} ({drafter.architecture})")


@app.command("pull")
def pull(name: Annotated[str, typer.Argument(help="A bundled name or a Hub id.")]) -> None:
    """Get a model, so that it works offline from then on."""
    from localspec import catalog

    catalog.pull(name, notify=Status(sys.stderr).say)
    write(f"{name} is installed")

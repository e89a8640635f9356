"""`localspec doctor`: what the machine has, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from localspec.cli.output import write


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Say what this machine has (chip, memory, MLX device, BLAS) and what is wrong; exit 1 if it is."""
    from localspec.engine.machine import describe, problems

    facts = describe()
    wrong = problems(facts)
    if as_json:
        write(json.dumps({**facts.as_dict(), "problems": wrong}))
    else:
        for name, value in facts.as_dict().items():
            write(f"{name:<20} {value}")
        for problem in wrong:
            write(f"problem: {problem}")
        if not wrong:
            write("nothing is wrong")
    if wrong:
        raise typer.Exit(1)

"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str, typer.Option("-m", "--model", help="A name, a folder, a GGUF file or a Hub id.")
]
Drafter = Annotated[
    str, typer.Option("-d", "--drafter", help="auto, none, ngram, or a drafter's name or folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

"""`localspec serve`: the OpenAI-compatible endpoint, and what to paste into an editor to use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.catalog import DEFAULT_MODEL
from localspec.cli import options
from localspec.cli.editors import EDITORS, Endpoint, settings
from localspec.cli.status import Status
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.backend import ModelEngine

_KEY_VARIABLE = "LOCALSPEC_API_KEY"
_ANY_KEY = "local"


def serve(
    model: options.Model = DEFAULT_MODEL,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "-d",
            "--drafter",
            help="auto, none, ngram, a drafter's name or folder; may be repeated, and requests choose.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: a free one.", min=0, max=65535)] = 8080,
    api_key: Annotated[
        str | None,
        typer.Option(help="What clients must send as their key.", envvar=_KEY_VARIABLE),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="The origin of a web page that may use the server; may be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name of this computer; may be repeated."),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(help="Requests that may wait for their turn.", min=1)
    ] = 32,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Print a line a request; never its text.")
    ] = False,
    editor: Annotated[
        str | None,
        typer.Option(help=f"Print settings to paste, and end: {', '.join(EDITORS)}."),
    ] = None,
) -> None:
    """Serve a model to editors and other programs on this computer."""
    if api_key == "":
        raise UsageError("--api-key must not be empty")
    if editor is not None:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{'127.0.0.1' if host == '0.0.0.0' else shown}:{port}"
        print(settings(editor, Endpoint(model, url, api_key or _ANY_KEY, _context_of(model))))
        return
    from localspec.server.app import create_app
    from localspec.server.listen import bind, make_server, url_of
    from localspec.server.security import Access, parse_origins

    status = Status(sys.stderr)
    with bind(host, port) as listening:
        engine = _load(model, drafter or ["auto"], status)
        access = Access(
            host=host,
            hosts=frozenset(allow_host or ()),
            origins=parse_origins(allow_origin or ()),
            key=api_key,
        )
        server = make_server(
            create_app(engine, access, max_waiting=max_waiting), log_requests=log_requests
        )
        status.say(
            f"{engine.name} ({engine.context_length} tokens of context; drafters "
            f"{', '.join(engine.drafters)}) at {url_of(listening)}/v1; Ctrl-C ends it"
        )
        server.run([listening])


def _load(model: str, drafters: list[str], status: Status) -> ModelEngine:
    from localspec.backend import ModelEngine
    from localspec.model import load

    # Requests may always choose these two, which need nothing.
    names = dict.fromkeys([*drafters, "ngram", "none"])
    return ModelEngine({name: load(model, drafter=name, notify=status.say) for name in names})


def _context_of(model: str) -> int:
    """The model's context length by its config.json."""
    from localspec.catalog import resolve_model
    from localspec.engine.loading import context_length

    folder: Path = resolve_model(model)
    return context_length(json.loads((folder / "config.json").read_text(encoding="utf-8")))

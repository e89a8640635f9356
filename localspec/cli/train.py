"""`localspec train`: a drafter for any target, from the target's own text."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from localspec.catalog import DEFAULT_MODEL
from localspec.cli.output import write
from localspec.cli.status import Status

if TYPE_CHECKING:
    from localspec.train.trainer import Progress

_EVERY_S = 15.0


def train(
    architecture: Annotated[
        Literal["eagle3", "mtp", "dflash", "dflare", "dspark", "dfly"],
        typer.Argument(help="The drafter's architecture."),
    ],
    model: Annotated[
        str, typer.Option("-m", "--model", help="The target: a name, a folder or a Hub id.")
    ] = DEFAULT_MODEL,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The drafter's folder; default: MODEL-ARCH here."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="self (the target writes its own prompts), chats (what you wrote in localspec "
            "chat) or a JSONL file of prompts; may be repeated. Default: self.",
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long the run may take; default: 60.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the target's text to train on, in place of time; text comes in pieces "
            "of 64 answers."
        ),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Of the drafter; default: by size.")] = None,
    width: Annotated[
        int | None, typer.Option(help="Most drafts a round; default: by kind.")
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from", help="A trained drafter to go on from: a bundled one's name, or a folder."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in OUTPUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON.")] = False,
) -> None:
    """Train a drafter for a model on this machine; Ctrl-C saves, --resume goes on."""
    from localspec.provenance import CHECKPOINTS
    from localspec.train.plan import Plan
    from localspec.train.run import train

    name = model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    plan = Plan(
        architecture=architecture,
        model=model,
        output=output or Path(f"{name}-{architecture}"),
        data=tuple(data or ["self"]),
        minutes=60.0 if minutes is None and tokens is None else minutes,
        tokens=tokens,
        num_layers=layers,
        width=width,
        origin=origin,
        resume=resume,
    )
    status = Status(sys.stderr)
    line = _Line(status)
    try:
        card = train(plan, notify=status.say, wrote=line.wrote, report=line.trained)
    except KeyboardInterrupt:
        if (plan.output / CHECKPOINTS).is_dir():
            status.say("stopped, and saved: the same command with --resume goes on")
        raise
    status.clear()
    if as_json:
        write(json.dumps(card.as_dict()))
        return
    write(str(plan.output))
    kinds = ", ".join(f"{kind} {x:.2f}" for kind, x in card.accepted_length_by_kind.items())
    write(f"accepted length on held-out prompts: {card.accepted_length:.2f} ({kinds})")
    lengths = [length for _, length in card.curve]
    if lengths and max(lengths) <= lengths[0]:
        status.say("training did not make it better: give it more text and time")


class _Line:
    """The progress line: rewritten on a terminal, said now and then elsewhere."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._said = time.monotonic()
        self._began = time.monotonic()

    def wrote(self, answered: int) -> None:
        self._show(f"{answered:,} tokens written")

    def trained(self, progress: Progress) -> None:
        if not progress.step:
            self._show(f"held-out accepted length {progress.score:.2f} before training")
            return
        score = "not yet" if progress.score is None else f"{progress.score:.2f}"
        self._show(
            f"{progress.tokens:,} tokens, loss {progress.loss:.3f}, held-out accepted length {score}, "
            f"{progress.tokens_per_second:,.0f} tok/s, {_clock(progress.seconds_left)} left"
        )

    def _show(self, line: str) -> None:
        if self._status.live:
            self._status.rewrite(line)
        elif time.monotonic() - self._said >= _EVERY_S:
            self._said = time.monotonic()
            self._status.say(line)


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""`localspec generate`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.catalog import DEFAULT_MODEL
from localspec.cli import options
from localspec.cli.output import write
from localspec.cli.status import Status
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.stream import Result, TextStream


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; with text on standard input, that goes first.")
    ] = None,
    model: options.Model = DEFAULT_MODEL,
    drafter: options.Drafter = "auto",
    system: Annotated[str | None, typer.Option("-s", "--system", help="A system prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 1024,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this sum.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0: all.")] = 0,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens this likely, relative to the best.")
    ] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1: none.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="0: none.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="0: none.")] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(help="Seeds sampling; with none and ngram the same seed gives the same text."),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End at this text; may be repeated.")
    ] = None,
    width: Annotated[str, typer.Option(help="Drafts a round verifies, or auto.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print figures on stderr.")] = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the text at the end.")
    ] = False,
) -> None:
    """Answer a prompt: the argument, standard input, or both (standard input first)."""
    text = _whole_prompt(prompt)
    num_drafts = parse_width(width)
    status = Status(sys.stderr)

    from localspec.engine.request import Request
    from localspec.engine.sampling import SamplingParams
    from localspec.model import load
    from localspec.text.stops import StopStrings

    # Values out of range are refused before a model is loaded, which takes long.
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    Request([0], max_tokens, SamplingParams(**sampling), width=num_drafts)
    StopStrings(stop or [])
    loaded = load(model, drafter=drafter, notify=status.say)
    if not raw and not loaded.has_chat_template:
        status.say(f"'{model}' has no chat template; the prompt goes in as it is")
    stream = loaded.stream(
        text,
        system=system,
        raw=raw,
        max_tokens=max_tokens,
        **sampling,
        seed=seed,
        stop=stop or [],
        width=num_drafts,
        on_prefill=lambda done, total: status.progress("reading the prompt", done, total),
    )
    result = _print(stream, status, live=not (as_json or no_stream))
    if as_json:
        write(json.dumps(result.as_dict(), ensure_ascii=False))
    elif no_stream:
        write(result.text)
    if stats:
        print(_summary(result), file=sys.stderr)


def _print(stream: TextStream, status: Status, *, live: bool) -> Result:
    ended_with_newline = True
    try:
        for piece in stream:
            status.clear()
            if live and piece.text:
                write(piece.text, end="")
                ended_with_newline = piece.text.endswith("\n")
        if live and not ended_with_newline:
            write("")
    finally:
        status.clear()
        stream.cancel()
    return stream.result


def _whole_prompt(argument: str | None) -> str:
    if sys.stdin.isatty():
        piped = ""
    else:
        try:
            piped = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8 text: {error.reason}") from error
    parts = [part for part in (piped.rstrip("\n"), argument) if part]
    if not parts:
        raise UsageError("there is no prompt; give it as an argument or on standard input")
    whole = "\n\n".join(parts)
    try:
        whole.encode()
    except UnicodeEncodeError:
        raise UsageError("the prompt is not valid UTF-8 text") from None
    return whole


def parse_width(width: str) -> int | None:
    """What `--width` says; None: auto."""
    if width == "auto":
        return None
    try:
        return int(width)
    except ValueError:
        raise UsageError(f"--width must be a number or auto, not '{width}'") from None


def _summary(result: Result) -> str:
    from localspec.engine.drafters import NONE

    stats = result.stats
    positions = " ".join(f"{share:.0%}" for share in stats.acceptance_by_position)
    lines = [
        f"model {result.model}, drafter {result.drafter}, ended by {result.finish_reason}",
        f"prompt {stats.prompt_tokens} tokens, {stats.prompt_tokens_per_second:.1f} tok/s, "
        f"first token after {stats.time_to_first_token_s:.2f} s",
        f"generated {stats.generated_tokens} tokens, {stats.tokens_per_second:.1f} tok/s",
        f"accepted length {stats.accepted_length:.2f} over {stats.rounds} rounds, "
        f"{stats.accepted} of {stats.proposed} drafts accepted",
    ]
    if positions:
        lines.append(f"acceptance by position {positions}")
    if stats.arms:
        arms = ", ".join(f"{name} {count}" for name, count in stats.arms.items())
        lines.append(f"rounds by drafter {arms}")
    if result.drafter != NONE and stats.rounds:
        widths = " ".join(f"{w}:{n}" for w, n in enumerate(stats.widths) if n)
        lines.append(f"rounds by width {widths}; {stats.parked_share:.0%} parked")
    return "\n".join(lines)

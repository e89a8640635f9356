"""The help page and the page of figures, as Markdown; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localspec.tui import actions
from localspec.tui.actions import Action
from localspec.tui.commands import COMMANDS

FIGURES = (
    (
        "tok/s",
        "tokens a second of this reply, from the end of reading the prompt to the last token",
    ),
    (
        "plain",
        "that speed relative to plain decoding of the same model on this machine, which is measured "
        "when the model is loaded, now and then when nothing else goes on, and by each race. Until it "
        "is measured the figure is estimated: at most the accepted length (≤)",
    ),
    (
        "accepted length",
        "tokens that a round commits, the target's own token included: 1.0 is plain decoding. Now: the "
        "last 8 rounds; reply: all. The columns are the last rounds, the newest on the right",
    ),
    (
        "accepted by position",
        "of the drafts that were checked at each place after the last token, the share that stood",
    ),
    (
        "width",
        "how many drafts a round asks for; chosen from what rounds cost and accept, unless it is set",
    ),
    (
        "parked",
        "the rounds made without drafts because these would cost more time than they save; drafts are "
        "tried again now and then",
    ),
    (
        "target, drafter",
        "the model that answers, and what guesses its tokens; with `auto` also the drafter that it had "
        "play the last round, or plain decoding",
    ),
    ("context", "tokens of prompt and reply, of those that the model can have"),
    ("first", "seconds from sending to the first token"),
    ("memory", "what the arrays of models and caches take"),
)

ORIGINS = """\
- **accepted**: the drafter guessed it and the model agreed
- **correction**: the model's own token in place of the first draft that it did not agree with
- **bonus**: the model's own token after drafts that all stood
- **plain**: the model's own token in a round without drafts
"""


def page(keys: Mapping[str, str], config: Path) -> str:
    """The help page.

    Args:
        keys: those that the configuration changes, by action.
        config: the configuration file.
    """
    parts = [
        "Write, and press enter. The model's answers are its own: a drafter guesses the next tokens, "
        "the model checks them in one pass, and only what it agrees with is kept.",
        "## Keys",
        _keys((*actions.COMPOSER, *actions.CHAT, *actions.APP), keys),
        "## On a message (ctrl+up, or a click)",
        _keys(actions.MESSAGE, keys),
        f"The words in brackets are the names by which keys are changed in `{config}`, where model, "
        "theme and the rest are configured too.",
        "## Commands",
        "\n".join(
            f"- `/{c.name}{' ' + c.argument if c.argument else ''}`  {c.help}" for c in COMMANDS
        ),
        "## Figures",
        "\n".join(f"- **{name}**: {what}" for name, what in FIGURES),
        "## Origins (f2)",
        ORIGINS,
    ]
    return "\n\n".join(parts)


def figures_page(stats: Mapping[str, Any]) -> str:
    """The figures of a reply in full."""
    if not stats:
        return "No reply has been generated yet."
    rows = [(name.replace("_", " "), _value(value)) for name, value in stats.items()]
    return _table(("figure", "value"), rows)


def _keys(some: tuple[Action, ...], changed: Mapping[str, str]) -> str:
    lines = []
    for action in some:
        keys = changed.get(action.id, action.keys).split(",")
        shown = " ".join(f"`{key}`" for key in keys if key) or "no key"
        lines.append(f"- {shown}  {action.help} ({action.id})")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{x:.0%}" if isinstance(x, float) else str(x) for x in value) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )

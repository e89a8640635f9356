"""Slash commands: their names, and what completes them. No Textual in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.tui.engine import Choice


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command; `argument` says in a word what it takes, in brackets if it need not.

    With … in it, it may be several.
    """

    name: str
    argument: str
    help: str

    @property
    def takes_several(self) -> bool:
        return "…" in self.argument


COMMANDS = (
    Command("help", "", "keys, commands, and what each figure means"),
    Command("model", "[name]", "load another model"),
    Command("drafter", "[name]", "take another drafter, or none"),
    Command("system", "[text]", "set the system prompt, or edit it"),
    Command("set", "[name value]", "change a setting, or see all"),
    Command("stats", "", "the figures of the last reply, in full"),
    Command(
        "compare",
        "[all|name …]",
        "race plain decoding against the drafter on the last prompt, or all drafters in a table",
    ),
    Command("save", "[title]", "name the conversation (it is saved all the time)"),
    Command("sessions", "[search]", "search, resume, rename, delete conversations"),
    Command("clear", "", "begin a new conversation; the old one is saved"),
    Command("regenerate", "", "another reply to the last message"),
    Command("continue", "", "let the last reply go on"),
    Command("edit", "", "edit the last message and branch from there"),
    Command("copy", "[code]", "copy the last reply, or its last code block"),
    Command("export", "[file]", "write the conversation to a Markdown file"),
    Command("thinking", "[on|off]", "let the model think first, where it has the switch"),
    Command("theme", "[name]", "change the colours"),
    Command("exit", "", "leave; the conversation is saved"),
)

_BY_NAME = {command.name: command for command in COMMANDS}

Choices = Callable[[str], Sequence[Choice]]
"""What a command's argument may be, by the command's name."""


def parse(text: str) -> tuple[Command | None, str] | None:
    """A typed line as command (None: there is none of this name) and argument; None: it is no command.

    A slash alone, a path, or more than one line is a message.
    """
    line = text.strip()
    if not line.startswith("/") or "\n" in line:
        return None
    name, _, argument = line[1:].partition(" ")
    if not name.isalpha():
        return None
    return _BY_NAME.get(name.lower()), argument.strip()


def completions(text: str, choices: Choices) -> list[Choice]:
    """What a typed line can become, whole lines with a note each; empty for a message."""
    if not text.startswith("/") or "\n" in text:
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [
            Choice(f"/{command.name}", f"{command.argument} {command.help}".strip())
            for command in COMMANDS
            if command.name.startswith(name.lower())
        ]
    if name not in _BY_NAME:
        return []
    known, earlier = choices(name), ""
    if _BY_NAME[name].takes_several:
        head, space, argument = argument.rpartition(" ")
        earlier = head + space
        if earlier and not argument:
            # The line may be at its end.
            return []
        known = [choice for choice in known if choice.name not in earlier.split()]
    typed = argument.lower()
    if any(choice.name == argument for choice in known):
        # What is whole is meant, even where longer names have it in them.
        return []
    return [
        Choice(f"/{name} {earlier}{choice.name}", choice.note)
        for choice in known
        if typed in choice.name.lower()
    ]

"""Everything the chat can do by key or from the palette, with ids by which the keys can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    Attributes:
        id: its name in the configuration.
        keys: its default keys, with commas between; empty: none.
        name: Textual's name of the action.
        label: what the footer and the palette call it.
        help: one sentence.
        shown: whether the footer shows it.
        first: whether it goes before what the focused widget does with the key.
    """

    id: str
    keys: str
    name: str
    label: str
    help: str
    shown: bool = False
    first: bool = False

    def binding(self) -> Binding:
        return Binding(
            # An action without a key still has a binding, so that the configuration can give it one.
            self.keys or f"unbound-{self.id}",
            self.name,
            self.label,
            id=self.id,
            show=self.shown,
            tooltip=self.help,
            priority=self.first,
        )


CHAT = (
    Action("stop", "escape", "stop", "Stop", "Stop the reply and keep what is there.", True),
    Action("palette", "ctrl+p", "app.command_palette", "Palette", "Find any action by name.", True),
    Action("help", "f1", "help", "Help", "Keys, commands, and what each figure means.", True),
    Action(
        "origins",
        "f2",
        "origins",
        "Origins",
        "Colour tokens by where they came from: drafts, corrections, bonus tokens.",
        True,
    ),
    Action("panel", "f3", "panel", "Panel", "Fold the panel to one line, or unfold it.", True),
    Action("compare", "f4", "compare", "Race", "Race plain decoding against the drafter.", True),
    Action("sessions", "ctrl+s", "sessions", "Sessions", "Search, resume, rename, delete.", True),
    Action("new", "ctrl+n", "new", "New", "Begin a new conversation; the old one is saved.", True),
    Action("model", "ctrl+l", "model", "Model", "Load another model."),
    Action("drafter", "f5", "drafter", "Drafter", "Take another drafter, or none."),
    Action("settings", "f6", "settings", "Settings", "Temperature and the rest.", first=True),
    Action("system", "f7", "system", "System prompt", "Edit the system prompt.", first=True),
    Action("thinking", "ctrl+t", "thinking", "Thinking", "Let the model think first, or not."),
    Action(
        "regenerate", "ctrl+r", "regenerate", "Regenerate", "Another reply to the last message."
    ),
    Action("continue", "f8", "continue", "Continue", "Let the last reply go on."),
    Action("edit", "f9", "edit_last", "Edit", "Edit the last message and branch from there."),
    Action("copy", "ctrl+o", "copy_reply", "Copy reply", "Copy the last reply."),
    Action("copy-code", "", "copy_code", "Copy code", "Copy the last code block."),
    Action("export", "", "export", "Export", "Write the conversation to a Markdown file."),
    Action("rename", "", "rename", "Rename", "Give the conversation another title."),
    Action("clear", "", "new", "Clear", "Clear the screen: a new conversation."),
    Action("stats", "", "stats", "Figures", "The figures of the last reply, in full."),
    Action("editor", "ctrl+g", "editor", "Editor", "Write the message in $EDITOR."),
    Action("select", "ctrl+up", "select_last", "Select message", "Go to the messages."),
    Action("scroll-up", "pageup", "read_back", "Scroll up", "Read back.", first=True),
    Action("scroll-down", "pagedown", "read_on", "Scroll down", "Read on.", first=True),
    Action("end", "ctrl+end", "follow", "To the end", "Follow the reply again.", first=True),
    Action(
        "interrupt",
        "ctrl+c",
        "interrupt",
        "Interrupt",
        "Copy what is selected; else stop the reply; else, pressed twice, quit.",
        first=True,
    ),
)

APP = (Action("quit", "ctrl+q", "quit", "Quit", "Leave; the conversation is saved.", first=True),)

COMPOSER = (
    Action("send", "enter", "send", "Send", "Send the message.", True),
    Action(
        "newline",
        "ctrl+j,shift+enter,alt+enter",
        "newline",
        "Line",
        "Break the line; a trailing backslash and enter do it too.",
        True,
    ),
    Action("complete", "tab", "complete", "Complete", "Complete a command."),
    Action("older", "up", "older", "Older", "An earlier prompt, in an empty composer."),
    Action("newer", "down", "newer", "Newer", "A later prompt."),
)

MESSAGE = (
    Action("message-up", "up", "app.focus_previous", "Up", "The message before."),
    Action("message-down", "down", "app.focus_next", "Down", "The message after."),
    Action("message-copy", "c", "copy", "Copy", "Copy the message.", True),
    Action("message-code", "b", "copy_code", "Copy code", "Copy its next code block.", True),
    Action("message-edit", "e", "edit", "Edit", "Edit it and branch from there.", True),
    Action("message-again", "r", "regenerate", "Regenerate", "Another reply in its place.", True),
    Action("message-older", "left", "version(-1)", "Older", "The version before.", True),
    Action("message-newer", "right", "version(1)", "Newer", "The version after.", True),
    Action("message-leave", "escape", "leave", "Back", "Back to the composer.", True),
)

SESSIONS = (
    Action("session-rename", "ctrl+r", "rename", "Rename", "Give it another title.", True, True),
    Action("session-delete", "ctrl+d", "delete", "Delete", "Delete it; asked twice.", True, True),
    Action("session-down", "down", "down", "Down", "The next one.", first=True),
    Action("session-up", "up", "up", "Up", "The one before.", first=True),
)

DIALOG = (Action("close", "escape", "close", "Back", "Close, and change nothing.", True),)

TEXT = (Action("accept", "ctrl+s", "accept", "Accept", "Take the text as it is.", True),)

EVERY = (*APP, *CHAT, *COMPOSER, *MESSAGE, *SESSIONS, *DIALOG, *TEXT)


_TOGETHER = (
    (*APP, *CHAT, *COMPOSER),
    (*APP, *MESSAGE),
    (*APP, *SESSIONS),
    (*APP, *DIALOG),
    (*APP, *TEXT),
)
"""Actions that want their keys at the same time."""


def clashes(keys: Mapping[str, str]) -> list[str]:
    """What is wrong with the keys of a configuration, an action's id to its keys: one key for two."""
    found: dict[frozenset[str], str] = {}
    for group in _TOGETHER:
        has = {action.id: _split(keys.get(action.id, action.keys)) for action in group}
        for mine in has:
            for other in has:
                both = has[mine] & has[other]
                if mine in keys and mine != other and both:
                    words = f"{min(both)} is the key of both '{mine}' and '{other}'"
                    found.setdefault(frozenset((mine, other)), words)
    return list(found.values())


def _split(keys: str) -> set[str]:
    return {key.strip() for key in keys.split(",")} - {""}


def bindings(actions: tuple[Action, ...]) -> list[Binding]:
    """Textual's bindings of actions."""
    return [action.binding() for action in actions]

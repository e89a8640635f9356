"""What the user takes elsewhere: copies of replies and code, the conversation as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import reason
from localspec.tui import markdown

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


def copy(screen: ChatScreen, text: str, what: str) -> None:
    """Put text on the clipboard and say so."""
    screen.app.copy_to_clipboard(text)
    screen.notify(f"Copied the {what}.")


def copy_reply(screen: ChatScreen) -> None:
    """Copy the last reply."""
    replies = [message for message in screen.conversation.branch if message.role == "assistant"]
    if replies:
        copy(screen, replies[-1].text, "reply")
    else:
        screen.warn("There is no reply to copy.")


def copy_code(screen: ChatScreen) -> None:
    """Copy the last block of code."""
    texts = [message.text for message in screen.conversation.branch]
    blocks = [block for text in texts for block in markdown.code_blocks(text)]
    if blocks:
        copy(screen, blocks[-1], "code block")
    else:
        screen.warn("There is no code to copy.")


def export(screen: ChatScreen, file: str) -> None:
    """Write the open branch as Markdown.

    Args:
        file: where; empty: in this folder, named after the conversation.
    """
    branch = screen.conversation.branch
    if not branch:
        screen.warn("There is nothing to export.")
        return
    title = screen.conversation.title
    text = markdown.export(title, branch, target=screen.target, system=screen.system)
    try:
        # A home folder, or the folder we are in, may be missing too.
        path = Path(file).expanduser() if file else markdown.export_path(title, Path.cwd())
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        screen.warn(f"The conversation cannot be written: {reason(error)}")
    else:
        screen.notify(f"Written to {path}.", markup=False)

"""What an empty conversation shows."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.tui.renderables.styles import MUTED

_LOGO = """\
█   █▀█ █▀▀ ▄▀█ █   █▀ █▀█ █▀▀ █▀▀
█▄▄ █▄█ █▄▄ █▀█ █▄▄ ▄█ █▀▀ ██▄ █▄▄"""

_TIPS = (
    ("enter", "sends, ctrl+j breaks the line"),
    ("f2", "colours tokens by where they came from"),
    ("f4", "races plain decoding against the drafter"),
    ("/", "commands; ctrl+p finds anything, f1 explains it"),
)


class Welcome(Static):
    """The name, and the few keys to begin with."""

    def __init__(self) -> None:
        parts: list[str | tuple[str, str]] = [
            (_LOGO, "$primary"),
            ("\n\nA drafter guesses, the model checks.\n", MUTED),
        ]
        for key, what in _TIPS:
            parts += [(f"\n{key:>7}", "bold $text-accent"), f"  {what}"]
        super().__init__(Content.assemble(*parts), id="welcome")

"""The composer: the text being written, with completions above it."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import OptionList, Static, TextArea

from localspec.tui import commands
from localspec.tui.widgets.completions import Completions
from localspec.tui.widgets.prompt import Prompt


class Composer(Vertical):
    """Posts `Prompt.Sent`.

    Args:
        history: earlier prompts, the latest first.
        choices: what commands take.
    """

    def __init__(self, history: Callable[[], list[str]], choices: commands.Choices) -> None:
        super().__init__(id="composer")
        self.completions = Completions(choices)
        self.prompt = Prompt(self.completions, history)

    def compose(self) -> ComposeResult:
        yield self.completions
        yield Static("", id="editing")
        with Horizontal(id="entry"):
            yield Static("❯", id="sign")
            yield self.prompt

    def editing(self, what: str) -> None:
        """Say above the text what it will do; empty: it is an ordinary message."""
        banner = self.query_one("#editing", Static)
        banner.update(what)
        banner.display = bool(what)

    def on_mount(self) -> None:
        self.editing("")

    @on(TextArea.Changed)
    def _complete(self, event: TextArea.Changed) -> None:
        self.completions.follow(event.text_area.text)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.completions.highlighted = event.option_index
        self.completions.take(self.prompt)
        self.prompt.focus()

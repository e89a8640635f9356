"""All settings with their meanings; a changed one is checked where it stands."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Label, Static

from localspec.errors import UsageError
from localspec.tui.screens.dialog import Dialog
from localspec.tui.settings import OPTIONS, Settings


class SettingsScreen(Dialog[Settings]):
    """Gives the settings, changed or not.

    Args:
        settings: as they are.
    """

    AUTO_FOCUS = "Input"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="frame settings") as frame:
            frame.border_title = "Settings"
            frame.border_subtitle = "enter takes them, escape goes back"
            for option in OPTIONS.values():
                with Horizontal(classes="setting"):
                    yield Label(option.name)
                    yield Input(
                        self._settings.shown(option.name), id=f"set-{option.name}", compact=True
                    )
                    yield Static(f"{option.help} ({option.range})", markup=False)
            yield Static("", id="setting-error", markup=False)

    @on(Input.Submitted)
    def _take(self) -> None:
        settings = self._settings
        try:
            for name in OPTIONS:
                typed = self.query_one(f"#set-{name}", Input).value
                settings = settings.changed(name, typed)
        except UsageError as error:
            self.query_one("#setting-error", Static).update(f"✗ {error}")
            return
        self.dismiss(settings)

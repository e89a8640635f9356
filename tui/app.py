"""The chat's application: themes, keys, the palette, the clipboard; the screens do the rest."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen

from localspec.sessions import Sessions
from localspec.tui import actions, desktop
from localspec.tui.config import DEFAULT_THEME, Config
from localspec.tui.engine import Engine
from localspec.tui.screens.chat import ChatScreen, Start
from localspec.tui.themes import THEMES

_COLLECT_AFTER = (50_000, 20, 20)
_SWITCH_S = 0.001


class ChatApp(App[None], inherit_bindings=False):
    """The terminal chat.

    Args:
        engine: what replies.
        sessions: where conversations are kept.
        config: the user's.
        start: what to begin with.
    """

    TITLE = "localspec"
    CSS_PATH = "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.APP)]
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (96, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-high")]  # noqa: RUF012
    COMMAND_PALETTE_BINDING = "unbound-textual-palette"

    def __init__(self, engine: Engine, sessions: Sessions, config: Config, start: Start) -> None:
        super().__init__()
        self._engine = engine
        self._sessions = sessions
        self._config = config
        self._start = start

    def on_mount(self) -> None:
        # Widgets make so many objects that collecting them at the usual pace takes a fifth of a core.
        gc.set_threshold(*_COLLECT_AFTER)
        # Drawing must not keep the engine's thread waiting for Python.
        sys.setswitchinterval(_SWITCH_S)
        for theme in THEMES:
            self.register_theme(theme)
        known = self._config.theme in self.available_themes
        self.theme = self._config.theme if known else DEFAULT_THEME
        self.set_keymap(self._config.keys)
        self.push_screen(ChatScreen(self._engine, self._sessions, self._config, self._start))
        wrong = actions.clashes(self._config.keys)
        if not known:
            wrong.append(f"there is no theme '{self._config.theme}'")
        for words in wrong:
            self.notify(f"{self._config.path}: {words}", severity="warning", markup=False)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        if isinstance(screen, ChatScreen):
            for action in actions.CHAT:
                if action.id != "palette":
                    run = partial(screen.run_action, action.name)
                    yield SystemCommand(action.label, action.help, run)

    def copy_to_clipboard(self, text: str) -> None:
        if not desktop.copy_with_platform(text):
            super().copy_to_clipboard(text)

    def get_line_filters(self) -> Sequence[LineFilter]:
        # Textual chooses for NO_COLOR before the theme is known; of the terminal's own colours shades
        # of grey cannot be told, and would all be black.
        grey = NoColor() if self.native_ansi_color else None
        filters = super().get_line_filters()
        return [grey or each if isinstance(each, Monochrome) else each for each in filters]

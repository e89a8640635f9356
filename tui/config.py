"""The chat's configuration: a TOML file that explains itself, in the platform's folder."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec import catalog
from localspec.errors import LocalspecError, UsageError
from localspec.tui import actions
from localspec.tui.paths import config_path
from localspec.tui.settings import OPTIONS, Settings

DEFAULT_THEME = "localspec"

_CHAT = {
    "model": (catalog.DEFAULT_MODEL, "a folder, a .gguf file, a bundled name, or a Hub id"),
    "drafter": ("auto", "auto, none, ngram, a drafter's folder or a Hub id"),
    "system": ("", "the system prompt of new conversations"),
    "theme": (
        DEFAULT_THEME,
        "any of Textual's; ansi-dark and ansi-light take the terminal's colours",
    ),
    "panel": (True, "whether the panel is unfolded at the start"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """What a user can configure.

    Attributes:
        model, drafter, system, theme, panel: the table [chat].
        settings: the table [sampling].
        keys: the table [keys]: an action's id to its keys.
        path: the file, whether it is there or not.
    """

    model: str = catalog.DEFAULT_MODEL
    drafter: str = "auto"
    system: str = ""
    theme: str = DEFAULT_THEME
    panel: bool = True
    settings: Settings = field(default_factory=Settings)
    keys: dict[str, str] = field(default_factory=dict)
    path: Path = field(default_factory=config_path)


def read(path: Path) -> Config:
    """Read the file; one that is not there is written first, with every default as a comment.

    Raises:
        UsageError: it is no TOML, or has an unknown name or a bad value; with the file's name.
        LocalspecError: it cannot be read.
    """
    try:
        if not path.exists():
            _write(path)
        values = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    except OSError as error:
        raise LocalspecError(f"{path} cannot be read: {error.strerror}") from error
    _known(values, ("chat", "sampling", "keys"), f"{path}: table")
    chat, sampling, keys = (_table(values, name, path) for name in ("chat", "sampling", "keys"))
    _known(chat, tuple(_CHAT), f"{path}: chat.")
    _known(keys, tuple(action.id for action in actions.EVERY), f"{path}: keys.")
    for name, value in chat.items():
        kind = type(_CHAT[name][0])
        if not isinstance(value, kind):
            words = {str: "a text in quotes", bool: "true or false"}[kind]
            raise UsageError(f"{path}: chat.{name} must be {words}")
    for name, value in keys.items():
        if not isinstance(value, str):
            raise UsageError(f'{path}: keys.{name} must be a text in quotes, as "ctrl+r,f8"')
    settings = Settings.of_dict(sampling, f"{path}: sampling")
    return Config(**chat, settings=settings, keys=keys, path=path)


def template() -> str:
    """The file that is written for a new user."""
    lines = [
        "# localspec chat. What begins with # is commented out: the defaults.",
        "",
        "[chat]",
    ]
    for name, (value, help) in _CHAT.items():
        lines += [f"# {help}", f"# {name} = {_toml(value)}"]
    lines += ["", "[sampling]"]
    defaults = Settings()
    for option in OPTIONS.values():
        value = getattr(defaults, option.name)
        shown = _toml(option.none if value is None else value)
        lines += [f"# {option.help}: {option.range}", f"# {option.name} = {shown}"]
    lines += [
        "",
        "# Keys, by action: names as in ctrl+r, f8, shift+enter, alt+x; several with commas between.",
        "[keys]",
    ]
    lines += [f"# {action.id} = {_toml(action.keys)}  # {action.help}" for action in actions.EVERY]
    return "\n".join(lines) + "\n"


def _write(path: Path) -> None:
    """Leave a file to edit; a folder that cannot be written is no reason not to chat."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template(), encoding="utf-8")
    except OSError:
        return


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _table(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} must be a table, [{name}]")
    return table


def _known(values: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in values:
        if name not in names:
            raise UsageError(f"{where} '{name}' is unknown; there are {', '.join(names)}")

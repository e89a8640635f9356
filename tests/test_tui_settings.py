"""Settings and the configuration file: what they take and refuse, in words."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.tui import config
from localspec.tui.actions import EVERY
from localspec.tui.settings import OPTIONS, Settings


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("top-k", "40", 40),
        ("max_tokens", "max", None),
        ("max_tokens", "12", 12),
        ("seed", "random", None),
        ("width", " 4 ", 4),
        ("thinking", "OFF", False),
    ],
)
def test_values_are_read(name: str, text: str, value: object) -> None:
    changed = Settings().changed(name, text)
    assert getattr(changed, name.replace("-", "_")) == value
    shown = changed.shown(name.replace("-", "_"))
    assert changed.changed(name, shown) == changed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "hot"),
        ("temperature", "-1"),
        ("temperature", "nan"),
        ("top_p", "0"),
        ("top_k", "1.5"),
        ("max_tokens", "0"),
        ("seed", "-3"),
        ("thinking", "perhaps"),
        ("nonsense", "1"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        Settings().changed(name, text)


def test_settings_survive_storage() -> None:
    settings = Settings(temperature=0.5, max_tokens=None, seed=7, thinking=False)
    assert Settings.of_dict(settings.as_dict(), "x") == settings


def test_a_new_configuration_has_every_name_as_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "new" / "chat.toml"
    assert config.read(path) == config.Config(path=path)
    text = path.read_text()
    for name in (*OPTIONS, *(action.id for action in EVERY), "model", "theme"):
        assert f"# {name} = " in text
    # With the comment signs away it is the same configuration.
    lines = [line.removeprefix("# ") if " = " in line else line for line in text.splitlines()]
    path.write_text("\n".join(lines))
    read = config.read(path)
    assert read.settings == Settings()
    assert read.keys == {action.id: action.keys for action in EVERY}
    assert tomllib.loads(path.read_text())["chat"]["theme"] == "localspec"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[chat", "not valid TOML"),
        ("[chatt]\n", "chatt"),
        ("[chat]\nmodle = 'x'", "modle"),
        ("[chat]\npanel = 'yes'", "panel must be true or false"),
        ("[sampling]\ntemperature = 9", "temperature must be"),
        ("[keys]\nfly = 'f1'", "fly"),
        ("[keys]\nstop = 1", "keys.stop"),
        ("chat = 1", r"\[chat\]"),
    ],
)
def test_mistakes_name_the_file_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "chat.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        config.read(path)
    assert "chat.toml" in str(caught.value)


def test_ids_and_keys_are_unique_where_they_meet() -> None:
    ids = [action.id for action in EVERY]
    assert len(ids) == len(set(ids))

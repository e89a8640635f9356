"""The chat before anything has happened: its keys, and what it imports."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from localspec.tui import actions
from localspec.tui.actions import Action

_IMPORTS = """
import sys
import localspec.cli.chat
import localspec.sessions
import localspec.tui.app
import localspec.tui.deferred
print([name for name in ("mlx", "mlx_lm", "transformers", "torch") if name in sys.modules])
"""


def test_the_first_frame_needs_no_mlx() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "together",
    [
        (*actions.APP, *actions.CHAT),
        # What a widget takes goes before what the screen does, unless that has priority.
        (*actions.COMPOSER, *(action for action in (*actions.APP, *actions.CHAT) if action.first)),
        (*actions.MESSAGE, *(action for action in (*actions.APP, *actions.CHAT) if action.first)),
        (*actions.SESSIONS, *actions.DIALOG, *actions.APP),
        (*actions.TEXT, *actions.DIALOG, *actions.APP),
    ],
)
def test_keys_are_unique_where_they_meet(together: tuple[Action, ...]) -> None:
    keys = Counter(key for action in together for key in action.keys.split(",") if key)
    assert [key for key, count in keys.items() if count > 1] == []


def test_every_action_has_an_id_of_its_own() -> None:
    assert Counter(action.id for action in actions.EVERY).most_common(1)[0][1] == 1

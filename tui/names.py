"""Names of models and drafters in few cells."""

from __future__ import annotations

from pathlib import PurePath

from localspec.tui.engine import PLAIN


def short(name: str, room: int) -> str:
    """A name that fits: of a path or Hub id the last part, and its end cut."""
    last = name if len(name) <= room else PurePath(name).name
    return last if len(last) <= room else last[: max(0, room - 1)] + "…"


def spoken(drafter: str) -> str:
    """A drafter's name, plain decoding among them."""
    return "plain" if drafter == PLAIN else drafter

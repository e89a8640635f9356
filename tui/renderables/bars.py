"""Bars and sparklines out of block characters."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS_RIGHT = " ▏▎▍▌▋▊▉█"
_EIGHTHS_UP = " ▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """A horizontal bar, `width` cells long at 1.0, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS_RIGHT[part] if part else "")).ljust(width)


def columns(values: Sequence[float], *, width: int, height: int, top: float) -> list[str]:
    """The last `width` values as columns, the newest on the right; lines from the top down.

    Args:
        top: the value that fills all of `height` cells.
    """
    shown = list(values)[-width:]
    lines = []
    for row in range(height - 1, -1, -1):
        cells = []
        for value in shown:
            eighths = round(min(value / top, 1.0) * height * 8) - row * 8
            cells.append(_EIGHTHS_UP[max(0, min(8, eighths))])
        lines.append("".join(cells).rjust(width))
    return lines

"""The table of drafters that ran on one prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from localspec.tui.contest import Entry, fastest
from localspec.tui.names import short, spoken
from localspec.tui.renderables.styles import MUTED

_MAX_NAME = 24
_MIN_POSITIONS, _MAX_POSITIONS = 3, 8
_FIGURES = 29
"""Cells of the figures between the name and the positions."""
_SHARE = 5
"""Cells of a position."""


def table(entries: Sequence[Entry], width: int) -> Content:
    """A row for each drafter, plain decoding first, in `width` cells; only reasons may be longer."""
    longest = max(len(spoken(entry.name)) for entry in entries)
    most = min(_MAX_NAME, width - _FIGURES - _MIN_POSITIONS * _SHARE)
    room = max(min(longest, most), len("drafter"))
    positions = "acceptance by position"
    if room + _FIGURES + 1 + len(positions) > width:
        positions = "by position"
    head = f"{'drafter':<{room}} {'length':>7} {'tokens/s':>9} {'of plain':>9}  {positions}"
    best = fastest(entries)
    rows = [Content.styled(head[:width], MUTED)]
    for entry in entries:
        name = f"{short(spoken(entry.name), room):<{room}} "
        if entry.fault:
            rows.append(Content.assemble(name, (f" ✗ {entry.fault}", "$text-warning")))
        elif not entry.lap.rounds:
            rows.append(Content.assemble(name, (f" {entry.state}", MUTED)))
        else:
            style = "bold $text-success" if entry is best else ""
            rows.append(Content.styled(name + _figures(entry, entries[0], width - room), style))
    return Content("\n").join(rows)


def _figures(entry: Entry, plain: Entry, room: int) -> str:
    stats = entry.lap.stats
    ratio = f"{entry.speed / plain.speed:.2f}x" if plain.speed else "–"
    figures = f"{stats.accepted_length:7.2f} {entry.speed:9.1f} {ratio:>9} "
    fit = min(_MAX_POSITIONS, (room - _FIGURES) // _SHARE)
    shares = stats.acceptance_by_position[:fit]
    return figures + "".join(f" {share:>4.0%}" for share in shares)

"""The table of drafters that ran on one prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from localspec.tui.contest import Entry, fastest
from localspec.tui.names import short, spoken
from localspec.tui.renderables.styles import MUTED

_MAX_NAME = 24
_MAX_POSITIONS = 8


def table(entries: Sequence[Entry], width: int) -> Content:
    """A row for each drafter, plain decoding first, in `width` cells; only reasons may be longer."""
    longest = max(len(spoken(entry.name)) for entry in entries)
    room = min(_MAX_NAME, max(longest, len("drafter")))
    head = (
        f"{'drafter':<{room}} {'length':>7} {'tokens/s':>9} {'of plain':>9}  acceptance by position"
    )
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
            rows.append(Content.styled(name + _figures(entry, entries[0], width - room - 1), style))
    return Content("\n").join(rows)


def _figures(entry: Entry, plain: Entry, room: int) -> str:
    stats = entry.lap.stats
    ratio = f"{entry.speed / plain.speed:.2f}x" if plain.speed else "–"
    figures = f"{stats.accepted_length:7.2f} {entry.speed:9.1f} {ratio:>9} "
    fit = min(_MAX_POSITIONS, max(0, room - len(figures)) // 5)
    shares = stats.acceptance_by_position[:fit]
    return figures + "".join(f" {share:>4.0%}" for share in shares)

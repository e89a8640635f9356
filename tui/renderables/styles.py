"""Styles that several parts share."""

from __future__ import annotations

MUTED = "$foreground 60%"
"""For what is read second. Textual's `$text-muted` needs a background, which text on its own has not."""

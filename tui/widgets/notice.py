"""Something that went wrong, in words, where it happened."""

from __future__ import annotations

from textual.widgets import Static


class Notice(Static):
    """One sentence in the transcript."""

    def __init__(self, words: str) -> None:
        super().__init__(f"✗ {words}", classes="notice", markup=False)

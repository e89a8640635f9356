"""Marks in streamed text: how much of its end may be the beginning of one."""

from __future__ import annotations


def num_held(text: str, *marks: str) -> int:
    """Length of the longest end of the text that begins a mark without being all of it."""
    longest = max(map(len, marks), default=1) - 1
    for length in range(min(len(text), longest), 0, -1):
        end = text[-length:]
        if any(len(mark) > length and mark.startswith(end) for mark in marks):
            return length
    return 0

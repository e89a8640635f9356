"""The chat's own colours; Textual's themes are there too."""

from __future__ import annotations

from textual.theme import Theme

LOCALSPEC = Theme(
    name="localspec",
    primary="#7aa2f7",
    secondary="#56b6c2",
    accent="#e0af68",
    success="#7fd88f",
    warning="#e5c07b",
    error="#f7768e",
    foreground="#d5d9e5",
    background="#11131a",
    surface="#161922",
    panel="#1e2230",
    variables={
        "footer-background": "#161922",
        "footer-key-foreground": "#7aa2f7",
        "footer-description-foreground": "#8d94a8",
        "input-selection-background": "#7aa2f7 35%",
        "scrollbar": "#2a2f42",
        "scrollbar-background": "#11131a",
        "scrollbar-background-hover": "#11131a",
        "scrollbar-background-active": "#11131a",
    },
)

LOCALSPEC_LIGHT = Theme(
    name="localspec-light",
    primary="#2e5bd0",
    secondary="#0f7b8a",
    accent="#a8620a",
    success="#1e7d3c",
    warning="#8f6400",
    error="#c0264b",
    foreground="#22252e",
    background="#fbfbf9",
    surface="#f2f2ee",
    panel="#e7e7e1",
    dark=False,
)

THEMES = (LOCALSPEC, LOCALSPEC_LIGHT)

"""The figures of speculation as text: the panel's body, and the one line it folds to."""

from __future__ import annotations

from dataclasses import dataclass, field

from textual.content import Content

from localspec.tui.engine import Loaded
from localspec.tui.figures import Figures
from localspec.tui.names import short, spoken
from localspec.tui.renderables.bars import bar, columns
from localspec.tui.renderables.styles import MUTED

_MAX_POSITIONS = 8
_SPARK_HEIGHT = 2
_LABEL = 12


@dataclass(slots=True)
class View:
    """What the panel shows.

    Attributes:
        figures: of the reply under way, or the last one.
        loaded: the models; None: not yet.
        memory: bytes.
        activity: what goes on, in a few words; empty: nothing.
    """

    figures: Figures = field(default_factory=Figures)
    loaded: Loaded | None = None
    memory: int = 0
    activity: str = ""


def speed(view: View) -> str:
    """Tokens a second, for large digits."""
    value = view.figures.stats.tokens_per_second
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def ratio(view: View) -> Content:
    """Speed relative to plain decoding; estimated until that is measured."""
    value, plain = view.figures.ratio, view.figures.plain_speed
    if value is None:
        known = f"plain {plain:.1f} tok/s" if plain else "plain speed not measured yet"
        return Content.styled(known, MUTED)
    if plain is None:
        return Content.assemble(
            (f"≤ {value:.2f}x", "bold $text-warning"), (" plain, estimated", MUTED)
        )
    style = "bold $text-success" if value >= 1 else "bold $text-warning"
    return Content.assemble((f"{value:.2f}x", style), (f" plain ({plain:.1f})", MUTED))


def body(view: View, width: int, height: int) -> Content:
    """Everything below the large digits, in `width` cells; positions are left out to fit `height`."""
    models = _models(view, width)
    drafting = _drafting(view, width, height - len(models))
    return Content("\n").join(drafting + models)


def line(view: View, width: int) -> Content:
    """The panel in one line, as much of it as fits into `width` cells."""
    figures, stats = view.figures, view.figures.stats
    parts: list[Content] = [Content.styled(f"{speed(view)} tok/s", "bold $text-primary")]
    if (value := figures.ratio) is not None:
        sign = "" if figures.plain_speed else "≤"
        parts.append(Content.styled(f"{sign}{value:.2f}x", "bold $text-success"))
    if stats.rounds:
        parts.append(
            Content.assemble(
                ("acc ", MUTED),
                (f"{figures.accepted_now:.1f}", "bold"),
                (f"/{stats.accepted_length:.2f}", MUTED),
            )
        )
        spark = columns(figures.rounds, width=8, height=1, top=_top(figures))[0]
        parts.append(Content.styled(spark, "$text-accent"))
        if figures.parked and view.loaded and view.loaded.drafts:
            parts.append(Content.styled("parked", "$text-warning"))
        else:
            parts.append(Content.styled(f"w{figures.width}", MUTED))
    if view.loaded:
        used = f"{_context(figures)}/{view.loaded.context_length}"
        parts.append(Content.styled(used, MUTED))
        parts.append(Content.styled(_drafter(view.loaded.drafter, figures, 17), MUTED))
    if view.activity:
        parts.insert(0, Content.styled(view.activity, "$text-warning"))
    shown, used_cells = [], 0
    for part in parts:
        used_cells += part.cell_length + 2
        if used_cells > width + 2:
            break
        shown.append(part)
    return Content("  ").join(shown)


def _drafting(view: View, width: int, height: int) -> list[Content]:
    figures, stats = view.figures, view.figures.stats
    lines = [
        _heading("accepted length", width),
        Content.assemble(
            ("now ", MUTED),
            (f"{figures.accepted_now:.1f}" if stats.rounds else "–", "bold $text-accent"),
            ("   reply ", MUTED),
            (f"{stats.accepted_length:.2f}" if stats.rounds else "–", "bold $text-accent"),
        ),
    ]
    spark = columns(figures.rounds, width=width, height=_SPARK_HEIGHT, top=_top(figures))
    lines += [Content.styled(row, "$text-accent") for row in spark]
    lines += [Content(""), _heading("accepted by position", width)]
    shares = stats.acceptance_by_position
    room = max(1, min(_MAX_POSITIONS, height - len(lines) - 2))
    if not shares:
        nothing = "drafting is off" if view.loaded and not view.loaded.drafts else "no drafts yet"
        lines.append(Content.styled(nothing, MUTED))
    for position, share in enumerate(shares[:room], 1):
        lines.append(
            Content.assemble(
                (f"{position:>2} ", MUTED),
                (bar(share, width - 9), "$success"),
                (f"{share:>5.0%}", "bold"),
            )
        )
    lines += [Content(""), _width(view)]
    return lines


def _models(view: View, width: int) -> list[Content]:
    figures, stats, loaded = view.figures, view.figures.stats, view.loaded
    room = width - _LABEL
    first = f"{stats.time_to_first_token_s:.2f} s" if stats.time_to_first_token_s else "–"
    rows = [("target", short(loaded.target, room) if loaded else "…")]
    rows.append(("drafter", _drafter(loaded.drafter, figures, room) if loaded else "…"))
    if loaded:
        rows.append(("context", f"{_context(figures)} / {loaded.context_length}"))
    rows += [("first token", first), ("memory", f"{view.memory / 1e9:.2f} GB")]
    lines = [Content(""), _heading("model", width)]
    for name, value in rows:
        lines.append(Content.assemble((f"{name:<{_LABEL}}", MUTED), value[:room]))
    return lines


def _width(view: View) -> Content:
    figures = view.figures
    if view.loaded and not view.loaded.drafts:
        return Content.styled("plain decoding", MUTED)
    state = ("parked", "bold $text-warning") if figures.parked else (f"{figures.width}", "bold")
    if not figures.rounds:
        state = ("–", "bold")
    share = f"   parked {figures.stats.parked_share:.0%}" if figures.stats.rounds else ""
    return Content.assemble(("width ", MUTED), state, (share, MUTED))


def _drafter(name: str, figures: Figures, room: int) -> str:
    """The drafter's name; of several the one that plays, too."""
    if figures.arm is None:
        return short(name, room)
    return f"{name} → {short(spoken(figures.arm), room - len(name) - 3)}"


def _context(figures: Figures) -> str:
    """Tokens, which are not known before a reply."""
    return str(figures.context_used or "–")


def _heading(text: str, width: int) -> Content:
    return Content.assemble(
        (f"{text} ", "bold $text-primary"), ("─" * (width - len(text) - 1), "$foreground 20%")
    )


def _top(figures: Figures) -> float:
    return max(4, *figures.rounds) if figures.rounds else 4

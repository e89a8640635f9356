"""A comparison as one HTML page that needs nothing else: tables and plots in SVG."""

from __future__ import annotations

from html import escape

from localspec.lab.compare import OVERALL, PLAIN, Comparison, ratios

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr.best td { font-weight: 600; }
figure { margin: 1rem 0; } figcaption { color: #666; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; }
  th, td { border-color: #444; } figcaption { color: #aaa; } svg text { fill: #ddd; } }
"""


def page(model: str, machine: str, comparison: Comparison) -> str:
    """The whole page.

    Args:
        machine: where it was measured.
    """
    settings = comparison.settings
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f"<title>Drafters of {escape(model)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Drafters of {escape(model)}</h1>",
        f"<p>{len(comparison.figures[OVERALL][PLAIN].speeds)} prompts, at most {settings.max_tokens} "
        f"tokens each, temperature {settings.temperature:g}; every prompt through every drafter, in "
        f"turns. Measured on: {escape(machine)}.</p>",
        _speeds(comparison),
    ]
    for kind in comparison.kinds:
        winner = comparison.winner(kind)
        noise = (
            f", no clearer than noise before {_shown(winner.runner_up)}"
            if winner.runner_up and winner.within_noise
            else ""
        )
        parts += [
            f"<h2>{escape(kind)}</h2><p>Fastest: {escape(_shown(winner.name))}{escape(noise)}.</p>",
            _table(comparison, kind),
            _acceptance(comparison, kind),
        ]
    return "\n".join([*parts, "</body></html>\n"])


def _shown(name: str) -> str:
    return "plain" if name == PLAIN else name


def _table(comparison: Comparison, kind: str) -> str:
    heads = (
        *("drafter", "accepted length", "tokens/s", "of plain", "quartiles"),
        *("drafting", "verifying", "predicted tokens/s", "MB"),
    )
    rows = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    best = comparison.winner(kind).name
    for name, figures in comparison.figures[kind].items():
        ratio, low, high = ratios(figures, comparison.figures[kind][PLAIN])
        predicted = figures.predicted_speed
        cells = (
            escape(_shown(name)),
            f"{figures.accepted_length:.2f}",
            f"{figures.speed:.1f}",
            f"{ratio:.2f}",
            f"{low:.2f}–{high:.2f}",
            f"{figures.draft_share:.0%}",
            f"{figures.verify_share:.0%}",
            "–" if predicted is None else f"{predicted:.1f}",
            f"{figures.memory / 1e6:.0f}",
        )
        mark = " class=best" if name == best else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _speeds(comparison: Comparison) -> str:
    """Bars of speed over plain, by kind and drafter, with quartiles."""
    names = [name for name in comparison.names if name != PLAIN]
    group, bar, height, left = 18 * len(names) + 24, 14, 220, 40
    every = [
        ratios(comparison.figures[kind][name], comparison.figures[kind][PLAIN])
        for kind in comparison.kinds
        for name in names
    ]
    top = max([1.5, *(high for _, _, high in every), *(ratio for ratio, _, _ in every)])
    width = left + group * len(comparison.kinds) + 10

    def y(value: float) -> float:
        return height - 30 - (height - 50) * value / top

    shapes = [
        f'<line x1="{left}" x2="{width}" y1="{y(1):.1f}" y2="{y(1):.1f}" stroke="#888" '
        'stroke-dasharray="4"/>',
        f'<text x="2" y="{y(1) + 4:.1f}" font-size="11">plain</text>',
    ]
    values = iter(every)
    for place, kind in enumerate(comparison.kinds):
        x = left + place * group + 8
        shapes.append(f'<text x="{x}" y="{height - 10}" font-size="12">{escape(kind)}</text>')
        for index, name in enumerate(names):
            ratio, low, high = next(values)
            at = x + index * 18
            colour = _COLOURS[index % len(_COLOURS)]
            shapes.append(
                f'<rect x="{at}" y="{y(ratio):.1f}" width="{bar}" height="{y(0) - y(ratio):.1f}" '
                f'fill="{colour}"><title>{escape(name)}: {ratio:.2f}</title></rect>'
                f'<line x1="{at + 7}" x2="{at + 7}" y1="{y(low):.1f}" y2="{y(high):.1f}" '
                'stroke="#444"/>'
            )
    return _figure(shapes, width, height, names, "Tokens a second over plain decoding")


def _acceptance(comparison: Comparison, kind: str) -> str:
    """Lines of acceptance by position."""
    drafted = {name: f for name, f in comparison.figures[kind].items() if f.acceptance}
    if not drafted:
        return ""
    width, height, left = 420, 180, 40
    longest = max(len(figures.acceptance) for figures in drafted.values())
    step = (width - left - 20) / max(1, longest - 1)
    shapes = [
        f'<text x="2" y="{_level(share, height) + 4:.1f}" font-size="11">{share:.0%}</text>'
        f'<line x1="{left}" x2="{width}" y1="{_level(share, height):.1f}" '
        f'y2="{_level(share, height):.1f}" stroke="#ccc"/>'
        for share in (0.0, 0.5, 1.0)
    ]
    names = [name for name in comparison.names if name != PLAIN]
    for name, figures in drafted.items():
        colour = _COLOURS[names.index(name) % len(_COLOURS)]
        points = " ".join(
            f"{left + place * step:.1f},{_level(share, height):.1f}"
            for place, share in enumerate(figures.acceptance)
        )
        shapes.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
    return _figure(
        shapes, width, height, list(drafted), "Acceptance by position in the round", names
    )


def _level(share: float, height: int) -> float:
    return height - 15 - (height - 30) * share


def _figure(
    shapes: list[str],
    width: int,
    height: int,
    names: list[str],
    caption: str,
    coloured: list[str] | None = None,
) -> str:
    order = coloured or names
    legend = " ".join(
        f'<span style="color:{_COLOURS[order.index(name) % len(_COLOURS)]}">■</span> {escape(name)}'
        for name in names
    )
    return (
        f'<figure><svg width="{width}" height="{height}" role="img" aria-label="{escape(caption)}">'
        f"{''.join(shapes)}</svg><figcaption>{escape(caption)}. {legend}</figcaption></figure>"
    )

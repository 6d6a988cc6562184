"""A line chart as SVG: step time against budget, a line a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 30, 50
COLOURS = (
    "#0b6e99", "#c4554d", "#448361", "#9065b0", "#d9730d",
    "#787774", "#cb912f", "#c14c8a", "#337ea9", "#000000",
)  # fmt: skip

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], x_label: str, y_label: str, y_max: float) -> str:
    """One self-contained SVG image. Values over ``y_max`` are cut off."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = min(ys), min(max(ys), y_max)
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        share_x = (x - x_low) / ((x_high - x_low) or 1.0)
        share_y = (min(y, y_high) - y_low) / ((y_high - y_low) or 1.0)
        return LEFT + across * share_x, TOP + down * (1.0 - share_y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *(_tick(LEFT - 8, at(x_low, y)[1], "end", f"{y:.2f}") for y in _ticks(y_low, y_high)),
        *(
            _tick(at(x, y_low)[0], HEIGHT - BOTTOM + 18, "middle", f"{x:.1f}")
            for x in _ticks(x_low, x_high)
        ),
        _tick(LEFT + across / 2, HEIGHT - 10, "middle", x_label),
        _tick(LEFT, TOP - 12, "start", y_label),
        f'<path d="M{LEFT} {TOP}V{TOP + down}H{LEFT + across}" fill="none" stroke="#999"/>',
    ]
    for index, (name, points) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in sorted(points))
        thick = 3 if index == 0 else 1.5
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thick}"/>'
        )
        row = TOP + 18 * index
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 16}" y="{row}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(_tick(WIDTH - RIGHT + 34, row + 10, "start", name))
    return "\n".join([*parts, "</svg>", ""])


def _ticks(low: float, high: float) -> list[float]:
    return [low + (high - low) * i / 4 for i in range(5)]


def _tick(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

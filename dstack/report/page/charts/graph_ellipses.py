"""Boxes of one cycle on an ellipse, or along a rectangle if there are many, and the direct edges between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import cos, pi, sin

Point = tuple[float, float]
Size = tuple[float, float]
MOST_ON_ELLIPSE = 10
SPACE_X, SPACE_Y = 80.0, 40.0
BULGE = 0.12
"""How far an edge bends from the straight line, as a share of its length: two opposite ones remain apart."""
STEPS, KEPT = 120, 12
"""An edge ends at the last of so many points that is outside of the box; of all points, few are enough to draw it."""


def ellipse(group: Sequence[int], sizes: Sequence[Size], leftmost: int) -> dict[int, Point]:
    """The centres of these boxes in their order, clockwise, around (0, 0); they do not overlap."""
    start = group.index(leftmost)
    order = [*group[start:], *group[:start]]
    if len(order) == 1:
        return {order[0]: (0.0, 0.0)}
    width = max(sizes[number][0] for number in order) + SPACE_X
    height = max(sizes[number][1] for number in order) + SPACE_Y
    if len(order) > MOST_ON_ELLIPSE:
        return _rectangle(order, width, height)
    angles = [pi + 2 * pi * place / len(order) for place in range(len(order))]
    scale = max(1 / max(abs(cos(a) - cos(b)), abs(sin(a) - sin(b)), 1e-6) for a, b in combinations(angles, 2))
    points = [(cos(angle) * width * scale, sin(angle) * height * scale) for angle in angles]
    return dict(zip(order, points, strict=True))


def _rectangle(order: Sequence[int], width: float, height: float) -> dict[int, Point]:
    """The first box is at the upper left; the last row or column may be shorter."""
    half = (len(order) + 1) // 2
    rows = max(1, min(half - 1, round(half * width / (width + 2 * height))))
    columns = half - rows
    path = [(x, 0) for x in range(columns)]
    path += [(columns, y) for y in range(rows)]
    path += [(x, rows) for x in range(columns, 0, -1)]
    path += [(0, y) for y in range(rows, 0, -1)]
    return {
        number: ((x - columns / 2) * width, (y - rows / 2) * height)
        for number, (x, y) in zip(order, path, strict=False)
    }


def extent(offsets: Mapping[int, Point], sizes: Sequence[Size]) -> Size:
    """The size of the boxes around (0, 0) together."""
    return (
        2 * max(abs(x) + sizes[number][0] / 2 for number, (x, _) in offsets.items()),
        2 * max(abs(y) + sizes[number][1] / 2 for number, (_, y) in offsets.items()),
    )


def direct_route(link: tuple[int, int], centres: Mapping[int, Point], sizes: Sequence[Size]) -> tuple[Point, ...]:
    """A slightly bent line between the borders of two boxes."""
    (ax, ay), (bx, by) = (centres[number] for number in link)
    middle = ((ax + bx) / 2 + BULGE * (by - ay), (ay + by) / 2 - BULGE * (bx - ax))
    points = []
    for step in range(STEPS + 1):
        t = step / STEPS
        at, mid, to = (1 - t) ** 2, 2 * t * (1 - t), t**2
        points.append((at * ax + mid * middle[0] + to * bx, at * ay + mid * middle[1] + to * by))
    outside = [point for point in points if not any(_is_in(point, centres[n], sizes[n]) for n in link)]
    if len(outside) < 2:
        return points[0], points[-1]
    step = max(1, len(outside) // KEPT)
    return (*outside[:-1:step], outside[-1])


def _is_in(point: Point, centre: Point, size: Size) -> bool:
    return abs(point[0] - centre[0]) < size[0] / 2 and abs(point[1] - centre[1]) < size[1] / 2

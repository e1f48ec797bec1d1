"""Layered layout of a directed graph of boxes: edges lead from left to right, through the gaps between the boxes.

Steps: each cycle becomes an ellipse, or is opened; layers by the longest way; order within layers by barycentres;
places by the least squares that keep the order. Components are beside and below each other. Lengths are in pixels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import cos, hypot, pi, sin, sqrt

import networkx as nx

Point = tuple[float, float]
Size = tuple[float, float]
MOST_ON_ELLIPSE = 10
SPACE_X, SPACE_Y = 80.0, 40.0
BULGE = 0.12
"""How far an edge bends from the straight line, as a share of its length: two opposite ones remain apart."""
STEPS, KEPT = 120, 12
"""An edge ends at the last of so many points that is outside of the box; of all points, few are enough to draw it."""
GAP_X, GAP_Y = 64.0, 16.0
COMPONENT_GAP = 40.0
THREAD_HEIGHT, THREAD_GAP = 4.0, 3.0
"""A long edge keeps so much free in the layers that it crosses."""
SWEEPS = 8
LEAST_COLUMN, WIDEST_ROW = 600.0, 1200.0
ROUND_PX = 15.0
"""The distance of an edge from the boxes that it passes."""
CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


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


Link = tuple[int, int]


@dataclass(slots=True)
class GraphLayout:
    """Centres of the boxes by number, the points of each edge from border to border, and the size of the whole."""

    centres: dict[int, Point] = field(default_factory=dict)
    routes: dict[Link, tuple[Point, ...]] = field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0


def layout(sizes: Sequence[Size], links: Sequence[Link], *, has_ellipses: bool, is_from_targets: bool) -> GraphLayout:
    """Place the boxes with these sizes; the first ones come first.

    With ``has_ellipses``, boxes of one cycle are on an ellipse; otherwise an edge that closes a cycle leads backwards.
    A box is as far right as its waiters allow with ``is_from_targets``, else as far left as its callers allow.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(sizes)))
    graph.add_edges_from((a, b) for a, b in links if a != b)
    parts = sorted(nx.weakly_connected_components(graph), key=min)
    placed = [_Component(graph.subgraph(part), sizes, has_ellipses, is_from_targets).layout() for part in parts]
    return _packed(placed)


def _packed(parts: Sequence[GraphLayout]) -> GraphLayout:
    """All components in rows."""
    whole = GraphLayout()
    area = sum((part.width + COMPONENT_GAP) * (part.height + COMPONENT_GAP) for part in parts)
    widest = max([WIDEST_ROW, 1.6 * sqrt(area), *(part.width for part in parts)])
    left = top = height = 0.0
    for part in parts:
        if left and left + part.width > widest:
            left, top, height = 0.0, top + height + COMPONENT_GAP, 0.0
        whole.centres |= {number: (x + left, y + top) for number, (x, y) in part.centres.items()}
        whole.routes |= {link: tuple((x + left, y + top) for x, y in way) for link, way in part.routes.items()}
        whole.width = max(whole.width, left + part.width)
        left, height = left + part.width + COMPONENT_GAP, max(height, part.height)
    whole.height = top + height
    return whole


@dataclass(slots=True)
class _Item:
    """One or more boxes of one layer, or a part of a long edge; ``offsets`` are the centres of its boxes in it."""

    size: Size
    layer: int
    offsets: Mapping[int, Point]
    y: float = 0.0


class _Component:
    def __init__(
        self, graph: nx.DiGraph[int], sizes: Sequence[Size], has_ellipses: bool, is_from_targets: bool
    ) -> None:
        self._sizes = sizes
        self._edges = sorted(graph.edges)
        self._reversed: set[Link] = set()
        self._item_of: dict[int, int] = {}
        self._items: list[_Item] = []
        groups = sorted(map(sorted, nx.strongly_connected_components(graph)))
        if not has_ellipses:
            self._reversed = _backward(graph)
            groups = [[number] for number in sorted(graph)]
        for group in groups:
            self._add(group, graph)
        self._set_layers(is_from_targets)
        self._chains = self._add_threads()

    def _add(self, group: list[int], graph: nx.DiGraph[int]) -> None:
        outside = {number: sum(one not in group for one in graph.predecessors(number)) for number in group}
        offsets = ellipse(group, self._sizes, max(group, key=lambda number: (outside[number], -number)))
        self._item_of |= dict.fromkeys(group, len(self._items))
        width, height = extent(offsets, self._sizes)
        around = 2 * ROUND_PX if len(group) > 1 else 0.0
        self._items.append(_Item((width, height + around), 0, offsets))

    def _forward(self, link: Link) -> Link:
        return (link[1], link[0]) if link in self._reversed else link

    # Layers

    def _set_layers(self, is_from_targets: bool) -> None:
        """The longest way to each item, further if its layer is full."""
        items: nx.DiGraph[int] = nx.DiGraph()
        items.add_nodes_from(range(len(self._items)))
        for a, b in map(self._forward, self._edges):
            if self._item_of[a] != self._item_of[b]:
                items.add_edge(self._item_of[a], self._item_of[b])
        ahead = items.reverse(copy=False) if is_from_targets else items
        area = sum(item.size[0] * item.size[1] for item in self._items)
        fullest = max(LEAST_COLUMN, 1.6 * sqrt(area))
        heights: dict[int, float] = defaultdict(float)
        for number in nx.lexicographical_topological_sort(ahead):
            item = self._items[number]
            item.layer = max((self._items[one].layer + 1 for one in ahead.predecessors(number)), default=0)
            while heights[item.layer] and heights[item.layer] + item.size[1] > fullest:
                item.layer += 1
            heights[item.layer] += item.size[1] + GAP_Y
        if is_from_targets:
            last = max(item.layer for item in self._items)
            for item in self._items:
                item.layer = last - item.layer

    def _add_threads(self) -> dict[Link, list[int]]:
        """The items that each edge passes, from its left end to its right one; edges with one right end share them."""
        chains = {}
        threads: dict[tuple[int, int], int] = {}
        for link in self._edges:
            a, b = self._forward(link)
            first, last = self._item_of[a], self._item_of[b]
            if first == last:
                continue
            chains[link] = [first]
            for layer in range(self._items[first].layer + 1, self._items[last].layer):
                if (b, layer) not in threads:
                    threads[b, layer] = len(self._items)
                    self._items.append(_Item((0.0, THREAD_HEIGHT), layer, {}))
                chains[link].append(threads[b, layer])
            chains[link].append(last)
        return chains

    # Places

    def layout(self) -> GraphLayout:
        """The places of its boxes and edges."""
        layers: list[list[int]] = [[] for _ in range(1 + max(item.layer for item in self._items))]
        for number, item in enumerate(self._items):
            layers[item.layer].append(number)
        ties = self._ties()
        for layer in layers:
            self._place(layer, dict.fromkeys(layer, 0.0))
        for sweep in range(2 * SWEEPS):
            is_sorting = sweep < SWEEPS
            for layer in layers if sweep % 2 else reversed(layers):
                wanted = {number: self._wanted(number, ties) for number in layer}
                if is_sorting:
                    layer.sort(key=wanted.__getitem__)
                self._place(layer, wanted)
        return self._result(layers)

    def _ties(self) -> Mapping[int, Sequence[tuple[int, float]]]:
        """The neighbours of each item, with the difference of the heights at which they would be level."""
        ties: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for link, chain in self._chains.items():
            a, b = self._forward(link)
            first, last = self._items[chain[0]], self._items[chain[-1]]
            ends = {chain[0]: self._level(first, a, 1), chain[-1]: self._level(last, b, -1)}
            for one, other in pairwise(chain):
                difference = ends.get(one, 0.0) - ends.get(other, 0.0)
                ties[one].append((other, -difference))
                ties[other].append((one, difference))
        return ties

    def _level(self, item: _Item, box: int, side: int) -> float:
        """The height, from the middle of an item, at which edges come to a box from the left (-1) or right (1).

        They pass above or below the other boxes of an ellipse that are in their way.
        """
        border = max(side * x + self._sizes[other][0] / 2 for other, (x, _) in item.offsets.items())
        x, y = item.offsets[box]
        if side * x + self._sizes[box][0] / 2 > border - 1:
            return y
        return item.size[1] / 2 * (1 if y > 0 else -1)

    def _approach(self, item: _Item, box: int, centre: Point, edge: float, side: int) -> list[Point]:
        """The points from the edge of a column to the border of a box."""
        (x, y), (width, height) = centre, self._sizes[box]
        level = item.y + self._level(item, box, side)
        if level == y or len(item.offsets) == 1:
            return [(edge, y), (x + side * width / 2, y)]
        if len(item.offsets) <= MOST_ON_ELLIPSE:
            return [(edge, level), (x, level), (x, y + (height / 2 if level > y else -height / 2))]
        beside = x + side * (width / 2 + 1.5 * ROUND_PX)
        return [(edge, level), (beside, level), (beside, y), (x + side * width / 2, y)]

    def _wanted(self, number: int, ties: Mapping[int, Sequence[tuple[int, float]]]) -> float:
        near = ties.get(number, ())
        heights = [self._items[other].y + difference for other, difference in near]
        return sum(heights) / len(heights) if heights else self._items[number].y

    def _place(self, layer: Sequence[int], wanted: Mapping[int, float]) -> None:
        """Place the items of a layer, in their order, as near to where they are wanted as their heights allow."""
        end, last = 0.0, None
        starts = []
        for number in layer:
            item = self._items[number]
            are_threads = last is not None and not last.offsets and not item.offsets
            start = end + (0.0 if last is None else THREAD_GAP if are_threads else GAP_Y) + item.size[1] / 2
            starts.append(start)
            end, last = start + item.size[1] / 2, item
        levels = isotonic([wanted[number] - start for number, start in zip(layer, starts, strict=True)])
        for number, start, level in zip(layer, starts, levels, strict=True):
            self._items[number].y = level + start

    def _result(self, layers: Sequence[Sequence[int]]) -> GraphLayout:
        top = min(item.y - item.size[1] / 2 for item in self._items)
        found = GraphLayout(height=max(item.y + item.size[1] / 2 for item in self._items) - top)
        columns: list[tuple[float, float]] = []
        for layer in layers:
            width = max(self._items[number].size[0] for number in layer)
            left = columns[-1][1] + GAP_X if columns else 0.0
            columns.append((left, left + width))
            for number in layer:
                item = self._items[number]
                item.y -= top
                found.centres |= {box: (left + width / 2 + x, item.y + y) for box, (x, y) in item.offsets.items()}
        found.width = columns[-1][1]
        for link in self._edges:
            found.routes[link] = self._route(link, found.centres, columns)
        return found

    def _route(
        self, link: Link, centres: Mapping[int, Point], columns: Sequence[tuple[float, float]]
    ) -> tuple[Point, ...]:
        if link not in self._chains:
            return direct_route(link, centres, self._sizes)
        a, b = self._forward(link)
        first, *between, last = (self._items[number] for number in self._chains[link])
        points = [*reversed(self._approach(first, a, centres[a], columns[first.layer][1], 1))]
        for item in between:
            points += [(x, item.y) for x in columns[item.layer]]
        points += self._approach(last, b, centres[b], columns[last.layer][0], -1)
        way = _smooth(points)
        return tuple(reversed(way)) if link in self._reversed else way


def _backward(graph: nx.DiGraph[int]) -> set[Link]:
    """Edges without which there is no cycle: those that lead back on a search in depth from boxes without callers."""
    starts = sorted(graph, key=lambda number: (graph.in_degree(number) > 0, number))
    state: dict[int, bool] = {}
    found: set[Link] = set()
    for start in starts:
        ahead = [] if start in state else [(start, iter(sorted(graph.successors(start))))]
        state.setdefault(start, True)
        while ahead:
            number, rest = ahead[-1]
            following = next(rest, None)
            if following is None:
                state[number] = False
                ahead.pop()
            elif following not in state:
                state[following] = True
                ahead.append((following, iter(sorted(graph.successors(following)))))
            elif state[following]:
                found.add((number, following))
    return found


def isotonic(values: Sequence[float]) -> list[float]:
    """The values that never fall and have the least squared differences from these."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, number = blocks.pop()
            mean = (before * number + mean * count) / (number + count)
            count += number
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def _smooth(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with curves between different heights; they begin and end level."""
    way = [points[0]]
    for (ax, ay), (bx, by) in pairwise(points):
        if abs(by - ay) > 1.0:
            way += [(ax + (bx - ax) * t, ay + (by - ay) * t * t * (3 - 2 * t)) for t in CURVE]
        if hypot(bx - way[-1][0], by - way[-1][1]) > 1.0:
            way.append((bx, by))
    return tuple(way)

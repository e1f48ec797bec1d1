"""Layered layout of a directed graph of boxes: edges lead from left to right, through the gaps between the boxes.

Steps: each cycle becomes a ring, or is opened; layers by the longest way; order within layers by barycentres; places
by the least squares that keep the order. Components are beside and below each other. Lengths are in pixels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import hypot, sqrt

import networkx as nx

Point = tuple[float, float]
Size = tuple[float, float]
Link = tuple[int, int]
VIEW = (1180.0, 600.0)
"""The size in which a graph is shown at first."""
GAP_X, GAP_Y = 48.0, 16.0
RING_GAPS, MOST_IN_WIDE_RING, LONG_RING_GAPS = (80.0, 40.0), 10, (32.0, 26.0)
"""The gaps between the boxes of a ring, and of a ring of more boxes."""
COMPONENT_GAP = 40.0
THREAD_HEIGHT, THREAD_GAP = 4.0, 3.0
"""A long edge keeps so much free in the layers that it crosses."""
BEND = 0.12
"""How far an edge within a ring bends, as a share of its length: two opposite ones remain apart."""
LEAST_STRAIGHT = 20.0
"""A shorter straight end of an edge would hide its arrowhead, and becomes a part of its curve."""
SWEEPS = 8
LEAST_COLUMN = 600.0
ASPECT = VIEW[0] / VIEW[1]


@dataclass(slots=True)
class GraphLayout:
    """Centres of the boxes by number, the route of each edge from border to border, and the size of the whole.

    A route is a chain of cubic Bézier curves: its first point, then two control points and the end of each curve.
    """

    centres: dict[int, Point] = field(default_factory=dict)
    routes: dict[Link, tuple[Point, ...]] = field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0


def layout(sizes: Sequence[Size], links: Sequence[Link], *, is_of_waits: bool) -> GraphLayout:
    """Place the boxes with these sizes; the first ones come first.

    Of waits, boxes of one cycle are around each other, and a box is as far right as its waiters allow. Of calls, an
    edge that closes a cycle leads backwards, and a box is as far left as its callers allow.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(sizes)))
    graph.add_edges_from((a, b) for a, b in links if a != b)
    parts = sorted(nx.weakly_connected_components(graph), key=min)
    return _packed([_Component(graph.subgraph(part), sizes, is_of_waits).layout() for part in parts])


def _packed(parts: Sequence[GraphLayout]) -> GraphLayout:
    """All components in rows."""
    whole = GraphLayout()
    area = sum((part.width + COMPONENT_GAP) * (part.height + COMPONENT_GAP) for part in parts)
    widest = max([VIEW[0], sqrt(ASPECT * area), *(part.width for part in parts)])
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


def ring(group: Sequence[int], sizes: Sequence[Size], first: int) -> dict[int, Point]:
    """The centres of boxes around (0, 0): each is next to the one before, the last to the ``first``, at the left.

    The way leads to and fro between an even number of rows, and back along the first column; or so with columns.
    """
    count, start = len(group), group.index(first) + 1
    if count == 1:
        return {first: (0.0, 0.0)}
    gaps = RING_GAPS if count <= MOST_IN_WIDE_RING else LONG_RING_GAPS
    width, height = (max(sizes[number][axis] for number in group) + gaps[axis] for axis in (0, 1))
    folds: list[tuple[float, float, int, list[Point]]] = []
    for rows, axis in product(range(2, max(3, count), 2), (0, 1)):
        path = [(place[axis] * width, place[1 - axis] * height) for place in _fold(count, rows)]
        wide, high = max(x for x, _ in path) + width, max(y for _, y in path) + height
        folds.append((-min(1.0, VIEW[0] / wide, VIEW[1] / high), high, axis, path))
    path = min(folds)[3]
    centre = [(min(values) + max(values)) / 2 for values in zip(*path, strict=True)]
    order = [*group[start:], *group[:start]]
    return {number: (x - centre[0], y - centre[1]) for number, (x, y) in zip(order, path, strict=True)}


def _fold(count: int, rows: int) -> list[Point]:
    """Cells of a grid: right and left in turns, down a row each, then up in the first column to the first row.

    If less than half of the first column would be filled, the last cells of some rows are left out in pairs.
    """
    columns = (count - 1) // rows
    back = count - columns * rows
    shorter = max(0, rows // 2 - back + 1) // 2
    path: list[Point] = []
    for row in range(rows):
        cells = range(1, columns + 1 - (row // 2 < shorter))
        path += [(x, row) for x in (reversed(cells) if row % 2 else cells)]
    back += 2 * shorter
    step = (rows - 1) / (back - 1) if back > 1 else 0.0
    return path + [(0, rows - 1 - place * step if back > 1 else (rows - 1) / 2) for place in range(back)]


def _bent(link: Link, centres: Mapping[int, Point], sizes: Sequence[Size], bend: float) -> tuple[Point, ...]:
    """A curve between the borders of two boxes."""
    (ax, ay), (bx, by) = (centres[number] for number in link)
    middle = ((ax + bx) / 2 + bend * (by - ay), (ay + by) / 2 - bend * (bx - ax))
    start, end = (_border(centres[number], sizes[number], middle) for number in link)
    return (
        start,
        *((point[0] / 3 + middle[0] * 2 / 3, point[1] / 3 + middle[1] * 2 / 3) for point in (start, end)),
        end,
    )


def _border(centre: Point, size: Size, towards: Point) -> Point:
    """Where the line from the centre of a box leaves it."""
    x, y = towards[0] - centre[0], towards[1] - centre[1]
    share = min(size[0] / 2 / max(abs(x), 1e-6), size[1] / 2 / max(abs(y), 1e-6), 1.0)
    return centre[0] + x * share, centre[1] + y * share


@dataclass(slots=True)
class _Item:
    """One or more boxes of one layer, or a part of a long edge; ``offsets`` are the centres of its boxes in it."""

    size: Size
    layer: int = 0
    offsets: Mapping[int, Point] = field(default_factory=dict)
    y: float = 0.0


class _Component:
    def __init__(self, graph: nx.DiGraph[int], sizes: Sequence[Size], is_of_waits: bool) -> None:
        self._graph, self._sizes = graph, sizes
        self._backward = set() if is_of_waits else _backward(graph)
        forward: nx.DiGraph[int] = nx.DiGraph(map(self._forward, sorted(graph.edges)))
        forward.add_nodes_from(graph)
        groups = sorted(map(sorted, nx.strongly_connected_components(forward)))
        items = nx.condensation(forward, groups)
        self._item_of: Mapping[int, int] = items.graph["mapping"]
        self._items = [self._item(group) for group in groups]
        self._set_layers(items.reverse() if is_of_waits else items)
        if is_of_waits:
            last = max(item.layer for item in self._items)
            for item in self._items:
                item.layer = last - item.layer
        self._chains = self._add_threads()
        self._ties = self._neighbours()

    def _forward(self, link: Link) -> Link:
        return (link[1], link[0]) if link in self._backward else link

    def _item(self, group: Sequence[int]) -> _Item:
        members = set(group)
        first = max(group, key=lambda number: (len(self._graph.pred[number].keys() - members), -number))
        offsets = ring(group, self._sizes, first)
        width, height = (
            2 * max(abs(place[axis]) + self._sizes[number][axis] / 2 for number, place in offsets.items())
            for axis in (0, 1)
        )
        return _Item((width, height + (LONG_RING_GAPS[1] if len(group) > 1 else 0.0)), offsets=offsets)

    def _set_layers(self, ahead: nx.DiGraph[int]) -> None:
        """The longest way to each item, further if its layer is full."""
        area = sum((item.size[0] + GAP_X) * (item.size[1] + GAP_Y) for item in self._items)
        fullest = max(LEAST_COLUMN, sqrt(area / ASPECT))
        heights: dict[int, float] = defaultdict(float)
        for number in nx.lexicographical_topological_sort(ahead):
            item = self._items[number]
            item.layer = max((self._items[one].layer + 1 for one in ahead.predecessors(number)), default=0)
            while heights[item.layer] and heights[item.layer] + item.size[1] > fullest:
                item.layer += 1
            heights[item.layer] += item.size[1] + GAP_Y

    def _add_threads(self) -> dict[Link, list[int]]:
        """The items that each edge passes, from its left end to its right one; edges with one right end share them."""
        chains = {}
        threads: dict[tuple[int, int], int] = {}
        for link in sorted(self._graph.edges):
            a, b = self._forward(link)
            first, last = self._item_of[a], self._item_of[b]
            if first == last:
                continue
            for layer in range(self._items[first].layer + 1, self._items[last].layer):
                if (b, layer) not in threads:
                    threads[b, layer] = len(self._items)
                    self._items.append(_Item((0.0, THREAD_HEIGHT), layer))
            between = range(self._items[first].layer + 1, self._items[last].layer)
            chains[link] = [first, *(threads[b, layer] for layer in between), last]
        return chains

    def layout(self) -> GraphLayout:
        """The places of its boxes and edges."""
        layers: list[list[int]] = [[] for _ in range(1 + max(item.layer for item in self._items))]
        for number, item in enumerate(self._items):  # edges pass through the middle of a layer, if all are equal
            layers[item.layer].insert(len(layers[item.layer]) // (1 if item.offsets else 2), number)
        for sweep in range(-1, 2 * SWEEPS):
            for layer in layers if sweep % 2 else reversed(layers):
                wanted = {number: self._wanted(number) if sweep >= 0 else 0.0 for number in layer}
                if sweep < SWEEPS:
                    layer.sort(key=wanted.__getitem__)
                self._place(layer, wanted)
        return self._result(layers)

    def _neighbours(self) -> Mapping[int, Sequence[tuple[int, float]]]:
        """The neighbours of each item, with the difference of the heights at which they would be level."""
        ties: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for link, chain in self._chains.items():
            a, b = self._forward(link)
            ends = {chain[0]: self._level(chain[0], a, 1), chain[-1]: self._level(chain[-1], b, -1)}
            for one, other in pairwise(chain):
                difference = ends.get(one, 0.0) - ends.get(other, 0.0)
                ties[one].append((other, -difference))
                ties[other].append((one, difference))
        return ties

    def _level(self, item: int, box: int, side: int) -> float:
        """The height, from the middle of an item, at which edges come to a box from the left (-1) or right (1).

        They pass above those boxes of a ring that are in their way.
        """
        x, y = self._items[item].offsets[box]
        is_outermost = all(side * other <= side * x + 1.0 for other, _ in self._items[item].offsets.values())
        return y if is_outermost else y - self._sizes[box][1] / 2 - LONG_RING_GAPS[1] / 2

    def _approach(self, item: int, box: int, centre: Point, edge: float, side: int) -> Iterator[Point]:
        """The points from the edge of a column to the border of a box."""
        (x, y), (width, height) = centre, self._sizes[box]
        level = self._items[item].y + self._level(item, box, side)
        border = x + side * width / 2
        if abs(level - y) < 1.0:
            yield from ((edge, level), (border, y))[abs(edge - border) < LEAST_STRAIGHT :]
        else:
            yield edge, level
            yield from ((x + side * width / 4, level), (x + side * width / 4, y - height / 2))

    def _wanted(self, number: int) -> float:
        heights = [self._items[other].y + difference for other, difference in self._ties[number]]
        return sum(heights) / len(heights) if heights else self._items[number].y

    def _place(self, layer: Sequence[int], wanted: Mapping[int, float]) -> None:
        """Place the items of a layer, in their order, as near to where they are wanted as their heights allow."""
        end, last = 0.0, None
        starts = []
        for number in layer:
            item = self._items[number]
            are_threads = last is not None and not last.offsets and not item.offsets
            starts.append(end + (THREAD_GAP if are_threads else GAP_Y) + item.size[1] / 2)
            end, last = starts[-1] + item.size[1] / 2, item
        weights = [len(self._ties[number]) or 1 for number in layer]
        levels = isotonic([wanted[number] - start for number, start in zip(layer, starts, strict=True)], weights)
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
        for link in self._graph.edges:
            found.routes[link] = self._route(link, found.centres, columns)
        return found

    def _route(self, link: Link, centres: Mapping[int, Point], columns: Sequence[Point]) -> tuple[Point, ...]:
        if link not in self._chains:
            order = list(self._items[self._item_of[link[0]]].offsets)
            is_next = (order.index(link[0]) - order.index(link[1])) % len(order) in (1, len(order) - 1)
            is_straight = is_next and not self._graph.has_edge(link[1], link[0])
            return _bent(link, centres, self._sizes, 0.0 if is_straight else BEND)
        a, b = self._forward(link)
        first, *between, last = self._chains[link]
        points = [*self._approach(first, a, centres[a], columns[self._items[first].layer][1], 1)][::-1]
        for number in between:
            points += [(x, self._items[number].y) for x in columns[self._items[number].layer]]
        points += self._approach(last, b, centres[b], columns[self._items[last].layer][0], -1)
        way = _curves(points)
        return way[::-1] if link in self._backward else way


def _backward(graph: nx.DiGraph[int]) -> set[Link]:
    """Edges without which there is no cycle: those that lead back on a search in depth from boxes without callers."""
    ordered: nx.DiGraph[int] = nx.DiGraph()
    called = {b for _, b in graph.edges}
    ordered.add_nodes_from(sorted(graph, key=lambda number: (number in called, number)))
    ordered.add_edges_from(sorted(graph.edges))
    way: list[int] = []
    found = set()
    for a, b, kind in nx.dfs_labeled_edges(ordered):
        if kind == "forward":
            way.append(b)
        elif kind == "reverse":
            way.pop()
        elif b in way:
            found.add((a, b))
    return found


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The values that never fall and have the least squared differences from these."""
    blocks: list[tuple[float, float, int]] = []
    for mean, weight in zip(values, weights, strict=True):
        count = 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, number = blocks.pop()
            mean, weight = (before * heavy + mean * weight) / (heavy + weight), heavy + weight
            count += number
        blocks.append((mean, weight, count))
    return [mean for mean, _, count in blocks for _ in range(count)]


def _curves(points: Sequence[Point]) -> tuple[Point, ...]:
    """Curves that begin and end level between points of different heights; straight lines between others."""
    way = [points[0]]
    for (ax, ay), (bx, by) in pairwise(points):
        if hypot(bx - ax, by - ay) > 0.5:
            x, y = (ax + bx) / 2, (ay + by) / 2
            way += [(x, ay), (x, by), (bx, by)] if abs(bx - ax) > 0.5 else [(x, y), (x, y), (bx, by)]
    return tuple(way)

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.report.graph_layout import VIEW, GraphLayout, isotonic, layout, ring

SIZES = [(180.0, 50.0), (90.0, 25.0), (240.0, 65.0)]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    count = draw(st.integers(1, 14))
    numbers = st.integers(0, count - 1)
    pairs = st.tuples(numbers, numbers).filter(lambda pair: pair[0] != pair[1])
    links = draw(st.lists(pairs, unique=True, max_size=30)) if count > 1 else []
    return [SIZES[draw(st.integers(0, 2))] for _ in range(count)], links


def overlap(a: int, b: int, found: GraphLayout, sizes: list[tuple[float, float]]) -> bool:
    (ax, ay), (bx, by) = found.centres[a], found.centres[b]
    (aw, ah), (bw, bh) = sizes[a], sizes[b]
    return abs(ax - bx) < (aw + bw) / 2 - 0.01 and abs(ay - by) < (ah + bh) / 2 - 0.01


@given(graphs(), st.booleans())
def test_boxes_do_not_overlap_and_all_edges_are_drawn(
    graph: tuple[list[tuple[float, float]], list[tuple[int, int]]], is_of_waits: bool
) -> None:
    sizes, links = graph
    found = layout(sizes, links, is_of_waits=is_of_waits)

    assert sorted(found.centres) == list(range(len(sizes)))
    assert not any(overlap(a, b, found, sizes) for a, b in combinations(range(len(sizes)), 2))
    assert set(found.routes) == set(links)
    for number, (x, y) in found.centres.items():
        width, height = sizes[number]
        assert width / 2 - 0.01 <= x <= found.width - width / 2 + 0.01
        assert height / 2 - 0.01 <= y <= found.height - height / 2 + 0.01
    for (source, target), route in found.routes.items():
        assert is_at(route[0], source, found, sizes)
        assert is_at(route[-1], target, found, sizes)


def is_at(point: tuple[float, float], box: int, found: GraphLayout, sizes: list[tuple[float, float]]) -> bool:
    (x, y), (width, height) = found.centres[box], sizes[box]
    return abs(point[0] - x) <= width / 2 + 8 and abs(point[1] - y) <= height / 2 + 8


@pytest.mark.parametrize("is_of_waits", [True, False])
def test_edges_lead_to_the_right(is_of_waits: bool) -> None:
    links = [(0, 1), (1, 2), (0, 2), (3, 2)]
    found = layout([SIZES[0]] * 4, links, is_of_waits=is_of_waits)

    assert all(found.centres[a][0] < found.centres[b][0] for a, b in links)
    assert (found.centres[3][0] == found.centres[1][0]) == is_of_waits


def test_an_edge_that_closes_a_cycle_leads_backwards() -> None:
    found = layout([SIZES[0]] * 3, [(0, 1), (1, 2), (2, 1)], is_of_waits=False)

    assert found.centres[0][0] < found.centres[1][0] < found.centres[2][0]
    back = found.routes[2, 1]
    assert back[0][0] < found.centres[2][0] < found.centres[2][0] + 1
    assert back[-1][0] > found.centres[1][0]


def test_a_cycle_is_a_ring_with_its_waiters_at_the_left() -> None:
    found = layout([SIZES[0]] * 5, [(0, 1), (1, 2), (2, 3), (3, 0), (4, 0)], is_of_waits=True)

    assert found.centres[4][0] < found.centres[0][0] == min(found.centres[number][0] for number in range(4))
    assert len({found.centres[number] for number in range(4)}) == 4
    assert {len({round(found.centres[number][axis]) for number in range(4)}) for axis in (0, 1)} == {2}


def test_opposite_edges_of_a_ring_are_apart() -> None:
    found = layout([SIZES[0]] * 2, [(0, 1), (1, 0)], is_of_waits=True)
    there, back = found.routes[0, 1], found.routes[1, 0]

    assert found.centres[0][1] == found.centres[1][1]
    assert abs(there[1][1] - back[1][1]) > 10


def test_a_long_edge_keeps_away_from_the_boxes_between() -> None:
    sizes = [SIZES[0]] * 4
    found = layout(sizes, [(0, 1), (1, 2), (2, 3), (0, 3)], is_of_waits=True)

    for number in (1, 2):  # its curves are level next to a box
        (bx, by), (width, height) = found.centres[number], sizes[number]
        above = [y for x, y in found.routes[0, 3] if abs(x - bx) <= width / 2]
        assert above
        assert all(abs(y - by) > height / 2 for y in above)


def test_many_waiters_take_several_columns() -> None:
    links = [(number, 0) for number in range(1, 201)]
    found = layout([SIZES[0]] * 201, links, is_of_waits=True)

    assert found.height < 4_000
    assert found.width < 4_000


@pytest.mark.parametrize("count", [1, 2, 3, 8, 10, 11, 12, 31, 37, 60, 300])
def test_boxes_of_a_ring_do_not_overlap_and_are_next_to_each_other(count: int) -> None:
    sizes = [SIZES[number % 3] for number in range(count)]
    found = GraphLayout(ring(list(range(count)), sizes, count // 2))
    steps = [(*found.centres[number], *found.centres[(number + 1) % count]) for number in range(count)]

    assert len(found.centres) == count
    assert not any(overlap(a, b, found, sizes) for a, b in combinations(range(count), 2))
    assert min(x for x, _ in found.centres.values()) == found.centres[count // 2][0]
    assert all(abs(ax - bx) <= 3 * 320 and abs(ay - by) <= 3 * 105 for ax, ay, bx, by in steps)


def test_a_ring_of_forty_fits_the_page_with_readable_text() -> None:
    width, height, font_px = 260.0, 72.0, 12.0
    links = [(number, (number + 1) % 40) for number in range(40)]
    found = layout([(width, height)] * 40, links, is_of_waits=True)

    assert font_px * min(VIEW[0] / found.width, VIEW[1] / found.height) >= 9.0


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_the_nearest_values_that_never_fall(values: list[float]) -> None:
    found = isotonic(values, [1.0] * len(values))

    assert len(found) == len(values)
    assert all(a <= b + 1e-6 for a, b in pairwise(found))
    assert sum(found) == pytest.approx(sum(values), abs=1e-3)
    if values == sorted(values):
        assert found == values


def test_heavier_values_move_less() -> None:
    assert isotonic([4.0, 0.0], [3.0, 1.0]) == [3.0, 3.0]

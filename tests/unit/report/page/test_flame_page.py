from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.errors import UsageError
from dstack.report.page import require_bokeh
from dstack.report.page.charts.flame_boxes import boxes_of
from dstack.report.page.charts.flame_chart import colour_of
from dstack.report.page.flame_page import flame_page
from tests.unit.report.exporters.stacks import GET, STACKS, TRAIN, TWO_RANKS


def test_equal_beginnings_share_a_box() -> None:
    found = boxes_of(TWO_RANKS)

    assert [(box.step.name, box.depth, box.parent, box.left, box.weight) for box in found.boxes] == [
        ("actor Trainer", 0, -1, 0, 8),
        ("rank 0", 1, 0, 0, 3),
        ("train", 2, 1, 0, 3),
        ("ray.get", 3, 2, 0, 3),
        ("rank 1", 1, 0, 3, 5),
        ("train", 2, 4, 3, 5),
    ]
    assert (found.total, found.levels, found.left_out) == (8, 4, 0)


@given(STACKS)
def test_boxes_are_within_those_above_them_and_beside_each_other(stacks: WeightedStacks) -> None:
    found = boxes_of(stacks)
    ends: dict[int, int] = {}
    for index, box in enumerate(found.boxes):
        parent = found.boxes[box.parent] if box.parent >= 0 else None
        assert box.parent < index
        assert box.depth == (parent.depth + 1 if parent else 0)
        begin, end = (parent.left, parent.left + parent.weight) if parent else (0, found.total)
        assert max(begin, ends.get(box.parent, 0)) <= box.left <= box.left + box.weight <= end
        ends[box.parent] = box.left + box.weight
    assert found.total == stacks.weight


def test_the_narrowest_boxes_are_left_out() -> None:
    found = boxes_of(TWO_RANKS, 4)

    assert [(box.step.name, box.parent, box.weight) for box in found.boxes] == [
        ("actor Trainer", -1, 8),
        ("rank 0", 0, 3),
        ("rank 1", 0, 5),
        ("train", 2, 5),
    ]
    assert found.left_out == 2


def test_colours_show_the_origin() -> None:
    assert colour_of(PathStep("group"))[1:3] == colour_of(PathStep("group"))[3:5]
    assert (
        len({colour_of(PathStep("f", "f.py", 1, "f", origin)) for origin in ("user", "ray", "stdlib", "library")}) == 4
    )
    assert re.fullmatch("#[0-9a-f]{6}", colour_of(TRAIN))


def test_the_page_needs_nothing_else_and_escapes_every_name() -> None:
    hostile = "</script><script>window.hacked = 1</script>"
    stacks = WeightedStacks(hostile, "samples", (WeightedStack((hostile, "\ud800"), (TRAIN, GET), 3),))

    page = flame_page(stacks, hostile, hostile).decode()

    assert hostile not in page
    tags = re.sub(r"<script.*?</script>", "<script>", page, flags=re.DOTALL)
    assert re.findall(r"<(?:link|img|iframe)|src=|href=|url\(", tags) == []
    assert re.findall(r"<script[^>]*src", page) == []
    assert "default-src 'none'" in page
    assert "Bokeh" in page


def test_no_stacks_make_a_page() -> None:
    assert b"Nothing" in flame_page(WeightedStacks("empty", "samples", ()), "Nothing")


def test_without_bokeh_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)

    with pytest.raises(UsageError, match=r"pip install"):
        require_bokeh()


def test_an_old_bokeh_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bokeh.__version__", "3.5.2")

    with pytest.raises(UsageError, match=r"Bokeh 3\.6 or later"):
        require_bokeh()

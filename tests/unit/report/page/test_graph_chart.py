from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from dstack.report.page.graph_chart import (
    WIDEST_LINE,
    BoxStyle,
    GraphBox,
    GraphLink,
    LinkStyle,
    graph_chart,
    size_of,
)

STYLE = BoxStyle("#ffffff", "#000000")
HOSTILE = "Wörker\u202e\x1b[31m<b>名前</b>" + "x" * 100


def data_of(chart: Any, name: str) -> dict[str, Any]:
    (renderer,) = (one for one in chart.renderers if one.name == name)
    data: dict[str, Any] = renderer.data_source.data
    return data


def box(title: str, *lines: str, goes_to: str | None = None) -> GraphBox:
    return GraphBox(title, lines, f"{title}\nmore", STYLE, goes_to)


def test_text_is_visible_and_cut_to_the_width_of_its_box() -> None:
    data = data_of(graph_chart("graph", [box(HOSTILE, "", HOSTILE)], []), "boxes")

    assert "\u202e" not in data["title"][0]
    assert "\x1b" not in data["text"][0]
    assert data["title"][0].endswith("…")
    assert cell_len(data["title"][0]) <= WIDEST_LINE
    assert "\n" not in data["text"][0]
    assert data["tip"][0].endswith("\nmore")
    assert "\\u202e" in data["tip"][0]


def test_a_box_grows_with_its_text() -> None:
    narrow, wide, high = size_of(box("step")), size_of(box("Trainer.step")), size_of(box("step", "a", "b"))

    assert narrow[0] < wide[0] == size_of(box("Trainer.step", "a"))[0]
    assert narrow[1] == wide[1] < high[1]


def test_links_end_in_arrowheads_at_the_border_of_a_box() -> None:
    style = LinkStyle("#ff0000", 3.0, "dashed")
    links = [GraphLink(0, 1, style, "a waits for b"), GraphLink(1, 2, style, "label", has_head=False)]
    chart = graph_chart("graph", [box("a"), box("b", goes_to="stack-1"), box("c")], links)
    boxes, lines, heads = (data_of(chart, name) for name in ("boxes", "links", "heads"))

    assert boxes["goes_to"] == [None, "stack-1", None]
    assert len(lines["xs"]) == 2
    assert len(heads["x"]) == 1
    border = boxes["x"][1] - boxes["w"][1] / 2
    assert border - 12 < heads["x"][0] < border
    assert lines["xs"][0][-1] == pytest.approx(border, abs=0.2)


def test_an_empty_or_single_graph_is_drawn() -> None:
    assert data_of(graph_chart("graph", [box("a")], []), "links")["xs"] == []

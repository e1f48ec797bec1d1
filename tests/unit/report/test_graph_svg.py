from __future__ import annotations

import sys
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len

from dstack.errors import DstackError
from dstack.report.graph_svg import (
    COLOURS,
    LONGEST_PNG_PX,
    TEXT_COLOUR,
    WIDEST_LINE,
    BoxStyle,
    Drawing,
    GraphBox,
    GraphLink,
    LinkStyle,
    box_sample,
    link_sample,
    png_file,
    size_of,
    svg,
    svg_file,
)
from tests.fuzzing.hostile_text import HOSTILE, HOSTILE_TO_PAGES

STYLE, DASHED = BoxStyle("dim"), LinkStyle("bad", 3.0, "9 5")
LONG = "Wörker\u202e\x1b[31m<b>名前</b>" + "x" * 100


def box(title: str, *lines: str, goes_to: str | None = None) -> GraphBox:
    return GraphBox(title, lines, f"{title}\nmore", STYLE, goes_to)


def drawing(*boxes: GraphBox, links: tuple[GraphLink, ...] = ()) -> Drawing:
    return Drawing("graph", boxes, links, [("waits", STYLE)], [("cycle", DASHED)], ["2 more boxes left out."])


def parsed(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
    return root


def test_text_is_visible_and_cut_to_the_width_of_its_box() -> None:
    (node,) = (one for one in parsed(svg(drawing(box(LONG, "", LONG)))).iter("g") if one.get("data-box"))
    texts = [one.text or "" for one in node.iter("text")]

    assert len(texts) == 2
    assert "\\u202e" in texts[0]
    assert texts[0].endswith("…")
    assert all(cell_len(text) <= WIDEST_LINE for text in texts)
    tip = node.findtext("title") or ""
    assert tip.endswith("\nmore")
    assert "<b>名前</b>" in tip


@pytest.mark.parametrize("text", [HOSTILE, HOSTILE_TO_PAGES])
def test_hostile_text_is_neither_markup_nor_ill_formed(text: str) -> None:
    found = parsed(svg_file(drawing(box("a", text), box(text), links=(GraphLink(0, 1, DASHED, text),))))

    assert {one.tag for one in found.iter()} == {"svg", "rect", "g", "marker", "path", "text", "title"}


def test_a_box_grows_with_its_text() -> None:
    narrow, wide, high = size_of(box("step")), size_of(box("Trainer.step")), size_of(box("step", "a", "b"))

    assert narrow[0] < wide[0] == size_of(box("Trainer.step", "a"))[0]
    assert narrow[1] == wide[1] < high[1]


def test_links_end_in_arrowheads_at_the_border_of_a_box() -> None:
    links = (GraphLink(0, 1, DASHED, "a waits for b"), GraphLink(1, 2, DASHED, "label", has_head=False))
    found = parsed(svg(drawing(box("a"), box("b", goes_to="stack-1"), box("c"), links=links)))
    lines = [one for one in found.iter("path") if one.get("data-from")]
    (marker,) = found.iter("marker")
    border = float(next(one for one in found.iter("a")).findall("g/rect")[0].get("x", ""))

    assert [one.get("href") for one in found.iter("a")] == ["#stack-1"]
    assert [one.get("marker-end") for one in lines] == [f"url(#{marker.get('id')})", None]
    end = float(lines[0].get("d", "").split()[-2])
    assert border - 2 <= end + float(marker.get("markerWidth", "")) <= border
    assert [one.get("stroke-dasharray") for one in lines] == ["9 5", "9 5"]


def test_a_file_has_a_legend_and_notes() -> None:
    texts = [one.text for one in parsed(svg_file(drawing(box("a")))).iter("text")]

    assert texts == ["waits", "cycle", "2 more boxes left out.", "a"]
    assert parsed(box_sample(STYLE)).findall("rect")
    assert parsed(link_sample(DASHED)).findall("path")


def test_a_png_has_text_and_is_bounded() -> None:
    data = png_file(drawing(box("a")))
    links = tuple(GraphLink(number, number + 1, DASHED, "") for number in range(30))
    wide = png_file(drawing(*[box("x" * 30)] * 31, links=links))

    assert data.startswith(b"\x89PNG")
    assert data != png_file(drawing(box("b")))
    size = int.from_bytes(wide[16:20], "big"), int.from_bytes(wide[20:24], "big")
    assert max(size) <= LONGEST_PNG_PX + 1


def test_without_a_font_a_png_is_refused() -> None:
    with (
        patch("dstack.report.graph_svg.PROBE", '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'),
        pytest.raises(DstackError, match=r"this machine has none\. Install fonts-dejavu-core"),
    ):
        png_file(drawing(box("a")))


def test_without_resvg_a_png_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)

    with pytest.raises(DstackError, match="pip install resvg-py"):
        png_file(drawing(box("a")))


@pytest.mark.parametrize(("fill", "line"), COLOURS.values())
def test_text_and_lines_of_a_file_have_enough_contrast(fill: str, line: str) -> None:
    assert contrast(TEXT_COLOUR, fill) >= 4.5
    assert contrast("#ffffff", line) >= 4.5


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""
    dark, light = sorted(luminance(colour) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

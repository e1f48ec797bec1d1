"""The outline: filters match ancestors and descendants, and depth costs neither width nor time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rich.text import Text
from textual.app import App, ComposeResult

from dstack.tui.widgets.outline import MAX_INDENTED, Line, Outline


class OutlineApp(App[None]):
    """An application with one outline."""

    def __init__(self, lines: list[Line]) -> None:
        super().__init__()
        self.lines = lines

    def compose(self) -> ComposeResult:
        yield Outline()

    def on_mount(self) -> None:
        self.outline.show(self.lines)

    @property
    def outline(self) -> Outline:
        return self.query_one(Outline)


def in_outline(lines: list[Line], body: Callable[[Outline], None], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        app = OutlineApp(lines)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            body(app.outline)

    asyncio.run(run())


def chain(length: int) -> Line:
    line = Line(f"step{length}", Text(f"step {length}"))
    for number in reversed(range(length)):
        line = Line(f"step{number}", Text(f"step {number}"), [line], is_open=True)
    return line


def test_a_filter_finds_words_spread_over_a_line_and_its_ancestors() -> None:
    def body(outline: Outline) -> None:
        assert outline.filter("left leaf") == 1
        assert [line.key for _, line in outline.visible_lines] == ["left", "leaf of left"]
        assert outline.filter("nowhere") == 0
        assert outline.filter("") == 0
        assert len(list(outline.visible_lines)) == 4

    sides = [
        Line(side, Text(side), [Line(f"leaf of {side}", Text("a leaf"))], is_open=True) for side in ("left", "right")
    ]
    in_outline(sides, body)


def test_the_deepest_line_of_a_long_chain_is_found_and_scrolled_to() -> None:
    def body(outline: Outline) -> None:
        assert outline.filter("step 10000") == 1
        assert outline.reveal(["step10000"])
        rows = [outline.render_line(y).text.strip() for y in range(outline.size.height)]
        assert "10000   step 10000" in rows

    in_outline([chain(10_000)], body)


def test_a_row_that_is_cut_ends_with_an_ellipsis() -> None:
    def body(outline: Outline) -> None:
        rows = [outline.render_line(y).text for y in range(2)]
        width = outline.size.width
        assert rows == ["  " + "x" * (width - 3) + "…", "  " + "y" * (width - 2)]

    in_outline([Line("cut", Text("x" * 100)), Line("fits", Text("y" * 78))], body)


def test_deep_lines_show_their_depth_as_a_number() -> None:
    def body(outline: Outline) -> None:
        rows = [outline.render_line(y).text.rstrip() for y in range(MAX_INDENTED + 3)]
        assert rows[MAX_INDENTED] == " " * 2 * MAX_INDENTED + "▾ step 16"
        assert rows[MAX_INDENTED + 1] == "17 ".rjust(2 * MAX_INDENTED) + "▾ step 17"

    in_outline([chain(30)], body)

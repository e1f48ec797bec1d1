"""The outline: filters look up and down, and depth costs neither width nor time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rich.text import Text
from textual.app import App, ComposeResult

from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.outline_line import Line
from dstack.tui.widgets.outline_tree import MAX_INDENTED


class Holder(App[None]):
    """Nothing but an outline."""

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


def holding(lines: list[Line], body: Callable[[Outline], None], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        app = Holder(lines)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            body(app.outline)

    asyncio.run(run())


def chain(length: int) -> Line:
    line = Line(f"step{length}", Text(f"step {length}"))
    for number in reversed(range(length)):
        line = Line(f"step{number}", Text(f"step {number}"), [line], is_open=True)
    return line


def test_a_filter_finds_words_spread_over_a_line_and_those_above_it() -> None:
    def body(outline: Outline) -> None:
        assert outline.filter("left leaf") == 1
        assert [line.key for _, line in outline.visible_lines] == ["left", "leaf of left"]
        assert outline.filter("nowhere") == 0
        assert outline.filter("") == 0
        assert len(list(outline.visible_lines)) == 4

    sides = [
        Line(side, Text(side), [Line(f"leaf of {side}", Text("a leaf"))], is_open=True) for side in ("left", "right")
    ]
    holding(sides, body)


def test_the_deepest_of_a_long_chain_is_found_and_stays_on_the_screen() -> None:
    def body(outline: Outline) -> None:
        assert outline.filter("step 10000") == 1
        assert outline.reveal(["step10000"])
        rows = [outline.render_line(y).text.strip() for y in range(outline.size.height)]
        assert "10000   step 10000" in rows

    holding([chain(10_000)], body)


def test_what_is_deep_is_told_by_its_depth() -> None:
    def body(outline: Outline) -> None:
        rows = [outline.render_line(y).text.rstrip() for y in range(MAX_INDENTED + 3)]
        assert rows[MAX_INDENTED] == " " * 2 * MAX_INDENTED + "▾ step 16"
        assert rows[MAX_INDENTED + 1] == "17 ".rjust(2 * MAX_INDENTED) + "▾ step 17"

    holding([chain(30)], body)

"""Wrapped text is on the screen completely, at any width, with and without a scrollbar."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widget import Widget

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.observed.node import Failure
from dstack.tui.app import VIEWS, Dialog, DstackApp, help_rows
from dstack.tui.snapshot_sources import Files
from dstack.tui.views.base import View
from dstack.tui.views.stacks_view import StacksView
from dstack.tui.views.verdict_view import VerdictView, finding_lines
from dstack.tui.widgets.outline import Detail, Line, Outline
from tests.tui.pilots import DEADLINE_S, running, until
from tests.tui.sources import RECORDED
from tests.tui.test_outline import OutlineApp
from tests.unit.scenes import Scene

WIDTHS = [80, 100, 140]
LOW, HIGH = 24, 150
"""Heights at which every view needs its scrollbar, and at which no outline does."""
WRAPPING = ["verdict", "stacks", "history"]
"""The views whose outlines wrap; the panes of the others have the same height in a high terminal."""
LONG = " ".join("abcdefghi"[: random.Random(number).randrange(1, 10)] for number in range(90))
"""Words of all lengths, so that rows end at every column."""


async def on_screen(pilot: Pilot[Any], widget: Widget) -> str:
    """All text that a widget can scroll to, without its scrollbar's columns and without spaces."""
    region = widget.content_region
    height = max(1, region.height - widget.scrollbar_size_horizontal)
    right = region.right - (widget.styles.scrollbar_size_vertical if widget.show_vertical_scrollbar else 0)
    rows: dict[int, str] = {}
    top = 0
    while True:
        widget.scroll_to(y=top, animate=False, force=True, immediate=True)
        await pilot.pause()
        top = round(widget.scroll_y)
        strips = widget.screen._compositor.render_strips()
        for number in range(height):
            rows[top + number] = strips[region.y + number].crop(region.x, right).text
        if top >= widget.max_scroll_y:
            return without_spaces("".join(rows[number] for number in sorted(rows)))
        top += height


def without_spaces(text: str) -> str:
    return "".join(text.split())


def missing_from(screen: str, texts: Iterable[str]) -> list[str]:
    """The texts that are not complete on the screen."""
    return [text for text in texts if without_spaces(text) not in screen]


def wrapped_in(outline: Outline) -> list[str]:
    return [line.text.plain for _, line in outline.visible_lines if line.hanging_indent is not None]


def sentences_of(app: DstackApp) -> list[str]:
    """The sentences of the Verdict view, from the diagnosis."""
    assert app.shown
    diagnosis = app.shown.analysed.diagnosis
    failures = [failure.reason for failure in diagnosis.coverage.failures]
    return [*(text for one in diagnosis.findings for text in (one.summary, str(one.advice))), *failures]


def long_snapshots() -> list[Snapshot]:
    """Two snapshots of a deadlock of actors with very long names, of which a third could not be read."""
    snapshots = []
    for extra in range(2):
        scene = Scene()
        driver = scene.driver()
        left, right = scene.actor("Left", name=f"left {LONG}"), scene.actor("Right", name=f"right {LONG}")
        ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
        back = scene.call(left, "back", by=right)
        driver.gets(ping)
        left.runs(ping).gets(pong)
        right.runs(pong).gets(back)
        lost_one = scene.worker()
        lost_one.is_unreachable = lost_one.is_unreadable = True
        scene.failures += [
            Failure(
                stage="process",
                reason=f"no such process, for reason {number}: {LONG}",
                node_id=lost_one.worker.node_id,
                pid=lost_one.worker.pid,
            )
            for number in range(3 + extra)
        ]
        snapshots.append(scene.sample().second_sample().snapshot())
    return snapshots


async def require_complete(pilot: Pilot[Any], widget: Widget, texts: Callable[[], Iterable[str]], where: str) -> None:
    """Wait until all these texts are complete in the widget."""
    end = time.monotonic() + DEADLINE_S
    while missing := missing_from(await on_screen(pilot, widget), texts()):
        assert time.monotonic() < end, f"not complete in {where}: {missing}"


async def require_complete_details(pilot: Pilot[Any], screen: Widget, where: str) -> None:
    """The pane below an outline is complete for each of the first lines."""
    outline, detail = screen.query_one(Outline), screen.query_one(Detail)
    outline.action_first()
    for _ in range(4):
        await require_complete(pilot, detail, lambda: detail.text.plain.splitlines(), where)
        outline.action_move(1)
        await pilot.pause()


async def require_complete_view(app: DstackApp, pilot: Pilot[Any], name: str, height: int) -> None:
    screen, where = app.screen, f"{name}, {height} rows"
    if isinstance(screen, StacksView):
        screen.query_one("#all", Outline).action_move(2)
        await pilot.pause()
    for outline in screen.query(Outline):
        await require_complete(pilot, outline, partial(wrapped_in, outline), where)
    if isinstance(screen, VerdictView):
        await require_complete(pilot, screen.query_one(Outline), lambda: sentences_of(app), where)
    if name in ("waits", "cluster"):
        await require_complete_details(pilot, screen, where)
    if name == "flame":
        detail = screen.query_one(Detail)
        await require_complete(pilot, detail, lambda: detail.text.plain.splitlines(), where)


def is_shown(app: DstackApp, view: type[View]) -> bool:
    return isinstance(app.screen, view) and app.screen.shown is app.shown


def has_scrollbar(app: DstackApp, is_wanted: bool) -> bool:
    return app.screen.query_one(Outline).show_vertical_scrollbar == is_wanted


@pytest.mark.parametrize("width", [80, pytest.param(100, marks=pytest.mark.exhaustive), 140])
def test_every_view_shows_complete_sentences(width: int) -> None:
    async def body() -> None:
        async with running(Files("f", long_snapshots()), (width, LOW)) as (app, pilot):
            await until(pilot, lambda: len(app.snapshots) == 2)
            for height in (LOW, HIGH):
                await pilot.resize_terminal(width, height)
                for name in VIEWS if height == LOW else WRAPPING:
                    view = VIEWS[name]
                    await app.switch_mode(name)
                    await until(pilot, partial(is_shown, app, view))
                    if name == "verdict":
                        await until(pilot, partial(has_scrollbar, app, height == LOW))
                    await require_complete_view(app, pilot, name, height)

    asyncio.run(body())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_help_is_complete(width: int) -> None:
    async def body() -> None:
        async with running(Files("f", long_snapshots()[:1]), (width, LOW)) as (app, pilot):
            await app.switch_mode("stacks")
            # The cells of a table are wrapped side by side, so their words are searched for one by one.
            words = [word for key in help_rows(app) for text in key for word in text.split()]
            texts = [" ".join((type(app.screen).__doc__ or "").split()), *words]
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, Dialog))
            await require_complete(pilot, app.screen.query_one(".dialog"), lambda: texts, "help")

    asyncio.run(body())


def sentences(count: int) -> list[str]:
    """Sentences with words of all lengths, some wider than any row, some with wide characters."""
    chance = random.Random(count)
    words = ["a", "of", "wait", "placement", "ray.get", "円環待機", "x" * 50, "path/" * 40]
    return [" ".join(chance.choices(words, k=chance.randrange(1, 60))) for _ in range(count)]


@pytest.mark.parametrize("count", [3, 60], ids=["few", "many"])
@pytest.mark.parametrize("width", WIDTHS)
def test_an_outline_wraps_at_any_depth(width: int, count: int) -> None:
    texts = sentences(count)
    lines: list[Line] = []
    for number, text in enumerate(texts):
        lines = [
            Line(str(number), Text(text), lines, is_open=True, hanging_indent=number % 3),
            Line(f"{number}/", Text("|")),
        ]

    async def body() -> None:
        app = OutlineApp(lines)
        async with app.run_test(size=(width, 40)) as pilot:
            await require_complete(pilot, app.outline, lambda: texts, "outline")
            assert app.outline.show_vertical_scrollbar == (count > 3)
            assert not app.outline.show_horizontal_scrollbar

    asyncio.run(body())


def test_the_cursor_stays_with_its_sentence_when_the_width_changes() -> None:
    lines = [Line(str(number), Text(text), hanging_indent=0) for number, text in enumerate(sentences(40))]

    async def body() -> None:
        app = OutlineApp(lines)
        async with app.run_test(size=(140, 24)) as pilot:
            await pilot.pause()
            app.outline.reveal(["30"])
            for width in (80, 140):
                await pilot.resize_terminal(width, 24)
                await pilot.pause()
                assert app.outline.cursor_line == lines[30]
                at = app.outline.row_of("30")
                assert at is not None
                assert app.outline.scroll_y <= at < app.outline.scroll_y + app.outline.size.height

    asyncio.run(body())


GLYPHS = dict.fromkeys(map(ord, "┌▶│└─•"))
SHORT = 30
"""This many cells fit into every row, so a row has a single word only beside a longer word."""


def single_words(outline: Outline) -> list[str]:
    """Rows with a single short word, in lines of several rows, beside another short word."""
    rows_of: dict[str, list[list[str]]] = {}
    for row in outline._rows:
        rows_of.setdefault(row.line.key, []).append(row.text.plain.translate(GLYPHS).split())
    found = []
    for rows in rows_of.values():
        for at, words in enumerate(rows):
            beside = [*(rows[at - 1][-1:] if at else []), *(rows[at + 1][:1] if at + 1 < len(rows) else [])]
            if len(words) == 1 and any(len(word) + len(words[0]) < SHORT for word in beside):
                found.append(words[0])
    return found


@pytest.mark.parametrize("width", [80, 140])
def test_no_recorded_finding_has_a_row_with_a_single_word(width: int) -> None:
    rows: list[Line] = []
    for path in sorted(RECORDED.glob("*.json.gz")):
        analysed = AnalysedSnapshot.of(load(path))
        rows += [Line(path.name, Text(path.name)), *_unfolded(path.name, finding_lines(analysed))]

    async def body() -> None:
        app = OutlineApp(rows)
        async with app.run_test(size=(width, 40)) as pilot:
            await pilot.pause()
            count = sum(1 for _ in app.outline.visible_lines)
            assert len(app.outline._rows) > count > 100, "many lines, some of them wrapped"
            assert single_words(app.outline) == []

    asyncio.run(body())


def _unfolded(name: str, lines: Iterable[Line]) -> list[Line]:
    """Lines with unique keys, all unfolded."""
    unfolded = []
    for line in lines:
        children = line.children() if callable(line.children) else line.children
        unfolded.append(replace(line, key=f"{name}/{line.key}", children=_unfolded(name, children), is_open=True))
    return unfolded


def test_a_filter_finds_words_on_both_sides_of_a_line_break() -> None:
    lines = [Line("long", Text(f"first {'word ' * 40}last"), hanging_indent=0), Line("other", Text("first"))]

    async def body() -> None:
        app = OutlineApp(lines)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            assert app.outline.filter("first last") == 1
            assert [line.key for _, line in app.outline.visible_lines] == ["long"]

    asyncio.run(body())

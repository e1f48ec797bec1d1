"""The Verdict view: each finding begins with its diagram, whose rows go to the other views."""

from __future__ import annotations

import asyncio

import pytest

from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Entry, Finding
from dstack.model.vertex_keys import Key
from dstack.report.finding import picture
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files
from dstack.tui.views.verdict_view import FindingSubject, VerdictView
from dstack.tui.widgets.outline import Outline
from tests.tui.pilots import running, screen_text, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import recorded
from tests.unit.scenes import Scene


def deadlock() -> Scene:
    """Two actors that wait for each other, and a driver behind them."""
    scene = Scene()
    driver = scene.driver()
    left, right = scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
    back = scene.call(left, "back", by=right)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(back)
    return scene


@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [recorded("tune-hang")]), (120, 40)) as (app, pilot):
            await require_pinned(app, pilot, "verdict")

    asyncio.run(body())


@pytest.mark.parametrize("size", [(80, 60), (200, 60)], ids=["80", "200"])
def test_a_finding_opens_with_the_diagram_of_the_report(size: tuple[int, int]) -> None:
    async def body() -> None:
        async with running(Files("hang.json", [deadlock().snapshot()]), size) as (app, _):
            assert app.shown
            (finding,) = app.shown.analysed.diagnosis.findings
            rows = [line.plain for row in picture(finding) for line in row.lines(size[0] - 6, app.console)]
            text = screen_text(app)

            assert rows
            assert [row for row in rows if row not in text] == []
            words = " ".join(text.split())
            assert " ".join(finding.summary.split()) in words
            assert str(finding.advice) in words

    asyncio.run(body())


def test_the_sentences_are_folded_without_room_and_complete_when_unfolded() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [deadlock().snapshot()]), (80, 60)) as (app, pilot):
            assert app.shown
            (finding,) = app.shown.analysed.diagnosis.findings
            assert finding.explanation
            roomy = " ".join(screen_text(app).split())
            await pilot.resize_terminal(80, 16)
            await until(pilot, lambda: not unfolded(app, finding))
            await pilot.press("G", "enter")

            assert all(step.text in roomy for step in finding.explanation)
            assert unfolded(app, finding) == len(finding.explanation)

    asyncio.run(body())


def unfolded(app: DstackApp, finding: Finding) -> int:
    """The number of sentences about a finding that are unfolded."""
    lines = [line.text.plain for _, line in app.screen.query_one(Outline).visible_lines]
    return sum(any(step.text in line for line in lines) for step in finding.explanation)


def test_folds_survive_a_resize_of_the_terminal() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [deadlock().snapshot()])) as (app, pilot):
            outline = app.screen.query_one(Outline)
            await pilot.press("left")
            before = [line.key for _, line in outline.visible_lines]
            await pilot.resize_terminal(80, 24)
            await pilot.pause()

            assert [line.key for _, line in outline.visible_lines] == before

    asyncio.run(body())


def slow_call() -> Scene:
    """A driver that waits for a running actor call."""
    scene = Scene()
    driver, slow = scene.driver(), scene.actor("Slow")
    call = scene.call(slow, "work", by=driver)
    driver.gets(call)
    slow.runs(call).computes()
    return scene


async def go_to_line(app: DstackApp, words: str) -> None:
    """Select the line with these words."""
    outline = app.screen.query_one(Outline)
    (line,) = (line for _, line in outline.visible_lines if words in line.text.plain)
    outline.reveal([line.key])


def test_keys_go_to_the_stack_and_the_waits_of_an_entry_or_of_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = slow_call()
    visited: list[tuple[str, Key]] = []

    async def body() -> None:
        async with running(Files("slow.json", [scene.snapshot()])) as (app, pilot):
            monkeypatch.setattr(app, "go_to", lambda mode, vertex: visited.append((mode, vertex)))
            await go_to_line(app, "Slow.work   ")
            await pilot.press("enter", "w", "g", "x")

    asyncio.run(body())

    (driver, slow) = scene.procs
    assert visited == [("stacks", slow.key), ("waits", slow.key), ("stacks", driver.key)]
    assert slow.key != driver.key


def test_every_row_of_the_diagram_leads_to_its_vertex_and_its_line_of_code() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [deadlock().snapshot()])) as (app, _):
            assert app.shown
            (finding,) = app.shown.analysed.diagnosis.findings
            abouts = [line.data for _, line in app.screen.query_one(Outline).visible_lines]
            entries = [row for row in finding.diagram.rows if isinstance(row, Entry)]

            assert len(entries) == 2
            for entry in entries:
                assert entry.file is not None
                assert entry.line is not None
                assert FindingSubject(finding, entry.vertex, (entry.file, entry.line)) in abouts

    asyncio.run(body())


def test_every_sentence_about_a_deadlock_leads_to_the_vertex_that_it_names() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [deadlock().snapshot()])) as (app, _):
            assert app.shown
            diagnosis = app.shown.analysed.diagnosis
            (finding,) = diagnosis.findings
            vertices = [diagnosis.vertices[step.vertex] for step in finding.explanation if step.vertex]

            assert len(vertices) == len(finding.explanation)
            assert all(
                describe(vertex) in step.text for vertex, step in zip(vertices, finding.explanation, strict=True)
            )

    asyncio.run(body())


def test_o_opens_the_line_of_an_entry_and_y_copies_the_finding() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [deadlock().snapshot()])) as (app, pilot):
            assert app.shown
            (finding,) = app.shown.analysed.diagnosis.findings
            view = app.screen
            assert isinstance(view, VerdictView)
            entry = next(row for row in finding.diagram.rows if isinstance(row, Entry))
            await go_to_line(app, f"1  {entry.name}")
            assert view.to_open() == (entry.file, entry.line)
            await pilot.press("y")

            assert app.clipboard.startswith(f"deadlock: {finding.summary}")
            assert "┌▶ 1  " in app.clipboard
            assert "Fix: " in app.clipboard

    asyncio.run(body())

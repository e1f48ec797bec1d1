"""The Verdict view: what is wrong is told first, whole, and leads on."""

from __future__ import annotations

import asyncio

import pytest

from dstack.tui.outline import Outline
from dstack.tui.source import Files
from dstack.vertex_keys import Key
from tests.tui.pilots import running, screen_text
from tests.tui.pinned import assert_pinned
from tests.tui.sources import recorded
from tests.unit.scenes import Scene

SIZES = [(80, 24), (120, 40), (200, 60)]


def deadlock() -> Scene:
    """Two actors that ask each other, and somebody behind them."""
    scene = Scene()
    driver = scene.driver()
    left, right = scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
    back = scene.call(left, "back", by=right)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(back)
    return scene


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.usefixtures("still_clock")
def test_it_looks_as_it_did(size: tuple[int, int]) -> None:
    async def body() -> None:
        async with running(Files("hang.json", [recorded("tune-hang")]), size) as (app, _):
            assert_pinned(app, f"verdict-{size[0]}x{size[1]}")

    asyncio.run(body())


def test_a_finding_is_told_whole_with_its_way_out_at_any_width() -> None:
    async def body(size: tuple[int, int]) -> str:
        async with running(Files("hang.json", [deadlock().snapshot()]), size) as (app, _):
            assert app.shown
            (finding,) = app.shown.diagnosis.findings
            text = " ".join(screen_text(app).split())
            assert " ".join(finding.summary.split()) in text
            assert finding.advice in text
            assert all(step.text in text for step in finding.explanation)
            return screen_text(app)

    for size in ((80, 60), (200, 60)):
        asyncio.run(body(size))


def test_folds_and_cursor_stay_when_the_terminal_changes_its_size() -> None:
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
    """A driver, and an actor whose call it waits for and that runs."""
    scene = Scene()
    driver, slow = scene.driver(), scene.actor("Slow")
    call = scene.call(slow, "work", by=driver)
    driver.gets(call)
    slow.runs(call).computes()
    return scene


def test_enter_goes_to_the_vertex_that_the_sentence_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = slow_call()
    gone: list[tuple[str, Key]] = []

    async def body() -> None:
        async with running(Files("slow.json", [scene.snapshot()])) as (app, pilot):
            monkeypatch.setattr(app, "go_to", lambda mode, vertex: gone.append((mode, vertex)))
            outline = app.screen.query_one(Outline)
            (key,) = [line.key for _, line in outline.visible_lines if "runs; 1 waits on it" in line.text.plain]
            outline.reveal([key])
            await pilot.press("enter")

    asyncio.run(body())

    (driver, slow) = scene.procs
    assert gone == [("waits", slow.key)]
    assert slow.key != driver.key


def test_every_sentence_about_a_deadlock_leads_to_who_it_names() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [deadlock().snapshot()])) as (app, _):
            assert app.shown
            diagnosis = app.shown.diagnosis
            (finding,) = diagnosis.findings
            vertices = [diagnosis.vertices[step.vertex] for step in finding.explanation if step.vertex]

            assert len(vertices) == len(finding.explanation)
            assert all(vertex.label in step.text for vertex, step in zip(vertices, finding.explanation, strict=True))

    asyncio.run(body())

"""The Calls view: callers with what they call, figures in columns, and waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Static

from dstack.analysis.naming.descriptions import describe
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.report.calls_text import COLUMNS
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files, Source
from dstack.tui.views.calls_view import CallsView
from dstack.tui.widgets.outline import Detail, Outline
from tests.paths import RECORDED_CALLS
from tests.tui.pilots import running, screen_text, search, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import LACK, Gated, Scripted
from tests.unit.scenes import Scene
from tests.unit.support.call_histories import attempt, ended, with_history

Body = Callable[[DstackApp, Pilot[Any], CallsView], Awaitable[None]]


@pytest.fixture(scope="module")
def pipeline() -> Snapshot:
    """A real snapshot of a pipeline that hangs."""
    return load(RECORDED_CALLS)


def in_calls(source: Source | Snapshot, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Run a test in this view."""

    async def run() -> None:
        given = Files("f", [source]) if isinstance(source, Snapshot) else source
        async with running(given, size) as (app, pilot):
            await app.switch_mode("calls")
            view = app.screen
            assert isinstance(view, CallsView)
            await until(pilot, lambda: view.graph)
            await body(app, pilot, view)

    asyncio.run(run())


def shown(view: CallsView) -> list[str]:
    return [line.text.plain for _, line in view.query_one(Outline).visible_lines]


def head(view: CallsView) -> str:
    return str(view.query_one("#head", Static).visual)


async def go_to_line(view: CallsView, pilot: Pilot[Any], words: str) -> None:
    line = next(line for _, line in view.query_one(Outline).visible_lines if words in line.text.plain)
    view.query_one(Outline).reveal([line.key])
    await pilot.pause()


def detail(view: CallsView) -> str:
    return view.query_one(Detail).text.plain


def test_callers_have_what_they_call_below_them_with_their_waits(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        lines = shown(view)
        assert lines[:6] == [
            "■ driver pipeline.py",
            "■ waits for Trainer: 1 × ray.get, never proceeds",
            "→ Store",
            "→ Rollout (3 actors)",
            "■ → Trainer",
            "→ prepare",
        ]
        assert "✖ → Rollout.pause" in lines
        assert "✖ waits for Rollout (3 actors): 1 × ray.get, deadlock" in lines
        assert "121 calls within 14 s: 116 finished, 1 failed, 2 running, 2 pending" in head(view)

    in_calls(pipeline, body)


def test_figures_are_below_the_titles_of_their_columns(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        rows = screen_text(app).splitlines()
        (titles,) = (row for row in rows if row.startswith("caller, and what"))
        (store,) = (row for row in rows if "→ Store  " in row)
        (prepare,) = (row for row in rows if "→ prepare" in row)
        end = titles.rindex("▾calls") + len("▾calls")
        assert store[:end].endswith("  61")
        end = titles.rindex("fail") + len("fail")
        assert prepare[:end].endswith("  1")
        end = titles.rindex("alive") + len("alive")
        assert prepare[:end].endswith("14 MiB")

    in_calls(pipeline, body, (80, 24))


def test_methods_unfold_below_a_class(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        await go_to_line(view, pilot, "→ Store")
        await pilot.press("enter")
        assert shown(view)[2:5] == ["→ Store", ".size", ".__init__"]
        await pilot.press("left")
        assert ".size" not in shown(view)

    in_calls(pipeline, body)


def test_each_column_sorts_callers_and_callees(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        names = [column.name for column in COLUMNS]
        for _ in range(names.index("fail")):
            await pilot.press("greater_than_sign")
        assert view.sorted_by.name == "fail"
        assert shown(view)[:3][2] == "→ prepare"
        await pilot.press(*["less_than_sign"] * 3)
        assert view.sorted_by.name == "/s"
        (choice,) = (one for one in view.choices() if one.title == "Sort by max")
        choice.callback()
        await pilot.pause()
        assert shown(view)[2] == "■ → Trainer"

    in_calls(pipeline, body)


def test_i_shows_each_actor_and_the_classes_again(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        await pilot.press("i")
        await until(pilot, lambda: view.graph and view.graph.by == "instance")
        rollouts = [text for text in shown(view) if text.startswith("→ Rollout ")]
        assert len(rollouts) == 3
        assert "by actor" in head(view)
        await pilot.press("i")
        await until(pilot, lambda: "→ Rollout (3 actors)" in shown(view))

    in_calls(pipeline, body)


def test_keys_go_to_the_stack_of_a_running_call_and_to_waits(
    pipeline: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    visited: list[tuple[str, Key]] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        monkeypatch.setattr(app, "go_to", lambda mode, vertex: visited.append((mode, vertex)))
        assert view.analysed
        of_task = {describe(vertex): key for key, vertex in view.analysed.diagnosis.vertices.items()}
        await go_to_line(view, pilot, "■ → Trainer")
        await pilot.press("x")
        await go_to_line(view, pilot, "✖ waits for Trainer: 1 × await")
        await pilot.press("w", "enter")
        await go_to_line(view, pilot, "→ tokenize")
        assert not view.check_action("stack", ())
        assert not view.check_action("waits", ())
        await pilot.press("x", "w")

        assert visited == [
            ("stacks", of_task["Trainer.sync"]),
            ("waits", of_task["Rollout.pause"]),
            ("stacks", of_task["Rollout.pause"]),
        ]

    in_calls(pipeline, body)


def test_the_other_views_have_the_vertices_that_keys_go_to(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        await go_to_line(view, pilot, "✖ → Rollout.pause")
        await pilot.press("x")
        await until(pilot, lambda: app.current_mode == "stacks" and "pipeline.py" in screen_text(app))
        assert "This view does not contain it." not in screen_text(app)

    in_calls(pipeline, body)


def test_details_can_be_copied_with_the_ids_of_open_tasks(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        await go_to_line(view, pilot, "✖ → Rollout.pause")
        assert "Trainer → Rollout (3 actors): 1 call" in detail(view)
        assert "longest ≥ 4.9 s, still running" in detail(view)
        await pilot.press("y")
        assert "\nTask " in app.clipboard
        await go_to_line(view, pilot, "→ Store")
        assert "44 calls/s: a high rate, as of a loop that polls" in detail(view)
        await pilot.press("g")
        assert "2.9 MiB of live objects that it has made by ray.put" in detail(view)
        assert "→ prepare " in (view.to_export() or "")

    in_calls(pipeline, body)


def test_a_filter_finds_methods_and_the_cursor_survives_another_snapshot(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        await search(pilot, "version")
        assert shown(view) == ["✖ Rollout (3 actors)", "✖ → Trainer.version"]
        await pilot.press("escape")
        await go_to_line(view, pilot, "→ tokenize")
        await pilot.press("r")
        await until(pilot, lambda: len(app.snapshots) == 2 and view.shown is app.snapshots[-1] and view.graph)
        await pilot.pause()
        line = view.query_one(Outline).cursor_line
        assert line
        assert line.text.plain == "→ tokenize"

    in_calls(Scripted(pipeline), body)


def test_a_vertex_is_revealed_at_the_wait_of_its_node(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        assert view.graph
        wait = view.graph.waits[-1]
        assert view.reveal(wait.waiters[0])
        line = view.query_one(Outline).cursor_line
        assert line
        assert "waits for" in line.text.plain

    in_calls(pipeline, body)


# The history


def test_the_history_is_requested_on_the_first_show(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        assert "Reading the history of tasks; until then only calls that have not ended are shown." in head(view)
        assert "→ Rollout.pause" in "\n".join(shown(view))
        source.gate.set()
        await until(pilot, lambda: view.graph and view.graph.ended_at)
        assert "→ tokenize" in shown(view)
        assert "Reading" not in head(view)

    source = Gated(replace(pipeline, history=None), pipeline)
    in_calls(source, body)


def test_a_file_without_history_shows_unfinished_calls_and_says_so(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        assert "This snapshot has no history of tasks: only calls that have not ended are shown." in head(view)
        assert "dstack snapshot -o FILE" in head(view)
        assert "→ tokenize" not in shown(view)

    in_calls(replace(pipeline, history=None), body)


def test_a_lack_of_events_is_said_instead(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        assert "Ray has no events. Start the dashboard. Only calls that have not ended are shown." in head(view)

    in_calls(replace(pipeline, history=None, failures=(LACK,)), body)


def test_a_failure_to_build_the_graph_is_shown(pipeline: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with running(Files("f", [pipeline])) as (app, pilot):
            await app.switch_mode("calls")
            view = app.screen
            assert isinstance(view, CallsView)
            await until(pilot, lambda: "✖ " in head(view))
            assert "no graph today" in head(view)

    def fail(*_: object, **__: object) -> None:
        raise ValueError("no graph today")

    monkeypatch.setattr("dstack.tui.views.calls_view.CallGraph.of", fail)
    asyncio.run(run())


def test_thousands_of_calls_and_actors_need_no_widgets() -> None:
    counts: list[int] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        await pilot.press("i")
        await until(pilot, lambda: view.graph and view.graph.by == "instance")
        await pilot.press("g", "right", "G")
        assert len(shown(view)) > size
        counts.append(len(view.query("*")))

    for size in (20, 2_000):
        scene = Scene()
        driver = scene.driver()
        actors = [scene.actor("Worker") for _ in range(size)]
        calls = [ended(scene, scene.call(actor, "step", by=driver)) for actor in actors]
        in_calls(with_history(scene, [attempt(call, driver) for call in calls]), body)
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture(pipeline: Snapshot) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: CallsView) -> None:
        await go_to_line(view, pilot, "■ → Trainer")
        await pilot.press("right")
        await require_pinned(app, pilot, "calls")

    in_calls(Files("pipeline.json.gz", [pipeline]), body)

"""The Timeline view: what ran when, what waits now, and the keys that move through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot, TaskAttempt, TaskHistory
from dstack.model.vertex_keys import Key, ThreadKey
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files, Source
from dstack.tui.views.timeline_texts import attempt_of
from dstack.tui.views.timeline_view import TimelineView
from dstack.tui.widgets.gantt import Gantt, RowDrawing
from dstack.tui.widgets.outline import Detail
from tests.paths import RECORDED_CALLS
from tests.tui.pilots import running, screen_text, search, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import LACK, Gated, Scripted, recorded
from tests.unit.analysis.history.test_marked_spans import finished, history_of, process
from tests.unit.analysis.history.test_marked_spans import ran as span_attempt
from tests.unit.scenes import Scene
from tests.unit.scenes.calls import JOB, Call
from tests.unit.scenes.processes import SceneProcess
from tests.unit.scenes.scene import TAKEN_AT
from tests.unit.support.large_histories import history_snapshot

ARRANGED_S = 120.0
"""100,000 attempts take 5 s on an idle machine."""
Body = Callable[[DstackApp, Pilot[Any], TimelineView], Awaitable[None]]


class Workshop(Scene):
    """Two workers that load and train, an actor that waits for a running task, and calls in its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.back = self.node(CPU=2.0), self.node(CPU=4.0)
        self.driver_ = self.driver(self.head)
        self.clerk = self.actor("Clerk", self.head)
        self.work, self.worker_ = self.run("work", by=self.driver_, node=self.back, CPU=1.0)
        self.other = self.worker(self.back).idles()
        self.calls = [self.call(self.clerk, "stamp", by=self.driver_) for _ in range(4)]
        self.clerk.runs(self.calls[0]).gets(self.work)
        self.driver_.gets(*self.calls)

    def with_history(self) -> Snapshot:
        snapshot = self.snapshot()
        attempts = list(self._attempts())
        history = TaskHistory(asked_at=TAKEN_AT + 0.5, attempts=tuple(attempts), kept=len(attempts) + 7, left_out=7)
        return replace(snapshot, history=history)

    def _attempts(self) -> Iterator[TaskAttempt]:
        for item in range(4):
            loaded = -58.0 + 12 * item
            load, train = (self.task(name, by=self.driver_) for name in ("load", "train"))
            yield ran(load, self.other, -60, -60, loaded, loaded + 5)
            yield ran(train, self.worker_, -60, loaded + 5, loaded + 6, loaded + 11, has_failed=item == 2)
        yield ran(self.work, self.worker_, -12, -11, -8)
        yield ran(self.calls[0], self.clerk, -10, -10, -7)
        for number, call in enumerate(self.calls[1:]):
            yield ran(call, None, -6 + number, -6 + number, None)


def ran(
    call: Call,
    process: SceneProcess | None,
    submitted: float,
    ready: float,
    started: float | None,
    ended: float | None = None,
    *,
    has_failed: bool = False,
) -> TaskAttempt:
    """An attempt with times relative to the snapshot."""
    times = {
        "PENDING_ARGS_AVAIL": submitted,
        "PENDING_NODE_ASSIGNMENT": ready,
        "SUBMITTED_TO_WORKER": ready + 0.5,
        "RUNNING": started,
        "FAILED" if has_failed else "FINISHED": ended,
    }
    worker = process.worker if process else None
    return TaskAttempt(
        task_id=call.task.task_id,
        name=call.task.name,
        kind=call.task.kind,
        job_id=JOB,
        actor_id=call.task.actor_id,
        worker_id=worker.worker_id if worker else None,
        node_id=worker.node_id if worker else None,
        pid=worker.pid if worker else None,
        states={state: TAKEN_AT + at for state, at in times.items() if at is not None},
        error_type="TASK_EXECUTION_EXCEPTION" if has_failed else "",
        error="ValueError: no such item" if has_failed else "",
    )


def in_timeline(source: Source | Snapshot, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Run a test in this view, from the arrangement of its rows on."""

    async def run() -> None:
        given = Files("f", [source]) if isinstance(source, Snapshot) else source
        async with running(given, size) as (app, pilot):
            await pilot.press("7")
            await until(pilot, lambda: isinstance(app.screen, TimelineView) and app.screen.shown)
            assert isinstance(app.screen, TimelineView)
            view = app.screen
            if view.analysed and view.analysed.timeline is not None:
                await until(pilot, lambda: view.rows is not None and view.is_linked, ARRANGED_S)
            await body(app, pilot, view)

    asyncio.run(run())


def titles(view: TimelineView) -> list[str]:
    return [row.title for row in view.query_one(Gantt).rows]


def detail(view: TimelineView) -> str:
    return view.query_one(Detail).text.plain


def head(app: DstackApp) -> str:
    return "\n".join(screen_text(app).splitlines()[3:6])


def selected(view: TimelineView) -> str | None:
    attempt = attempt_of(view.query_one(Gantt).selection)
    return attempt.task.name if attempt else None


async def go_to_row(view: TimelineView, pilot: Pilot[Any], words: str) -> None:
    gantt = view.query_one(Gantt)
    (index,) = (number for number, row in enumerate(gantt.rows) if words in row.title)
    gantt.select(index, gantt.cursor_time)
    await pilot.pause()


def test_workers_have_rows_below_their_nodes_and_a_head_says_what_is_missing() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        assert titles(view)[:3] == ["node 10.0.0.1", "actor Clerk 00000000, pid 4000", "waiting"]
        assert "node 10.0.0.2" in titles(view)
        assert "13 attempts in 1 min" in head(app)
        assert "7 older ones left out" in head(app)
        assert "◆" in screen_text(app)
        assert "─ r resources" in head(app)
        assert "■ stuck" not in head(app), "only what is drawn is explained"
        await go_to_row(view, pilot, "node 10.0.0.2")
        assert "9 attempts: 7 finished, 1 failed, 1 running\nRan for: train 20 s, load 20 s" in detail(view)

    in_timeline(Workshop().with_history(), body)


def test_spans_are_bars_below_those_of_their_tasks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await go_to_row(view, pilot, "spans")
        await pilot.press("h")
        assert selected(view) == 'span "train"'
        assert 'span "train"  finished after 1.0 s' in detail(view)

    spans = [finished("load", 1, 6), finished("train", 6, 7)]
    in_timeline(history_of([span_attempt("x", 0, 10)], process(9, spans)).index.snapshot, body)


def test_keys_move_between_rows_and_bars_and_the_detail_says_what_is_there() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await go_to_row(view, pilot, f"worker, pid {scene.other.worker.pid}")
        await pilot.press("h")
        assert selected(view) == "load"
        assert "load  finished after 5.0 s" in detail(view)
        assert "the way to the worker" in detail(view)
        first = view.query_one(Gantt).cursor_time
        await pilot.press("left", "h")
        assert view.query_one(Gantt).cursor_time < first
        before = view.query_one(Gantt).cursor_time
        await pilot.press("l")
        assert view.query_one(Gantt).cursor_time > before
        await pilot.press("g")
        assert view.query_one(Gantt).row is view.query_one(Gantt).rows[0]
        await pilot.press("G")
        assert view.query_one(Gantt).row is view.query_one(Gantt).rows[-1]

    scene = Workshop()
    in_timeline(scene.with_history(), body)


def test_keys_zoom_and_pan_around_the_cursor() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        gantt = view.query_one(Gantt)
        whole = gantt.window
        await go_to_row(view, pilot, f"worker, pid {scene.other.worker.pid}")
        await pilot.press("h", "plus", "plus")
        zoomed = gantt.window
        assert zoomed.cell_s < whole.cell_s / 2
        assert zoomed.began_at <= gantt.cursor_time <= zoomed.ended_at
        await pilot.press("less_than_sign")
        assert gantt.window.began_at < zoomed.began_at
        await pilot.press("greater_than_sign", "minus")
        assert gantt.window.cell_s > zoomed.cell_s
        await pilot.press("0")
        assert gantt.window == whole
        assert selected(view) == "load"
        await pilot.press("enter")
        selection = gantt.selection
        assert selection
        attempt = attempt_of(selection)
        assert attempt
        assert attempt.started_at
        assert gantt.window.began_at == pytest.approx(attempt.started_at - 5 / 3, abs=1)

    scene = Workshop()
    in_timeline(scene.with_history(), body)


def test_enter_folds_a_node_and_z_a_track() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        before = titles(view)
        await pilot.press("g", "enter")
        assert len(titles(view)) < len(before)
        await pilot.press("enter")
        assert titles(view) == before
        await pilot.press("j", "z")
        assert titles(view).count("waiting") == before.count("waiting") - 1
        await pilot.press("Z")
        assert "waiting" not in titles(view)
        await pilot.press("Z")
        assert titles(view) == before

    in_timeline(Workshop().with_history(), body)


def test_f_goes_to_the_next_failed_attempt() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press("f")
        assert selected(view) == "train"
        assert "ValueError: no such item" in detail(view)
        await pilot.press("f", "F")
        assert selected(view) == "train"

    in_timeline(Workshop().with_history(), body)


def test_x_and_w_go_to_the_running_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[tuple[str, Key]] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        monkeypatch.setattr(app, "go_to", lambda mode, vertex: visited.append((mode, vertex)))
        await go_to_row(view, pilot, "actor Clerk")
        assert "ray.get" in detail(view)
        await pilot.press("x", "w")
        key = scene.clerk.key
        assert visited == [("stacks", key), ("waits", key)]
        assert view.to_open() == ("/srv/app/app.py", scene.clerk.threads[0].line)
        await go_to_row(view, pilot, f"worker, pid {scene.other.worker.pid}")
        assert not view.check_action("stack", ())

    scene = Workshop()
    in_timeline(scene.with_history(), body)


def test_a_vertex_is_revealed_also_in_a_folded_track() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await search(pilot, "load")
        await pilot.press("Z", "g", "enter")
        assert view.reveal(scene.clerk.key)
        await pilot.pause()
        assert selected(view) == "Clerk.stamp"
        assert not view.filter_text
        assert not view.reveal(ThreadKey("none", 1))

    scene = Workshop()
    in_timeline(scene.with_history(), body)


def test_another_view_reveals_a_task_before_the_rows_are_arranged() -> None:
    async def body() -> None:
        async with running(Files("f", [scene.with_history()])) as (app, pilot):
            app.go_to("timeline", scene.clerk.key)
            await until(pilot, lambda: isinstance(app.screen, TimelineView) and selected(app.screen) == "Clerk.stamp")

    scene = Workshop()
    asyncio.run(body())


def test_a_filter_leaves_only_attempts_with_all_words() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        assert view.filtered("train failed") == 1
        assert [title for title in titles(view) if title != "waiting"] == [
            "node 10.0.0.2",
            f"worker, pid {scene.worker_.worker.pid}",
        ]
        assert view.filtered("no such function") == 0
        await pilot.pause()
        assert "No attempt contains these words." in screen_text(app)
        view.filtered("")
        assert "actor Clerk 00000000, pid 4000" in titles(view)

    scene = Workshop()
    in_timeline(scene.with_history(), body)


def test_rows_for_functions_and_chains_and_colours_by_chain_and_critical_path() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press("b")
        await until(pilot, lambda: "functions" in titles(view))
        assert {"Clerk.stamp", "load", "train", "work"} <= set(titles(view))
        await pilot.press("b")
        await until(pilot, lambda: "functions" not in titles(view))
        await pilot.press("c")
        assert "coloured by chain" in screen_text(app)
        await until(pilot, lambda: view.is_linked)
        await pilot.press("c")
        assert "★ on the critical path" in screen_text(app)
        assert "Critical path of " in screen_text(app)
        await pilot.press("c", "b")
        await until(pilot, lambda: titles(view)[0] == "node 10.0.0.1")

    in_timeline(Workshop().with_history(), body)


def test_y_copies_the_details_and_e_exports_all_rows() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press("f", "y")
        assert "train  failed after 5.0 s" in app.clipboard
        assert "Task " in app.clipboard
        text = view.to_export() or ""
        assert "13 attempts" in text
        assert "actor Clerk 00000000, pid 4000" in text
        assert "load" in text

    in_timeline(Workshop().with_history(), body)


# Without a history


def test_a_file_without_a_history_says_how_to_get_one() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        assert "This snapshot has no history of tasks. dstack snapshot -o FILE" in screen_text(app)
        await pilot.press("j", "l", "plus", "0", "f", "z", "enter", "y", "b", "c")
        assert view.to_export() is None
        assert view.filtered("x") == 0

    in_timeline(recorded("queue-ray-2.60"), body)


def test_a_live_view_requests_the_history_when_it_is_first_shown() -> None:
    scene = Workshop()
    source = Gated(scene.snapshot(), scene.with_history())

    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await until(pilot, lambda: "Reading the history of tasks" in screen_text(app))
        source.gate.set()
        await until(pilot, lambda: view.rows is not None)
        assert "actor Clerk 00000000, pid 4000" in titles(view)

    in_timeline(source, body)


def test_a_history_that_could_not_be_read_is_not_requested_for_ever() -> None:
    source = Scripted(Workshop().snapshot())

    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await until(pilot, lambda: source.calls == 2 and not app.status.doing)
        await until(pilot, lambda: "could not be read" in screen_text(app))
        assert source.calls == 2

    in_timeline(source, body)


def test_a_lack_of_events_is_said() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await until(pilot, lambda: "Ray has no events. Start the dashboard." in screen_text(app))

    in_timeline(Scripted(replace(Workshop().snapshot(), failures=(LACK,))), body)


def test_an_empty_history() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        assert "Ray keeps no attempts of tasks" in screen_text(app)
        await pilot.press("j", "l", "plus", "minus", "0", "f", "z", "enter", "y", "b", "c", "greater_than_sign")
        assert view.analysed

    in_timeline(replace(Workshop().snapshot(), history=TaskHistory(asked_at=TAKEN_AT)), body)


def test_one_attempt_without_a_duration() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press(*"jjlhh++++--0fzZ".replace("+", "=").replace("-", "0"), "enter", "pagedown", "y")
        assert "1 attempt" in screen_text(app)

    scene = Scene()
    call = scene.task("load", by=scene.driver())
    attempt = ran(call, scene.worker().idles(), 0, 0, 0, 0)
    in_timeline(replace(scene.snapshot(), history=TaskHistory(asked_at=TAKEN_AT, attempts=(attempt,))), body)


# Size and time


def test_the_cursor_and_the_window_survive_another_snapshot() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        gantt = view.query_one(Gantt)
        await go_to_row(view, pilot, f"worker, pid {scene.other.worker.pid}")
        await pilot.press("h", "plus")
        before, at, row = gantt.window, gantt.cursor_time, gantt.row
        rows = view.rows
        await pilot.press("r")
        await until(pilot, lambda: len(app.snapshots) == 2 and view.rows is not rows)
        assert (gantt.window, gantt.cursor_time) == (before, at)
        assert row
        assert gantt.row
        assert gantt.row.key == row.key

    scene = Workshop()
    in_timeline(Scripted(scene.with_history()), body)


@pytest.mark.parametrize("many", [20_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_many_attempts_need_as_few_widgets_and_drawn_rows_as_100(many: int) -> None:
    counts: list[tuple[int, int]] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press("0", "j", "j", "l", "plus", "f")
        await pilot.pause()
        gantt = view.query_one(Gantt)
        assert len(gantt._drawings) <= 2 * gantt.size.height
        assert selected(view)
        counts.append((len(view.query("*")), gantt.size.height))

    for attempts, workers in ((100, 30), (many, 300)):
        in_timeline(history_snapshot(attempts, workers), body)
    assert counts[0][0] == counts[1][0]


def test_m_marks_a_range_and_the_pane_sums_what_ran_in_it() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press("f", "m")
        assert detail(view).startswith("Range of 5.0 s from +32.000 s (")
        assert "1 attempt ran, 1.0 at once on average  1 failed" in detail(view)
        assert "100.0 %      5.0 s       1 × train" in detail(view)
        await pilot.press("h", "m", "l")
        assert detail(view).startswith("Range of 17 s"), "from the bar before, and ended there"
        await pilot.press("m")
        assert detail(view).startswith("train  ")
        gantt = view.query_one(Gantt)
        gantt.post_message(Gantt.Dragged(TAKEN_AT - 58, TAKEN_AT - 53))
        await pilot.pause()
        assert "100.0 %      5.0 s       1 × load" in detail(view)
        await search(pilot, "no-such-word")
        await pilot.press("escape")
        assert "Range" not in detail(view)

    in_timeline(Workshop().with_history(), body)


def test_lines_lead_to_the_caller_and_to_calls_and_u_and_d_follow_them() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        gantt = view.query_one(Gantt)
        await pilot.press("f")
        assert "called by driver pipeline.py" in " ".join(detail(view).split())
        assert "▼" in screen_text(app)
        await pilot.press("u")
        assert gantt.row
        assert gantt.row.title.startswith("driver pipeline.py")
        assert "driver pipeline.py" in RowDrawing.of(gantt.row, gantt.window, None, view._label).text
        assert "calls 60 × Store.size" in " ".join(detail(view).split())
        assert screen_text(app).count("▲") + screen_text(app).count("▼") >= 10, "one for each track with calls"
        await pilot.press("d")
        assert "called by driver pipeline.py" in " ".join(detail(view).split())
        await pilot.press("d")
        assert not attempt_of(gantt.selection) or app._notifications

    in_timeline(load(RECORDED_CALLS), body)


def test_a_cell_with_many_attempts_says_how_many() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press("g", "j", "h")
        assert "in this cell:" in detail(view)
        assert "finished" in detail(view)

    in_timeline(history_snapshot(20_000, 1), body)


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are those of Greenwich."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("fixed_age", "in_utc")
def test_the_screen_matches_its_picture() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: TimelineView) -> None:
        await pilot.press("f")
        await require_pinned(app, pilot, "timeline")

    in_timeline(Files("workshop.json", [Workshop().with_history()]), body)

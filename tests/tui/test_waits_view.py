"""The Waits view: keys visit the whole tree, and each wait shows its call, duration and evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dstack.analysis.views.wait_tree import WaitBranch
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files, Source
from dstack.tui.widgets.outline import Detail, Line, Outline
from tests.tui.pilots import running, screen_text, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import Scripted, recorded
from tests.unit.analysis.views.test_wait_tree import crowd
from tests.unit.scenes import Scene, SceneProcess

Body = Callable[[DstackApp, Pilot[Any]], Awaitable[None]]


class Cycle(Scene):
    """Three actors that call each other in a cycle, waiters behind the second, and a driver behind all."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.driver_ = self.driver()
        self.actors_ = [self.actor(name) for name in ("Ann", "Bob", "Cid")]
        calls = [self.call(self.actors_[0], "go", by=self.driver_)]
        calls += [self.call(self.actors_[(i + 1) % 3], "go", by=self.actors_[i]) for i in range(3)]
        for actor, call, following in zip(self.actors_, calls, calls[1:], strict=False):
            actor.runs(call).gets(following)
        self.behind: list[SceneProcess] = []
        for _ in range(size):
            _, worker = self.run("train", by=self.driver_)
            worker.threads[0].line = 7
            self.behind.append(worker.gets(calls[1]))
        self.driver_.gets(*self.driver_.submitted)

    def sampled_twice(self) -> Snapshot:
        return self.sample().second_sample().snapshot()


def in_waits(source: Source | Snapshot, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Run a test in this view."""

    async def run() -> None:
        given = Files("f", [source]) if isinstance(source, Snapshot) else source
        async with running(given, size) as (app, pilot):
            await pilot.press("2")
            await until(pilot, lambda: app.current_mode == "waits" and outline(app).cursor_line is not None)
            await body(app, pilot)

    asyncio.run(run())


def outline(app: DstackApp) -> Outline:
    return app.screen.query_one(Outline)


def cursor(app: DstackApp) -> Line:
    line = outline(app).cursor_line
    assert line is not None
    return line


def branch(app: DstackApp) -> WaitBranch:
    data = cursor(app).data
    assert isinstance(data, WaitBranch)
    return data


def shown(app: DstackApp) -> list[str]:
    return [line.text.plain for _, line in outline(app).visible_lines]


def detail(app: DstackApp) -> str:
    return app.screen.query_one(Detail).text.plain


def test_a_cycle_has_numbered_entries_with_the_waits_blocked_behind_them() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        lines = shown(app)

        start = "↺ deadlock, confirmed: cycle of 4, 4 blocked behind it: Ann.go → Bob.go → Cid.go → Ann.go"
        assert lines[0].startswith(start)
        assert lines[1].startswith("1  Ann.go  ")
        assert "  waits for 2  1 blocked behind  ray.get · ≥ 0.5 s · exact · ref " in lines[1]
        assert [
            line for line in lines if line.startswith("4  Ann.go (pending)  ") and "waits for 1  actor slot" in line
        ]
        assert "3 × train  ray.get · ≥ 0.5 s · exact · ref " in "\n".join(lines)
        assert "Fix:" in detail(app)

    in_waits(Cycle().sampled_twice(), body)


def test_a_bracket_leads_from_the_last_entry_of_a_cycle_to_the_first() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("j", "j", "right")
        rows = screen_text(app).splitlines()[3:]
        begin = next(number for number, row in enumerate(rows) if row.startswith("┌▶"))
        end = next(number for number, row in enumerate(rows) if row.startswith("└─"))

        assert [row[:2] for row in rows[begin : end + 1]] == ["┌▶", *["│ "] * (end - begin - 1), "└─"]
        assert any("3 × train" in row for row in rows[begin:end]), "it continues beside unfolded lines"
        assert "waits for 1" in rows[end]

    in_waits(Cycle().sampled_twice(), body)


def test_a_long_cycle_is_scrolled_and_keeps_its_bracket() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("G")
        rows = [row[:2] for row in screen_text(app).splitlines()[3:20]]
        await pilot.press("g")

        assert "└─" in rows
        assert rows.count("│ ") > 10
        assert any(row.startswith("┌▶") for row in screen_text(app).splitlines())

    scene = Scene()
    actors = [scene.actor(f"A{number}") for number in range(30)]
    calls = [scene.call(actors[0], "go", by=scene.driver())]
    calls += [scene.call(actors[(number + 1) % 30], "go", by=actors[number]) for number in range(30)]
    for actor, call, following in zip(actors, calls, calls[1:], strict=False):
        actor.runs(call).gets(following)
    in_waits(scene.sample().second_sample().snapshot(), body, (100, 24))


def test_keys_move_unfold_and_fold() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        before = shown(app)
        await pilot.press("j", "j", "k", "G", "g")
        assert branch(app).role == "cycle"
        await pilot.press("left")
        assert len(shown(app)) == 1
        await pilot.press("enter")
        assert shown(app) == before
        await pilot.press("left", "right")
        assert shown(app) == before

    in_waits(Cycle().sampled_twice(), body)


def test_similar_waiters_unfold_into_one_line_each() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        assert app.screen.reveal(scene.behind[0].key)  # type: ignore[attr-defined]
        assert cursor(app).text.plain.startswith("3 × train")
        await pilot.press("right", "right", "j", "right", "right")

        assert branch(app).role == "one"
        assert branch(app).first == scene.behind[0].key
        assert "train (pid" in detail(app)

    scene = Cycle()
    in_waits(scene.sampled_twice(), body)


def test_t_goes_to_the_target_and_around_the_cycle() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        view = app.screen
        assert view.reveal(scene.driver_.key)  # type: ignore[attr-defined]
        assert branch(app).first == scene.driver_.key
        visited = []
        for _ in range(6):
            await pilot.press("t")
            visited.append(branch(app).first)

        ann, bob, cid = (actor.key for actor in scene.actors_)
        assert visited[0] in {ann, scene.behind[0].key}
        assert {ann, bob, cid} <= set(visited)

    scene = Cycle()
    in_waits(scene.sampled_twice(), body)


def test_enter_on_a_reference_goes_to_the_waiters_own_entry() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        named = next(line for _, line in outline(app).visible_lines if "see its own entry" in line.text.plain)
        outline(app).reveal([named.key])
        await pilot.pause()
        assert branch(app).place == "elsewhere"
        assert "Enter goes there" in detail(app)
        await pilot.press("enter")

        assert branch(app).place == "here"
        assert branch(app).first == both.key

    scene = Scene()
    driver = scene.driver()
    first, _ = scene.run("first", by=driver)
    second, _ = scene.run("second", by=driver)
    call, both = scene.run("both", by=driver)
    both.gets(first, second)
    driver.gets(call)
    in_waits(scene.snapshot(), body)


@pytest.mark.parametrize(("key", "end"), [("x", 0), ("T", 1)])
def test_both_ends_of_a_wait_have_their_stacks(key: str, end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[tuple[str, Key]] = []

    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        monkeypatch.setattr(app, "go_to", lambda mode, vertex: visited.append((mode, vertex)))
        await pilot.press("j", key)

        assert visited == [("stacks", scene.actors_[end].key)]

    scene = Cycle()
    in_waits(scene.sampled_twice(), body)


def test_enter_on_an_entry_without_waiters_goes_to_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[tuple[str, Key]] = []

    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        monkeypatch.setattr(app, "go_to", lambda mode, vertex: visited.append((mode, vertex)))
        outline(app).reveal([str(scene.driver_.key)])
        await pilot.press("enter")

        assert visited == [("stacks", scene.driver_.key)]

    scene = Cycle()
    in_waits(scene.sampled_twice(), body)


def test_w_in_the_verdict_goes_to_the_waits() -> None:
    async def run() -> None:
        scene = Cycle()
        async with running(Files("f", [scene.sampled_twice()])) as (app, pilot):
            lines = [line for _, line in outline(app).visible_lines]
            at = next(number for number, line in enumerate(lines) if "2  Bob.go   " in line.text.plain)
            await pilot.press(*["j"] * at, "w")
            await until(pilot, lambda: app.current_mode == "waits" and outline(app).cursor_line is not None)
            await until(pilot, lambda: branch(app).first == scene.actors_[1].key)

    asyncio.run(run())


def test_inferred_waits_show_their_reason() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        assert app.screen.reveal(queued.key)  # type: ignore[attr-defined]
        await pilot.pause()

        assert "inferred" in cursor(app).text.plain
        assert "Inferred: any of the 2 running calls may end first" in detail(app)

    scene = Scene()
    driver, clerk = scene.driver(), scene.threaded_actor(2, "Clerk")
    calls = [scene.call(clerk, "stamp", by=driver).arrives() for _ in range(3)]
    clerk.runs(*calls[:2])
    queued = calls[2]
    in_waits(scene.snapshot(), body)


def test_copy_export_and_open() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("j", "y")
        view: Any = app.screen

        assert "waits in ray.get for Bob.go" in app.clipboard
        assert f"Task {scene.actors_[0].running[0].task.task_id}" in app.clipboard
        assert view.to_open() == ("/srv/app/app.py", scene.actors_[0].threads[0].line)
        assert view.to_export().splitlines()[1].startswith("┌▶ 1  Ann.go")

    scene = Cycle()
    in_waits(scene.sampled_twice(), body)


def test_the_filter_finds_a_pid_and_keeps_the_ancestors() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("slash", *str(scene.behind[1].worker.pid))
        found = shown(app)
        await pilot.press("escape")

        assert found[0].startswith("↺")
        assert any("train" in text for text in found)
        assert not any(text.startswith("3  Cid.go") for text in found)
        assert len(shown(app)) > 4

    scene = Cycle()
    in_waits(scene.sampled_twice(), body)


def test_cursor_and_folds_survive_another_snapshot() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("j", "j", "left")
        before, lines = cursor(app).key, shown(app)
        await pilot.press("r")
        await until(pilot, lambda: len(app.snapshots) == 2)

        assert cursor(app).key == before
        assert shown(app) == lines

    in_waits(Scripted(Cycle().sampled_twice()), body)


def test_thousands_of_waiters_share_a_line_and_need_no_widgets() -> None:
    counts: list[int] = []

    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("right", "right")
        assert f"{size:,} × train" in cursor(app).text.plain
        await pilot.press("right", "G", "right", "G")
        assert len(shown(app)) == size + 4
        assert branch(app).role == "one"
        counts.append(len(app.screen.query("*")))

    for size in (100, 3_000):
        in_waits(crowd(size).snapshot(), body)
    assert counts[0] == counts[1]


def test_waits_outside_findings_are_below_a_line_of_their_own() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        assert shown(app)[-1].startswith("Waits in no finding")
        view: Any = app.screen
        assert app.shown
        inside = next(top for top in view._lines.tree.roots if top.finding is None)

        assert view.reveal(inside.first)
        assert cursor(app).key == inside.key

    in_waits(recorded("tune-hang"), body)


@pytest.mark.parametrize("name", ["serve-idle", "train-barrier", "queue-ray-2.46", "data-actors-hang-ray-2.60"])
def test_recorded_snapshots_unfold_line_by_line(name: str) -> None:
    async def run() -> None:
        async with running(Files(name, [recorded(name)]), (80, 24)) as (app, pilot):
            await pilot.press("2")
            await until(pilot, lambda: app.current_mode == "waits")
            for _ in range(12):
                outline(app).action_unfold()
                outline(app).action_move(1)
            await pilot.pause()
            assert screen_text(app)

    asyncio.run(run())


def test_a_snapshot_without_any_sample_is_empty() -> None:
    async def run() -> None:
        nothing = replace(Cycle().sampled_twice(), samples=())
        async with running(Files("f", [nothing])) as (app, pilot):
            await pilot.press("2")
            await until(pilot, lambda: "No waits." in screen_text(app))

    asyncio.run(run())


def test_process_names_are_no_markup_and_move_no_cursor() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("j")
        text = screen_text(app) + detail(app)

        assert "\x1b" not in text
        assert "[bold]x" in text
        assert "\\x1b" in text

    scene = Scene()
    driver, evil = scene.driver(), scene.actor("[bold]x\x1b[2J")
    call = scene.call(evil, "go", by=driver)
    evil.runs(call)
    driver.gets(call)
    in_waits(scene.snapshot(), body)


@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("j", "j")
        await require_pinned(app, pilot, "waits")

    in_waits(Files("ring.json", [Cycle(30).sampled_twice()]), body)

"""The Stacks view: both trees, the page, the way from wait to wait and back, marks, filter and jumps."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from benchmarks.made_up_snapshots import with_many_stacks
from dstack.model.snapshot import Snapshot
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files
from dstack.tui.views.stacks_trees import MergedTree
from dstack.tui.views.stacks_view import StacksView
from dstack.tui.widgets.outline import Outline
from tests.tui.pilots import running, screen_text, search, until
from tests.tui.sources import Scripted, recorded
from tests.unit.analysis.graph.test_child_processes import LOCK, PID, twice, waiting, with_child
from tests.unit.scenes import Scene, SceneProcess

Body = Callable[[DstackApp, Pilot[Any], StacksView], Awaitable[None]]
SMALL = (80, 24)


def in_stacks(snapshot: Snapshot, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Run the body in the Stacks view of a snapshot."""

    async def whole() -> None:
        async with running(Files("hang.json", [snapshot]), size=size) as (app, pilot):
            app.switch_mode("stacks")
            await until(pilot, lambda: isinstance(app.screen, StacksView) and app.screen.shown)
            assert isinstance(app.screen, StacksView)
            await body(app, pilot, app.screen)

    asyncio.run(whole())


def tree(view: StacksView) -> Outline:
    return view.query_one("#all", Outline)


def page(view: StacksView) -> Outline:
    return view.query_one("#page", Outline)


def texts(outline: Outline) -> list[str]:
    return [line.text.plain for _, line in outline.visible_lines]


def merged(view: StacksView) -> MergedTree:
    assert view.merged
    return view.merged


def at(outline: Outline) -> str:
    """The text of the line under an outline's cursor."""
    assert outline.cursor_line
    return outline.cursor_line.text.plain


def chain() -> tuple[Scene, list[SceneProcess]]:
    """A driver that waits for a task on another node, which waits for a task on a third."""
    scene = Scene()
    procs = [scene.driver(scene.node(CPU=1.0))]
    for name in ("outer", "inner"):
        call, worker = scene.run(name, by=procs[-1], node=scene.node(CPU=1.0))
        procs[-1].gets(call)
        procs.append(worker)
    return scene, procs


def team(size: int = 10) -> Scene:
    """Trainers in a barrier, one that still loads, one that is idle, and one that was not read."""
    scene = Scene()
    driver = scene.driver()
    trainers = [scene.actor("Trainer", name=f"rank{number}") for number in range(size)]
    for number, trainer in enumerate(trainers):
        trainer.runs(scene.call(trainer, "step", by=driver))
        trainer.threads[0].line = 20 if number else 10
        if number:
            trainer.is_in("threading.Barrier.wait")
    driver.gets(*driver.submitted)
    scene.actor("Trainer", name="idle").idles()
    scene.actor("Trainer", name="hidden").is_unreadable = True
    return scene


async def press(pilot: Pilot[Any], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


def test_processes_are_below_nodes_and_threads_below_processes() -> None:
    scene, procs = chain()

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        lines = [(depth, line.text.plain) for depth, line in tree(view).visible_lines]
        assert lines[:3] == [
            (0, f"node {scene.nodes[0].ip}  1 process  1 waiting"),
            (1, f"driver train.py  pid {procs[0].worker.pid}  1 waiting"),
            (2, "waits  → outer  ray.get"),
        ]
        assert (2, "runs  inner  app.py:80") in lines

    in_stacks(scene.snapshot(), body)


def test_the_page_shows_the_selected_stack_with_its_source() -> None:
    scene, _ = chain()

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        lines = texts(page(view))
        assert "waits in ray.get for outer" in " ".join(line.strip() for line in lines)
        assert any(line.startswith("›") and "return run_of(me)" in line for line in lines)
        assert at(page(view)).endswith("waits, Enter follows"), "the page's cursor is on the frame that waits"

    in_stacks(scene.snapshot(), body)


def test_the_first_visit_shows_a_stack_of_the_first_finding() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        assert view.analysed
        members = view.analysed.diagnosis.findings[0].members
        assert view.trail[-1].vertex in members
        line = tree(view).cursor_line
        assert line
        assert line.key == str(view.trail[-1].vertex)
        assert texts(page(view))

    scene, loader = waiting()
    in_stacks(with_child(twice(scene), loader, call=LOCK), body)


def test_enter_follows_waits_across_nodes_and_backspace_returns() -> None:
    scene, procs = chain()

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "enter")
        assert page(view).has_focus
        await press(pilot, "enter", "enter")
        assert [one.vertex for one in view.trail] == [proc.key for proc in procs]
        assert "inner" in texts(page(view))[0]
        assert at(tree(view)) == "runs  inner  app.py:80", "the tree's cursor follows"
        assert "driver train.py › outer › inner" in screen_text(app)

        await press(pilot, "backspace", "backspace")
        assert [one.vertex for one in view.trail] == [procs[0].key]
        assert at(tree(view)).startswith("waits  → outer")

        await press(pilot, "backspace")
        assert tree(view).has_focus

    in_stacks(scene.snapshot(), body)


def test_target_stacks_unfold_below_the_wait() -> None:
    scene, _ = chain()

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "enter", "j")
        assert at(page(view)).startswith("→ outer")
        await press(pilot, "right")
        names = [(depth, line.text.plain.split("  ")[0]) for depth, line in page(view).visible_lines]
        assert names[-4:] == [(2, "outer"), (3, "›"), (2, "ray.get"), (3, "→ inner")]

    in_stacks(scene.snapshot(), body)


def test_one_of_several_targets_is_chosen() -> None:
    scene = Scene()
    driver = scene.driver()
    left, right = (scene.run(name, by=driver) for name in ("left", "right"))
    driver.gets(left[0], right[0])

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "enter", "enter")
        assert at(page(view)).startswith("→ left")
        await press(pilot, "j", "enter")
        assert view.trail[-1].vertex == right[1].key

    in_stacks(scene.snapshot(), body)


def test_a_pending_call_has_a_page_that_leads_to_its_blocker() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    ahead, queued = (scene.call(clerk, "stamp", by=driver) for _ in range(2))
    clerk.runs(ahead)
    driver.gets(queued)

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "enter", "enter")
        assert "is queued behind Clerk.stamp" in " ".join(line.strip() for line in texts(page(view)))
        await press(pilot, "G", "enter")
        assert view.trail[-1].vertex == clerk.key

    in_stacks(scene.snapshot(), body)


def test_locals_are_below_their_frame_and_hold_no_escape_codes() -> None:
    scene, _ = chain()
    snapshot = scene.snapshot()
    sample = snapshot.samples[0]
    worker = sample.workers[0]
    assert worker.process
    thread = dataclasses.replace(worker.process.threads[0], locals={"1": {"ref": "\x1b[31mred [bold]"}})
    process = dataclasses.replace(worker.process, threads=(thread,))
    workers = (replace(worker, process=process), *sample.workers[1:])
    snapshot = replace(snapshot, samples=(replace(sample, workers=workers),))

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        assert "ref = \\x1b[31mred [bold]" in texts(page(view))
        assert "1 local variable" in texts(page(view))

    in_stacks(snapshot, body)


def test_m_merges_all_stacks_into_one_tree_and_back() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m")
        lines = texts(tree(view))
        assert lines == [
            "9 × step  9 waiting  /srv/app/app.py:20",
            "9 × threading.Barrier.wait  9 waiting  /usr/lib/python3/threading.py:330",
            "1 × run  1 waiting  /srv/app/app.py:10",
            "1 × ray.get  1 waiting  ray/_private/worker.py:900",
            "1 × step  ! 1 outlier  1 running  /srv/app/app.py:10",
        ]
        await press(pilot, "m")
        assert texts(tree(view))[0].startswith("node ")

    in_stacks(team().snapshot(), body)


def test_b_groups_by_class_node_and_job() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m")
        firsts = []
        for _ in range(3):
            await press(pilot, "b")
            firsts.append(texts(tree(view))[0].split("  ")[0])
        assert firsts == ["10 × actor Trainer", "11 × node 10.0.0.2", "11 × job 01000000 train.py"]

    in_stacks(team().snapshot(), body)


def test_the_page_of_a_branch_lists_executions_outliers_and_absent_workers() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m")
        await press(pilot, "g")
        lines = texts(page(view))
        assert "9 of 11 here: 9 waiting" in lines
        assert "9 × actor Trainer" in lines
        assert "Not here: 3 of 12 actor Trainer: 1 elsewhere, 1 not read and 1 idle" in lines
        await press(pilot, "n")
        assert "1 outlier" in texts(page(view))

    in_stacks(team().snapshot(), body)


def test_n_goes_to_an_outlier_and_enter_to_its_stack() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m", "n")
        assert "! 1 outlier" in at(tree(view))
        await press(pilot, "enter")
        assert page(view).has_focus
        while not at(page(view)).startswith("runs  Trainer.step"):
            before = at(page(view))
            await press(pilot, "j")
            assert at(page(view)) != before, "the executions of the branch are listed"
        await press(pilot, "enter")
        assert any('"rank0"' in line for line in texts(page(view)))
        await press(pilot, "backspace")
        assert view.trail[-1].path

    in_stacks(team().snapshot(), body)


def test_only_marked_workers_are_merged() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "j", "t", "m")
        assert merged(view).root.count == 1
        assert "1 stack of 1 marked worker" in screen_text(app)
        await press(pilot, "m", "g", "t")
        assert "◆ node" in texts(tree(view))[0]
        await press(pilot, "t")
        assert not view.marked

    in_stacks(team().snapshot(), body)


def test_w_shows_whole_stacks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m")
        before = texts(tree(view))
        await press(pilot, "W")
        assert not any("main_loop" in line for line in before)
        assert any("main_loop" in line for line in texts(tree(view)))

    in_stacks(recorded("tune-hang"), body)


def test_the_filter_finds_processes_and_merged_stacks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await search(pilot, "rank3")
        assert [text for text in texts(tree(view)) if "actor" in text] == [
            text for text in texts(tree(view)) if "rank3" in text
        ]
        assert "1 found" in str(view.query_one("#filter").border_subtitle)
        await press(pilot, "escape")
        await search(pilot, "barrier")
        assert len([text for text in texts(tree(view)) if "rank" in text]) == 9, "words in stacks are found, too"
        await press(pilot, "escape", "m")
        await search(pilot, "barrier")
        assert merged(view).root.count == 9
        await press(pilot, "escape")
        assert merged(view).root.count == 11

    in_stacks(team().snapshot(), body)


def test_mode_cursor_and_page_survive_another_snapshot() -> None:
    async def body() -> None:
        snapshot = team().snapshot()
        async with running(Scripted(snapshot)) as (app, pilot):
            app.switch_mode("stacks")
            await until(pilot, lambda: isinstance(app.screen, StacksView) and app.screen.shown)
            view = app.screen
            assert isinstance(view, StacksView)
            await press(pilot, "m", "j")
            before = at(tree(view)), texts(page(view))
            await press(pilot, "r")
            await until(pilot, lambda: view.shown is app.snapshots[-1] and len(app.snapshots) == 2)

            assert view.is_merged
            assert (at(tree(view)), texts(page(view))) == before

    asyncio.run(body())


def test_the_trail_survives_another_snapshot() -> None:
    scene, procs = chain()

    async def body() -> None:
        async with running(Scripted(scene.snapshot())) as (app, pilot):
            app.switch_mode("stacks")
            await until(pilot, lambda: isinstance(app.screen, StacksView) and app.screen.shown)
            view = app.screen
            assert isinstance(view, StacksView)
            await press(pilot, "enter", "enter", "k", "r")
            before = at(page(view))
            await until(pilot, lambda: view.shown is app.snapshots[-1] and len(app.snapshots) == 2)
            await pilot.pause()

            assert at(page(view)) == before
            await press(pilot, "backspace")
            assert view.trail[-1].vertex == procs[0].key

    asyncio.run(body())


def test_a_jump_clears_the_filter() -> None:
    scene, procs = chain()

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await search(pilot, "driver")
        app.go_to("stacks", procs[2].key)
        await until(pilot, lambda: view.trail and view.trail[-1].vertex == procs[2].key)
        await pilot.pause()
        assert at(tree(view)) == "runs  inner  app.py:80"
        assert view.filter_text == ""

    in_stacks(scene.snapshot(), body)


def test_markup_in_names_is_shown_verbatim() -> None:
    scene = Scene()
    scene.actor("Clerk", name="[bold red]x[/]").threads[0].gets("0" * 48 + "01000000")

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "G")
        assert screen_text(app).count("[bold red]x[/]") >= 2

    in_stacks(scene.snapshot(), body)


def test_another_view_goes_to_a_stack() -> None:
    scene, procs = chain()

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m")
        app.switch_mode("verdict")
        await pilot.pause()
        app.go_to("stacks", procs[2].key)
        await until(pilot, lambda: view.trail and view.trail[-1].vertex == procs[2].key)
        assert not view.is_merged
        assert at(tree(view)) == "runs  inner  app.py:80"

    in_stacks(scene.snapshot(), body)


def test_copy_export_and_open() -> None:
    scene, _ = chain()

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "y")
        assert "waits in ray.get for outer" in app.clipboard
        exported = view.to_export()
        assert exported
        assert "node 10.0.0.1" in exported
        await press(pilot, "tab", "g")
        for _ in page(view).as_text().splitlines():
            if (place := view.to_open()) is not None and place[0] == "/srv/app/app.py":
                break
            await press(pilot, "j")
        else:
            pytest.fail("the page has no frame of the application")

    in_stacks(scene.snapshot(), body)


def test_the_view_fits_into_80_columns_and_24_rows() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        assert view.has_class("narrow")
        text = screen_text(app)
        assert "driver train.py" in text
        assert "waits in ray.get" in text
        assert all(len(line) <= SMALL[0] for line in text.splitlines())

    in_stacks(team().snapshot(), body, SMALL)


def test_lines_of_thousands_of_processes_are_made_on_demand() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        assert len(texts(tree(view))) < 2_000
        await press(pilot, "G", "right", "j", "enter")
        assert page(view).has_focus or texts(page(view))
        await press(pilot, "escape", "m", "b")
        assert merged(view).root.count == 3_000
        assert len(texts(tree(view))) < 2_000

    in_stacks(with_many_stacks(3_000), body)


def test_an_empty_snapshot_is_shown_as_such() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        assert "No stacks were read." in screen_text(app)
        await press(pilot, "m", "n", "t", "enter", "tab", "backspace", "y")

    in_stacks(Snapshot(dstack_version="0", taken_at=0.0, address="", ray_version="2.60.0"), body)


# Child processes


def test_a_child_process_is_below_its_worker_and_the_wait_leads_to_its_stack() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        lines = texts(tree(view))
        below = lines.index(f"child process python  pid {PID}")
        assert lines[below + 1] == "waits  main thread  threading.Lock.acquire"

        view.query_one("#all", Outline).reveal([f"child/{loader.worker_id}/{PID}"])
        await pilot.press("down")
        await until(pilot, lambda: "main thread of child process" in screen_text(app))
        assert "loader.py:7" in screen_text(app)

    scene, loader = waiting()
    in_stacks(with_child(twice(scene), loader, call=LOCK), body)

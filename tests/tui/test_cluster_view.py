"""The Cluster view: nodes, workers with their activity, and pending work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dstack.model.snapshot import Bundle, Snapshot
from dstack.model.vertex_keys import Key, ThreadKey
from dstack.observed.node import Disk, Failure, Gpu, HostFigures
from dstack.observed.processes import GpuUse
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files, Source
from dstack.tui.views.cluster_view import ClusterView
from dstack.tui.widgets.outline import Detail, Outline
from tests.tui.pilots import running, screen_text, search, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import Scripted, recorded
from tests.unit.analysis.views.test_object_memory import full_store
from tests.unit.analysis.views.test_wait_tree import crowd
from tests.unit.scenes import TAKEN_AT, Scene

MIB, GIB = 2**20, 2**30
Body = Callable[[DstackApp, Pilot[Any], ClusterView], Awaitable[None]]


class Shop(Scene):
    """Two nodes: an actor that waits, its queue, a placement group, idle and unread workers, and pending tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.head = replace(
            self.node(free={"CPU": 0.0}, CPU=2.0, GPU=1.0),
            is_head=True,
            hostname="front",
            host=HostFigures(
                cpu_count=8,
                load_1m=1.5,
                memory_total_bytes=16 * GIB,
                memory_available_bytes=4 * GIB,
                disks=(
                    Disk(use="session", path="/tmp/ray/session_1", total_bytes=100 * GIB, free_bytes=30 * GIB),
                    Disk(use="spilled objects", path="/tmp/ray/session_1", total_bytes=100 * GIB, free_bytes=30 * GIB),
                    Disk(use="object store", path="/dev/shm", total_bytes=8 * GIB, free_bytes=5 * GIB),
                ),
                gpus=(
                    Gpu(
                        index=0,
                        name="A100",
                        memory_total_bytes=80 * GIB,
                        memory_used_bytes=60 * GIB,
                        utilisation_percent=93.0,
                    ),
                ),
            ),
        )
        self.nodes[0] = self.head
        self.back = self.node(CPU=4.0)
        self.driver_ = self.driver(self.head)
        self.clerk = self.actor("Clerk", self.head)
        self.work, self.worker_ = self.run("work", by=self.driver_, node=self.back, CPU=1.0)
        calls = [self.call(self.clerk, "stamp", by=self.driver_) for _ in range(4)]
        self.clerk.runs(calls[0]).gets(self.work)
        self.driver_.gets(*calls)
        self.idle = self.worker(self.back).idles()
        self.silent = self.worker(self.back)
        self.silent.is_unreachable = self.silent.is_unreadable = True
        self.failures.append(
            Failure(stage="process", reason="no such process", node_id=self.back.node_id, pid=self.silent.worker.pid)
        )
        at = {"started_at": TAKEN_AT - 7_300.0}
        self.driver_.known = {"rss_bytes": 210 * MIB, "num_threads": 34, "cpu_percent": 3.25, "cpu_over_s": 0.2, **at}
        uses = (GpuUse(index=0, memory_bytes=40 * GIB),)
        self.clerk.known = {"rss_bytes": 1_500 * MIB, "num_threads": 58, "cpu_percent": 99.9, "cpu_over_s": 1.5, **at}
        self.clerk.known |= {"gpus": uses}
        self.worker_.known = {"rss_bytes": 95 * MIB, "num_threads": 20, "cpu_s": 40.0, "started_at": TAKEN_AT - 400.0}
        self.clerk.held = {"GPU": 1.0}
        bundle = Bundle(resources={"CPU": 1.0}, node_id=self.back.node_id)
        self.group("CREATED", bundle, name="trainers")
        for _ in range(12):
            self.task("huge", by=self.driver_, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 64.0})


def in_cluster(source: Source | Snapshot, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Run a test in this view."""

    async def run() -> None:
        given = Files("f", [source]) if isinstance(source, Snapshot) else source
        async with running(given, size) as (app, pilot):
            app.switch_mode("cluster")
            await until(pilot, lambda: isinstance(app.screen, ClusterView) and app.screen.shown)
            assert isinstance(app.screen, ClusterView)
            await body(app, pilot, app.screen)

    asyncio.run(run())


def shown(view: ClusterView) -> list[str]:
    return [line.text.plain for _, line in view.query_one(Outline).visible_lines]


def line_with(view: ClusterView, words: str) -> str:
    (found,) = (text for text in shown(view) if words in text)
    return found


async def go_to_line(view: ClusterView, pilot: Pilot[Any], words: str) -> None:
    (line,) = (line for _, line in view.query_one(Outline).visible_lines if words in line.text.plain)
    view.query_one(Outline).reveal([line.key])
    await pilot.pause()


def detail(view: ClusterView) -> str:
    return view.query_one(Detail).text.plain


def test_nodes_show_their_figures_and_workers_their_activity() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        head = line_with(view, "(head)")
        assert "front" in head
        assert "CPU 2 of 2 used, 0 free  GPU 1 of 1 used, 0 free  … waits: 2" in head
        assert "host: 8 CPUs · load 1.5 · memory 12.0 of 16.0 GiB used" in shown(view)
        assert "3 queued calls" in line_with(view, "actor Clerk 00000000  pid")
        assert "Clerk.stamp waits in ray.get for work  /srv/app/app.py:" in line_with(view, "actor Clerk 00000000  pid")
        assert line_with(view, "work is running").startswith("▶ runs")
        assert line_with(view, "○ idle     worker")
        assert "? not read worker" in line_with(view, "no such process")
        assert "placement group trainers: bundle 0 of 1  CPU 1 of 1 used, 0 free" in line_with(view, "▣")
        assert "12 × huge asks for 64 CPU, but the most a node has is 4 CPU" in line_with(view, "✖ stuck    task")

    in_cluster(Shop().snapshot(), body)


def test_the_queue_length_is_a_lower_bound_if_a_worker_was_not_read() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        assert "at least 3 queued calls" in line_with(view, "actor Clerk 00000000  pid")

    in_cluster(Shop().snapshot(), body)


def test_keys_fold_lines_and_go_to_other_views(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[tuple[str, Key]] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        monkeypatch.setattr(app, "go_to", lambda mode, vertex: visited.append((mode, vertex)))
        before = shown(view)
        await pilot.press("g", "enter")
        assert len(shown(view)) < len(before)
        await pilot.press("enter")
        assert shown(view) == before
        await go_to_line(view, pilot, "actor Clerk 00000000  pid")
        await pilot.press("x", "w", "enter")
        await go_to_line(view, pilot, "12 × huge")
        assert not view.check_action("stack", ())
        await pilot.press("enter")

        key = scene.clerk.key
        assert visited[:3] == [("stacks", key), ("waits", key), ("stacks", key)]
        assert visited[3][0] == "waits"

    scene = Shop()
    in_cluster(scene.snapshot(), body)


def test_a_worker_has_details_which_y_copies_and_a_line_which_o_opens() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await go_to_line(view, pilot, "actor Clerk 00000000  pid")
        await pilot.press("y")

        assert "GiB resident" in detail(view)
        assert "Clerk.stamp waits in ray.get for work" in app.clipboard
        assert view.to_open() == ("/srv/app/app.py", scene.clerk.threads[0].line)
        assert "Pending: 12" in (view.to_export() or "")

    scene = Shop()
    in_cluster(scene.snapshot(), body)


def test_a_vertex_is_found_in_a_group_of_similar_workers() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        last = scene.procs[-1]
        assert view.reveal(last.key)
        line = view.query_one(Outline).cursor_line
        assert line
        assert line.key == last.worker_id
        assert not view.reveal(ThreadKey("none", 1))

    scene = crowd(30)
    in_cluster(scene.snapshot(), body)


def test_the_cursor_survives_a_filter_and_another_snapshot() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await search(pilot, "clerk")
        assert all("node" in text or "Clerk" in text or "Pending" in text for text in shown(view)[:2])
        await pilot.press("escape")
        await go_to_line(view, pilot, "actor Clerk 00000000  pid")
        await pilot.press("r")
        await until(pilot, lambda: view.shown is app.snapshots[-1] and len(app.snapshots) == 2)
        line = view.query_one(Outline).cursor_line
        assert line
        assert line.key == scene.clerk.worker_id

    scene = Shop()
    in_cluster(Scripted(scene.snapshot()), body)


def test_thousands_of_workers_share_a_line_and_need_no_widgets() -> None:
    counts: list[int] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await go_to_line(view, pilot, f"{size:,} × ")
        await pilot.press("right", "G")
        assert len(shown(view)) > size
        counts.append(len(view.query("*")))

    for size in (100, 3_000):
        in_cluster(crowd(size).snapshot(), body)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ["serve-deadlock", "train-barrier", "queue-ray-2.46", "data-actors-hang-ray-2.60"])
def test_recorded_clusters_unfold_completely(name: str) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        outline = view.query_one(Outline)
        for _ in range(30):
            outline.action_unfold()
            outline.action_move(1)
        await pilot.pause()
        assert view.analysed
        pids = {str(worker.pid) for worker in view.analysed.snapshot.workers}
        assert all(any(pid in text for text in shown(view)) for pid in pids)

    in_cluster(recorded(name), body, (80, 24))


def test_a_snapshot_without_any_sample_shows_its_nodes() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        assert "node 10.0.0.1 (head)" in screen_text(app)
        assert "? not read" in screen_text(app)

    in_cluster(replace(Shop().snapshot(), samples=()), body)


@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await go_to_line(view, pilot, "actor Clerk 00000000  pid")
        await require_pinned(app, pilot, "cluster")

    in_cluster(Files("shop.json", [Shop().snapshot()]), body)


def test_the_object_store_has_who_made_and_who_keeps_its_values() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await go_to_line(view, pilot, "Object store  100 MiB in 3 objects")
        assert not any("load: 20 MiB" in text for text in shown(view))
        await pilot.press("enter")

        assert line_with(view, "ray.put in driver train.py: 80 MiB in 1 object")
        assert line_with(view, "load: 20 MiB in 2 objects")
        assert line_with(view, "2 × actor Holder: 160 MiB in 2 objects, 160 MiB of it in use")
        assert line_with(view, "80 MiB used of 200 MiB")

    in_cluster(full_store(), body)

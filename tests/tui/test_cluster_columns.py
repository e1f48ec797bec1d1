"""The columns of the Cluster view, its groups and its order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dstack.analysis.views.worker_groups import Order
from dstack.analysis.views.worker_state import AGE, CPU, FIGURES, MEMORY, QUEUED, THREADS
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files
from dstack.tui.views.cluster_lines import SHOWN_WORKERS, Columns
from dstack.tui.views.cluster_view import ClusterView
from dstack.tui.widgets.outline import Outline
from tests.tui.pilots import screen_text, search, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import Scripted
from tests.tui.test_cluster_view import Shop, detail, go_to_line, in_cluster, line_with, shown
from tests.unit.analysis.views.test_wait_tree import crowd
from tests.unit.scenes import Scene

GIB = 2**30


class LabelledShop(Shop):
    """The shop with zones, stages, and its clerk in a bundle."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes[0] = replace(self.nodes[0], labels={"zone": "a"})
        self.clerk.known["labels"] = {"stage": "till"}
        self.clerk.held = {f"GPU_group_0_{self.groups[0].placement_group_id}": 1.0}


def rows(view: ClusterView) -> list[str]:
    """The rows as they are on the screen."""
    return view.query_one(Outline).as_text().split("\n")


def row_with(view: ClusterView, words: str) -> str:
    (found,) = (row for row in rows(view) if words in row)
    return found


def pids(view: ClusterView) -> list[str]:
    """The pids of the workers that have lines, from the top."""
    lines = [text.split("  pid ")[1] for text in shown(view) if "  pid " in text]
    return [line.split()[0] for line in lines]


def header(app: DstackApp) -> str:
    return screen_text(app).split("\n")[3]


def test_the_most_important_columns_fit_and_always_the_sorted_one() -> None:
    widths = [40, 70, 78, 90, 118, 198]
    assert [Columns.that_fit(FIGURES, width, Order()).figures for width in widths] == [
        (),
        FIGURES[:2],
        FIGURES[:3],
        FIGURES[:4],
        FIGURES,
        FIGURES,
    ]
    assert Columns.that_fit(FIGURES, 40, Order(THREADS)).figures == (THREADS,)
    assert Columns.that_fit(FIGURES, 78, Order(THREADS)).figures == (CPU, MEMORY, THREADS)
    assert Columns.that_fit((QUEUED,), 200, Order()).figures == (QUEUED,)


def test_figures_stand_below_their_titles() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        titles = (view.to_export() or "").split("\n")[0]
        assert titles.split()[-8:] == ["CPU%", "RSS", "GPU", "MEM", "GPU%", "QUEUED", "AGE", "THREADS"]
        assert header(app).rstrip().endswith(titles.strip()[-60:])
        row = row_with(view, "pid 4000")
        for title, figure in (("CPU%", "99.9"), ("RSS", "1.5G"), ("GPU MEM", "40.0G"), ("QUEUED", "3"), ("AGE", "2h")):
            end = titles.index(title) + len(title)
            assert row[:end].endswith(f" {figure}")
        assert row_with(view, "pid 7000").count("~10.0") == 1
        assert row_with(view, "○ idle     worker").split()[-7:] == ["-", "-", "-", "-", "-", "0s", "-"]

    in_cluster(Shop().snapshot(), body)


def test_narrow_screens_show_fewer_columns() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "THREADS" not in screen_text(app))
        assert header(app).split()[-4:] == ["CPU%", "RSS", "GPU", "MEM"]
        assert "99.9" in row_with(view, "pid 4000")
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "THREADS" in screen_text(app))
        assert row_with(view, "pid 4000").endswith("58")

    in_cluster(Shop().snapshot(), body)


def test_a_figure_sorts_single_workers_with_unknown_ones_last() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await pilot.press("greater_than_sign", "greater_than_sign")
        await until(pilot, lambda: "CPU%▼" in header(app))
        assert "sorted by CPU ▼" in header(app)
        assert pids(view) == ["4000", "3000", "7000", "12000", "13000"]
        await pilot.press("v")
        await until(pilot, lambda: "CPU%▲" in header(app))
        assert pids(view) == ["7000", "12000", "13000", "3000", "4000"]
        await pilot.press("less_than_sign")
        await until(pilot, lambda: "sorted by name ▲" in header(app))
        await pilot.press("v")
        await until(pilot, lambda: "sorted by name ▼" in header(app))

    in_cluster(Shop().snapshot(), body)


def test_columns_without_any_figure_are_not_offered() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        assert "RSS" not in header(app)
        seen = []
        for _ in range(4):
            seen.append(view.order.column)
            await pilot.press("greater_than_sign")
        assert seen == ["activity", "name", QUEUED, AGE]
        assert view.order.column == "activity"

    scene = Scene()
    scene.actor()
    in_cluster(scene.snapshot(), body)


def test_workers_are_grouped_by_each_grouping_in_turn() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        assert "by node" in header(app)
        everyone = sorted(pids(view))
        seen = []
        for _ in range(6):
            await pilot.press("b")
            seen.append(view.grouping.words)
            assert sorted(pids(view)) == everyone
        assert seen == [
            "by class",
            "by placement group",
            "by node label zone",
            "by label stage",
            "not grouped",
            "by node",
        ]

    in_cluster(LabelledShop().snapshot(), body)


def test_a_placement_group_shows_its_bundles_with_their_workers() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await pilot.press("b", "b")
        lines = shown(view)
        at = next(n for n, text in enumerate(lines) if text.startswith("placement group trainers"))
        assert "▣ bundle 0 on node 10.0.0.2  CPU 1 of 1 used, 0 free" in lines[at + 1]
        assert "actor Clerk 00000000  stage=till  pid 4000  node 10.0.0.1" in lines[at + 2]
        assert lines[at + 3].startswith("no placement group  4 workers")
        assert "1.5G" in row_with(view, "▣ bundle 0")
        await go_to_line(view, pilot, "placement group trainers")
        assert "CREATED, PACK" in detail(view)
        await go_to_line(view, pilot, "▣ bundle 0")
        assert "bundle 0 on node" in detail(view)

    in_cluster(LabelledShop().snapshot(), body)


def test_the_details_say_how_cpu_was_measured_and_name_disks_and_gpus() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await go_to_line(view, pilot, "pid 4000")
        assert "CPU 99.9 % over 1.5 s · 58 threads · 40.0 GiB of GPU 0, which is 93 % busy" in detail(view)
        await go_to_line(view, pilot, "pid 3000")
        assert "CPU 3.2 % over 200 ms" in detail(view)
        await go_to_line(view, pilot, "pid 7000")
        assert "CPU 10.0 % on average since its start" in detail(view)
        await go_to_line(view, pilot, "(head)")
        assert "session and spilled objects 30.0 of 100.0 GiB free" in detail(view)
        assert "session /tmp/ray/session_1" in detail(view)
        assert "GPU 0 A100: 60.0 of 80.0 GiB, 93 % busy" in detail(view)

    in_cluster(Shop().snapshot(), body)


@pytest.mark.exhaustive
def test_each_vertex_is_found_in_each_grouping_and_order() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        assert view.analysed
        keys = [key for key, one in view.analysed.diagnosis.vertices.items() if one.worker_id]
        for _ in range(6):
            await pilot.press("b")
            for column in ("activity", "name", MEMORY):
                view.order = Order(column)
                view._draw()
                for key in keys:
                    assert view.reveal(key)
                    line = view.query_one(Outline).cursor_line
                    assert line
                    assert line.key == view.analysed.diagnosis.vertices[key].worker_id

    in_cluster(LabelledShop().snapshot(), body)


def test_groups_and_order_survive_another_snapshot_and_a_label_that_is_gone() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await pilot.press("b", "b", "b", "b", "greater_than_sign", "greater_than_sign")
        assert (view.grouping.words, view.order) == ("by label stage", Order(CPU))
        await pilot.press("r")
        await until(pilot, lambda: view.shown is app.snapshots[-1] and len(app.snapshots) == 2)
        assert (view.grouping.words, view.order) == ("by node", Order(CPU))

    in_cluster(Scripted(LabelledShop().snapshot(), Shop().snapshot()), body)


def test_the_palette_has_each_grouping_and_each_column() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        commands = {command.title: command.callback for command in view.choices()}
        assert {"Group by class", "Do not group", "Sort by memory", "Sort by GPU utilisation"} <= commands.keys()
        commands["Do not group"]()
        commands["Sort by memory"]()
        assert pids(view) == ["4000", "3000", "7000", "12000", "13000"]
        assert line_with(view, "all workers").startswith("all workers  5 workers")

    in_cluster(Shop().snapshot(), body)


def test_the_filter_and_the_export_know_groups_and_columns() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await pilot.press("b")
        exported = (view.to_export() or "").split("\n")
        assert exported[0].startswith(" by class, sorted by activity ▲")
        assert exported[0].endswith("THREADS")
        assert any("1.5G" in line for line in exported)
        await search(pilot, "clerk")
        assert [text.split("  ")[0] for text in shown(view)][:2] == ["actor Clerk", "… waits"]

    in_cluster(Shop().snapshot(), body)


@pytest.mark.exhaustive
def test_the_largest_of_many_workers_have_lines_and_the_others_are_folded() -> None:
    counts: list[int] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        view._sort_by(MEMORY)
        sizes = {str(proc.worker.pid): proc.known["rss_bytes"] for proc in scene.procs}
        listed = [sizes[pid] for pid in pids(view)]
        assert len(listed) == SHOWN_WORKERS
        assert listed == sorted(sizes.values(), reverse=True)[:SHOWN_WORKERS]
        assert line_with(view, "201 to 1,200 in this order").endswith("1,000 workers")
        last = min(scene.procs[1:], key=lambda proc: proc.known["rss_bytes"])
        assert view.reveal(last.key)
        line = view.query_one(Outline).cursor_line
        assert line
        assert line.key == last.worker_id
        counts.append(len(view.query("Outline, Outline *")))

    for size in (1_500, 3_000):
        chance = random.Random(1)
        scene = crowd(size)
        for proc in scene.procs:
            proc.known = {"rss_bytes": chance.randrange(1, 2**40), "num_threads": 1}
        in_cluster(scene.snapshot(), body)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("keys", "name"), [(["b", "b"], "groups"), (["greater_than_sign"] * 3, "memory")], ids=["groups", "memory"]
)
@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture(keys: list[str], name: str) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: ClusterView) -> None:
        await pilot.press(*keys)
        await require_pinned(app, pilot, f"cluster-{name}")

    in_cluster(Files("shop.json", [LabelledShop().snapshot()]), body)

from __future__ import annotations

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import Inventory
from dstack.model import Snapshot
from dstack.report.page.report_data import ReportData
from dstack.report.page.rows import worker_rows as module
from dstack.report.page.rows.worker_rows import WorkerTable, worker_table
from dstack.snapshot_file import load
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.analysis.views.test_wait_tree import crowd
from tests.unit.scenes import TAKEN_AT, Scene
from tests.unit.scenes.ranks import training


def table_of(snapshot: Snapshot) -> WorkerTable:
    data = ReportData(AnalysedSnapshot.of(snapshot))
    inventory = Inventory(data.analysed.merged_index, data.analysed.diagnosis)
    summaries = inventory.summaries(snapshot.workers)
    return worker_table(inventory, summaries, data.stack_ids, data.analysed.stacks.rank_sets)


@pytest.mark.parametrize("name", ALL)
def test_every_worker_of_a_recorded_cluster_has_a_row(name: str) -> None:
    snapshot = load(RECORDED_CLUSTERS / name)

    assert sorted(row.pid for row in table_of(snapshot).rows) == sorted(worker.pid for worker in snapshot.workers)


def test_a_worker_has_its_activity_its_line_and_the_link_to_its_stack() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver, CPU=1.0)
    worker.held = {"CPU": 1.0}
    driver.gets(call)
    data = ReportData(AnalysedSnapshot.of(scene.snapshot()))
    row = next(row for row in table_of(scene.snapshot()).rows if row.pid == driver.worker.pid)

    assert row.activity == "waiting"
    assert row.does == "waits in ray.get for work"
    assert row.place == "/srv/app/app.py:10"
    assert row.stack == data.stack_ids[driver.key]
    held = next(row for row in table_of(scene.snapshot()).rows if row.pid == worker.worker.pid)
    assert held.notes == ("holds 1 CPU",)


def test_figures_have_numbers_to_sort_by_unless_they_are_unknown() -> None:
    scene = Scene()
    scene.driver().known = {"rss_bytes": 2**30, "num_threads": 3, "started_at": TAKEN_AT - 60.0}
    scene.worker().idles()
    table = table_of(scene.snapshot())

    assert "memory" in table.figures
    cells = [row.figures[table.figures.index("memory")] for row in table.rows]
    assert [(cell.text, cell.value) for cell in cells] == [("1.0G", 2**30), ("-", None)]


def test_of_very_many_workers_similar_ones_share_a_row_and_the_last_rows_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    table = table_of(crowd(30).snapshot())

    assert table.is_grouped
    assert len(table.rows) == 2
    assert sum(row.count for row in table.rows) + table.left_out == 32
    assert max(row.count for row in table.rows) == 30


def test_a_row_of_several_ranks_names_them_and_has_all_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 4)
    scene, _ = training()
    rows = [row for row in table_of(scene.snapshot()).rows if row.count > 1]

    assert [row.ranks for row in rows] == ["ranks 0-2, 4-7"]
    assert {"rank:0", "rank:7"} <= set(rows[0].terms)

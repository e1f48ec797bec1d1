from __future__ import annotations

from collections.abc import Iterable

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallGraph
from dstack.files.snapshot_file import load
from dstack.model.profile import Endpoint, Traffic
from dstack.model.snapshot import Snapshot
from dstack.report.graph_svg import Drawing
from dstack.report.page import calls_section as module
from dstack.report.page.calls_section import call_rows, drawing, section
from dstack.report.page.section import ReportData
from tests.paths import RECORDED_CALLS
from tests.unit.scenes import Scene
from tests.unit.support.html_elements import Element, elements_of


def drawing_of(snapshot: Snapshot, traffic: Iterable[Traffic] = ()) -> Drawing:
    graph = CallGraph.of(AnalysedSnapshot.of(snapshot), traffic=traffic)
    return drawing(graph, call_rows(graph).anchors)


def section_of(snapshot: Snapshot) -> Element:
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))
    assert found is not None
    return elements_of(found.body)


def test_nothing_is_called() -> None:
    scene = Scene()
    scene.driver()

    assert section(ReportData(AnalysedSnapshot.of(scene.snapshot()))) is None


def test_calls_and_waits_are_drawn_with_their_figures() -> None:
    found = drawing_of(load(RECORDED_CALLS))

    titles = {box.title for box in found.boxes}
    assert {"driver pipeline.py", "✖ Rollout (3 actors)", "✖ Trainer", "Store", "prepare"} <= titles
    assert "61 calls, 44/s" in titles
    (label,) = (box.tip for box in found.boxes if box.tip.startswith("driver pipeline.py calls Store"))
    assert "  size: 60 calls" in label.split("\n")
    assert sum("waits: 1 × " in box.title for box in found.boxes) == 3
    assert [link.style for link in found.links].count(module.LINKS["waits in a deadlock"]) == 4
    assert 2 * sum(box.style == module.LABEL for box in found.boxes) == len(found.links)
    assert "waits in a deadlock" in dict(found.link_names)


def test_inferred_waits_are_dotted_and_in_the_legend() -> None:
    scene = Scene()
    driver = scene.driver()
    first, _ = scene.run("step_a", by=driver)
    second = scene.task("step_b", by=driver, state="PENDING_ARGS_AVAIL")
    scene.task("step_c", by=driver, state="PENDING_ARGS_AVAIL")
    driver.passes(first, second)
    found = drawing_of(scene.snapshot())

    assert "? may wait: 1 × arguments" in [box.title for box in found.boxes]
    assert "may wait" in dict(found.link_names)
    assert len({link.style.dashes for link in found.links}) == 3  # calls, a certain wait, inferred waits


def test_data_that_passed_is_drawn() -> None:
    snapshot = load(RECORDED_CALLS)
    job_id = snapshot.jobs[0].job_id
    passed = Traffic(Endpoint("driver", job_id=job_id), Endpoint("actor", "Store", "put", job_id), 3, 3 << 20)
    found = drawing_of(snapshot, [passed])

    (label,) = (box for box in found.boxes if "3.0 MiB" in box.title)
    assert label.tip.endswith("from driver pipeline.py to Store")
    assert "data that passed" in dict(found.link_names)


def test_the_table_has_callers_edges_and_methods_in_the_order_of_the_text() -> None:
    page = section_of(load(RECORDED_CALLS))
    (table,) = page.all("table", class_="calls")
    rows = [row.text for row in next(table.all("tbody")).all("tr")]

    assert next(table.all("thead")).text == "calls /s pending running failed mean max alive"
    assert rows[0] == "driver pipeline.py 2.9 MiB alive by ray.put"
    assert rows[1].startswith("→ Store 61 44! ")
    assert rows[2].startswith(".size 60 44! ")
    driver = next(
        box.goes_to or "" for box in drawing_of(load(RECORDED_CALLS)).boxes if box.title == "driver pipeline.py"
    )
    assert [row.text for row in table.all("tr", id=driver)] == [rows[0]]


def test_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EDGES", 2)
    monkeypatch.setattr(module, "MAX_WAITS", 1)
    monkeypatch.setattr(module, "MAX_CALLERS", 1)
    page = section_of(load(RECORDED_CALLS)).text

    assert "Not drawn: " in page
    assert "more callers are left out." in page
    assert sum("calls" in box.title for box in drawing_of(load(RECORDED_CALLS)).boxes) == 2

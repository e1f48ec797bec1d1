from __future__ import annotations

from functools import partial

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.page import calls_section as module
from dstack.report.page.calls_section import section
from dstack.report.page.section import ReportData
from tests.paths import RECORDED_CALLS
from tests.unit.scenes import Scene
from tests.unit.support.graph_sections import graph_section
from tests.unit.support.html_elements import elements_of

section_of = partial(graph_section, section, "calls-chart")


def test_nothing_is_called() -> None:
    scene = Scene()
    scene.driver()

    assert section(ReportData(AnalysedSnapshot.of(scene.snapshot()))) is None


def test_calls_and_waits_are_drawn_with_their_figures() -> None:
    found, boxes, lines = section_of(load(RECORDED_CALLS))

    nodes = {title for title, goes_to in zip(boxes["title"], boxes["goes_to"], strict=True)}
    assert {"driver pipeline.py", "✖ Rollout (3 actors)", "✖ Trainer", "Store", "prepare"} <= nodes
    assert "61 calls, 44/s" in nodes
    (label,) = (tip for tip in boxes["tip"] if tip.startswith("driver pipeline.py calls Store"))
    assert "  size: 60 calls" in label.split("\n")
    waits = [title for title in boxes["title"] if "waits: 1 × " in title]
    assert len(waits) == 3
    dashes = list(zip(lines["dash"], lines["width"], strict=True))
    assert dashes.count(("9 5", 3.2)) == 4
    assert len(boxes["x"]) * 2 - 2 * len([one for one in boxes["fill"] if one != module.LABEL.fill]) == len(lines["xs"])
    assert "waits in a deadlock" in next(elements_of(found.body).all("p", class_="legend")).text


def test_inferred_waits_are_dotted_and_in_the_legend() -> None:
    scene = Scene()
    driver = scene.driver()
    first, _ = scene.run("step_a", by=driver)
    second = scene.task("step_b", by=driver, state="PENDING_ARGS_AVAIL")
    scene.task("step_c", by=driver, state="PENDING_ARGS_AVAIL")
    driver.passes(first, second)
    found, boxes, lines = section_of(scene.snapshot())

    assert "? may wait: 1 × arguments" in boxes["title"]
    assert "may wait" in next(elements_of(found.body).all("p", class_="legend")).text
    assert len(set(lines["dash"])) == 3  # calls, a certain wait, inferred waits


def test_the_table_has_callers_edges_and_methods_in_the_order_of_the_text() -> None:
    found, boxes, _ = section_of(load(RECORDED_CALLS))
    page = elements_of(found.body)
    (table,) = page.all("table", class_="calls")
    rows = [row.text for row in next(table.all("tbody")).all("tr")]

    assert next(table.all("thead")).text == "calls /s pending running failed mean max alive"
    assert rows[0] == "driver pipeline.py 2.9 MiB alive by ray.put"
    assert rows[1].startswith("→ Store 61 44! ")
    assert rows[2].startswith(".size 60 44! ")
    driver = boxes["goes_to"][boxes["title"].index("driver pipeline.py")]
    assert [row.text for row in table.all("tr", id=driver)] == [rows[0]]


def test_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EDGES", 2)
    monkeypatch.setattr(module, "MAX_WAITS", 1)
    monkeypatch.setattr(module, "MAX_CALLERS", 1)
    found, boxes, _ = section_of(load(RECORDED_CALLS))

    page = elements_of(found.body).text
    assert "Not drawn: " in page
    assert "more callers are left out." in page
    assert sum("calls" in title for title in boxes["title"]) == 2

from __future__ import annotations

from functools import partial

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.page.section import ReportData
from dstack.report.page.waits_section import section
from tests.examples.recorded import recorded
from tests.unit.scenes import Scene
from tests.unit.support.graph_sections import graph_section
from tests.unit.support.html_elements import elements_of

section_of = partial(graph_section, section, "waits-chart")


def test_nothing_waits() -> None:
    scene = Scene()
    scene.driver()

    assert section(ReportData(AnalysedSnapshot.of(scene.snapshot()))) is None


def test_a_deadlock_has_all_details_in_its_boxes() -> None:
    found, boxes, lines = section_of(load(recorded("two_actors")))

    assert boxes["title"] == [
        "✖ Cashier.order",
        "✖ Kitchen.cook",
        "✖ Cashier.is_paid (pending)",
        "■ driver two_actors.py",
    ]
    assert boxes["text"][0] == 'actor "cashier"\nexamples/two_actors.py:22\nray.get'
    tip = boxes["tip"][0].split("\n")
    assert tip[0].startswith("✖ deadlocked: ")
    assert 'Cashier.order (actor Cashier "cashier"' in tip[1]
    assert tip[2].startswith("examples/two_actors.py:22  meal: str = ray.get(")
    assert tip[3].startswith("Wait: ray.get, ")
    assert tip[3].endswith("exact, in both samples")
    assert tip[4] == "Click: the stack"
    assert boxes["goes_to"][0].startswith("stack-")
    assert boxes["goes_to"][2] is None
    assert len(lines["xs"]) == 4
    assert lines["width"][0] > lines["width"][3]
    assert lines["tip"][0].startswith("Cashier.order waits for Kitchen.cook\nWait: ray.get")
    legend = next(elements_of(found.body).all("p", class_="legend")).text
    assert legend == "✖ deadlocked ■ blocked behind these cycle never proceeds"


def test_suspected_waits_are_dashed_and_those_with_a_timeout_dotted() -> None:
    _, _, suspected = section_of(load(recorded("hangs/gate_without_slot")))
    assert "9 5" in suspected["dash"]

    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("work", by=driver)
    driver.gets(call, timeout_s=5.0)
    _, boxes, timed = section_of(scene.snapshot())
    assert timed["dash"] == ["2 4"]
    assert "ray.get, timeout 5 s" in boxes["text"][1]


def test_a_choice_of_dependencies_is_named() -> None:
    _, boxes, _ = section_of(load(recorded("hangs/two_of_three")))

    (chair,) = (text for title, text in zip(boxes["title"], boxes["text"], strict=True) if "Chair.decide" in title)
    assert chair.endswith("ray.wait, any 1 of 2")


def test_final_blockers_are_marked() -> None:
    _, boxes, _ = section_of(load(recorded("slow_actor_queue")))

    assert any(title.startswith("◎ ") for title in boxes["title"])

from __future__ import annotations

from collections.abc import Sequence

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.report.graph_svg import Drawing, GraphBox
from dstack.report.page.section import ReportData
from dstack.report.page.waits_section import drawing, section
from tests.examples.recorded import recorded
from tests.unit.scenes import Scene
from tests.unit.support.html_elements import elements_of


def drawing_of(snapshot: Snapshot) -> Drawing:
    data = ReportData(AnalysedSnapshot.of(snapshot))
    return drawing(data.analysed, data.stack_ids)


def titles(boxes: Sequence[GraphBox]) -> list[str]:
    return [box.title for box in boxes]


def test_nothing_waits() -> None:
    scene = Scene()
    scene.driver()

    assert section(ReportData(AnalysedSnapshot.of(scene.snapshot()))) is None


def test_a_deadlock_has_all_details_in_its_boxes() -> None:
    found = drawing_of(load(recorded("two_actors")))
    boxes, links = found.boxes, found.links

    assert titles(boxes) == [
        "✖ Cashier.order",
        "✖ Kitchen.cook",
        "✖ Cashier.is_paid (pending)",
        "■ driver two_actors.py",
    ]
    assert [line for line in boxes[0].lines if line] == ['actor "cashier"', "examples/two_actors.py:22", "ray.get"]
    tip = boxes[0].tip.split("\n")
    assert tip[0].startswith("✖ deadlocked: ")
    assert 'Cashier.order (actor Cashier "cashier"' in tip[1]
    assert tip[2].startswith("examples/two_actors.py:22  meal: str = ray.get(")
    assert tip[3].startswith("Wait: ray.get, ")
    assert tip[3].endswith("exact, in both samples")
    assert tip[4] == "Click: the stack"
    assert (boxes[0].goes_to or "").startswith("stack-")
    assert boxes[2].goes_to is None
    assert len(links) == 4
    assert links[0].style.width > links[3].style.width
    assert links[0].tip.startswith("Cashier.order waits for Kitchen.cook\nWait: ray.get")


def test_the_section_has_the_drawing_its_legend_and_links_to_stacks() -> None:
    found = section(ReportData(AnalysedSnapshot.of(load(recorded("two_actors")))))
    assert found is not None
    page = elements_of(found.body)

    assert next(page.all("p", class_="legend")).text == "✖ deadlocked ■ blocked behind these cycle never proceeds"
    assert len(list(page.all("g", class_="node"))) == 4
    assert 'href="#stack-' in found.body
    assert " style=" not in found.body


def test_suspected_waits_are_dashed_and_those_with_a_timeout_dotted() -> None:
    suspected = drawing_of(load(recorded("hangs/gate_without_slot")))
    assert "9 5" in {link.style.dashes for link in suspected.links}

    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("work", by=driver)
    driver.gets(call, timeout_s=5.0)
    timed = drawing_of(scene.snapshot())
    assert [link.style.dashes for link in timed.links] == ["2 4"]
    assert "ray.get, timeout 5 s" in timed.boxes[1].lines


def test_a_choice_of_dependencies_is_named() -> None:
    (chair,) = (box for box in drawing_of(load(recorded("hangs/two_of_three"))).boxes if "Chair.decide" in box.title)
    assert "ray.wait, any 1 of 2" in chair.lines


def test_final_blockers_are_marked() -> None:
    boxes = drawing_of(load(recorded("slow_actor_queue"))).boxes

    assert any(title.startswith("◎ ") for title in titles(boxes))

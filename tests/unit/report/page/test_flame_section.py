from __future__ import annotations

import json

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.profile import Sampled
from dstack.report.page.flame_section import MOST_RECORDINGS, section
from dstack.report.page.section import ReportData, Section
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CALLS
from tests.unit.analysis.stacks.made_profiles import GET, ON_CPU, SLEEP, in_turn, line, profile_of
from tests.unit.analysis.stacks.recordings import frame, recording, thread
from tests.unit.scenes import Scene
from tests.unit.support.html_elements import ATTACK, elements_of

PIPELINE = load(RECORDED_CALLS)
RECORDED = recording({(thread(0), (frame("main"), frame("step"))): 3, (thread(1), (frame("main"),)): 1})


def section_of(*recordings: tuple[str, Sampled], attack: str = "") -> Section:
    snapshot = hostile(PIPELINE, attack) if attack else PIPELINE
    found = section(ReportData(AnalysedSnapshot.of(snapshot), (), recordings))
    assert found is not None
    return found


def test_stacks_task_time_and_recordings_can_be_chosen_and_one_is_shown() -> None:
    found = section_of(("before.json", RECORDED))
    page = elements_of(found.body)

    assert [one.text for one in page.all("label")] == [
        "Recording before.json (10 s)",
        "Stacks (3 threads and coroutines)",
        "Task time (14 s)",
    ]
    assert ["hidden" in one.attributes for one in page.all(class_="flame")] == [False, True, True]
    assert [one for one in page.ids if one.startswith("flame-chart")] == [f"flame-chart-{at}" for at in range(3)]
    boxes = [json.loads(one.text) for one in page.all("script")]
    assert [one["unit"] for one in boxes] == ["samples", "executions", "microseconds"]
    assert [one["total"] for one in boxes[0]["orders"]] == [4]
    assert "4 samples of" in page.text


def test_more_recordings_than_some_are_left_out() -> None:
    page = elements_of(section_of(*((f"{n}.json", RECORDED) for n in range(MOST_RECORDINGS + 2))).body)

    assert len(list(page.all("label"))) == MOST_RECORDINGS + 2
    assert "2 more recordings left out." in page.text


def test_hostile_names_remain_text() -> None:
    page = elements_of(section_of((ATTACK, RECORDED), attack=ATTACK).body)

    assert {one.tag for one in page.all()}.isdisjoint({"img", "svg", "iframe"})
    assert len(list(page.all("script"))) == 3


def test_nothing_to_draw_is_no_section() -> None:
    empty = recording({})

    assert section(ReportData(AnalysedSnapshot.of(Scene().snapshot()), (), [("empty", empty)])) is None


def test_a_profile_is_drawn_widest_first_and_in_the_order_of_time() -> None:
    turns = in_turn((1, (line(5), GET, SLEEP)), (2, (line(6), ON_CPU)), (3, (line(5), GET, SLEEP)))
    page = elements_of(section_of(("slow.json", profile_of(turns)), ("later.json", RECORDED)).body)

    titles = [one.text for one in page.all("label")]
    assert (titles[0], titles[-1]) == ("Profile slow.json (6.0 s)", "In the order of time")
    boxes = json.loads(next(page.all("script")).text)
    names = [[boxes["name"][step] for step in order["step"]] for order in boxes["orders"]]
    assert names == [
        ["driver train.py", "main:5", "ray.get", "time.sleep", "main:6", "on CPU"],
        ["driver train.py", "main:5", "ray.get", "time.sleep", "main:6", "on CPU", "main:5", "ray.get", "time.sleep"],
    ]
    assert "6.0 s of driver train.py, in 30 samples." in page.text

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace

from benchmarks.bench_merging import snapshot_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model import Snapshot
from dstack.report.page.report_data import ReportData
from dstack.report.page.sections import stacks as module
from dstack.report.page.sections.stacks import section
from dstack.snapshot_file import load
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CLUSTERS
from tests.unit.scenes import Scene
from tests.unit.support.html_elements import ATTACK, Element, elements_of
from tests.unit.support.random_snapshots import related_snapshots

MESH = load(RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz")


def data_of(snapshot: Snapshot, job: str | None = None) -> ReportData:
    return ReportData(AnalysedSnapshot.of(snapshot, job=job))


def page_of(data: ReportData) -> Element:
    found = section(data)
    assert found is not None
    return elements_of(found.body)


def test_groups_have_their_number_and_where_they_are_and_outliers_come_first() -> None:
    data = data_of(MESH)
    page = page_of(data)

    assert page.text.startswith(
        "5 stacks of 5 processes: 4 waiting, 1 off CPU. "
        "Outlier: rank 3 is in other code than ranks 0-2 (all of stage=train) (actor Trainer)"
    )
    groups = list(page.all("details", class_="group"))
    assert [next(group.all("summary")).text for group in groups] == [
        "4 × actor Trainer : 3 in all_reduce of torch.distributed at /srv/app/mesh.py:20 , "
        "1 in Trainer.step at /srv/app/mesh.py:19",
        "1 × driver mesh.py : in ray.get at /srv/app/mesh.py:24",
    ]
    (link,) = next(page.all("ul", class_="outliers")).all("a")
    (odd,) = page.all("div", id=link.attributes["href"].removeprefix("#"))
    assert "Trainer.step /srv/app/mesh.py:19 time.sleep(1000)" in odd.text
    assert "off CPU" in odd.text
    assert "rank 3 (tp 1, dp 1, stage=late, host=h3), pid 10904, 192.0.2.2" in odd.text


def test_links_of_findings_lead_to_stacks_with_all_frames() -> None:
    data = data_of(MESH)
    page = page_of(data)

    for finding in data.analysed.diagnosis.findings:
        for key in finding.members:
            (stack,) = page.all("div", id=data.stack_ids[key])
            assert "Whole stack" in stack.text


@pytest.mark.parametrize("name", ["two_actors", "worker_tree", "hangs/libraries/torch_driver_in_all_reduce"])
def test_ids_are_unique_and_all_there(name: str) -> None:
    data = data_of(load(RECORDED / f"{name}.json.gz"))

    assert sorted(page_of(data).ids) == sorted(set(data.stack_ids.values()))


def test_a_process_that_was_not_read_is_named() -> None:
    scene = Scene()
    scene.driver().is_in("queue.Queue.get", "0x1")
    silent = scene.worker()
    silent.is_unreachable = silent.is_unreadable = True

    assert "Not read: worker" in page_of(data_of(scene.snapshot())).text


def test_without_stacks_there_is_no_section() -> None:
    assert section(data_of(Scene().snapshot())) is None


@pytest.mark.parametrize("text", [ATTACK, "\ud800\u202e\x1b[2J"])
def test_names_and_sources_are_text_and_nothing_else(text: str) -> None:
    actors = tuple(replace(actor, class_name=text, name=text) for actor in MESH.actors)
    frames = tuple(dataclasses.replace(frame, function=text, file=text) for frame in MESH.frames)
    sources = {text: dict.fromkeys(range(100), text)}
    page = page_of(data_of(replace(MESH, actors=actors, frames=frames, sources=sources)))

    assert {one.tag for one in page.all()} == {one.tag for one in page_of(data_of(MESH)).all()}
    assert not any(name.startswith("on") for one in page.all() for name in one.attributes)


def test_hostile_text_is_visible_in_elements_and_attributes() -> None:
    data = data_of(hostile(MESH))
    page = page_of(data)

    assert sorted(page.ids) == sorted(set(data.stack_ids.values()))
    texts = [page.text, *(value for one in page.all() for value in one.attributes.values())]
    assert not any("\x1b" in text or "\u202e" in text for text in texts)


def test_a_thousand_workers_in_six_hundred_stacks_are_bounded_and_say_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = data_of(snapshot_of(1_000))
    found = section(data)
    assert found is not None
    assert len(found.body) < 1_300_000
    monkeypatch.setattr("dstack.report.page.rows.merged_stacks.MAX_ENDS", 50)

    page = page_of(data)
    assert sorted(page.ids) == sorted(set(data.stack_ids.values()))
    assert "executions, the rarest ones." in page.text
    assert sum(1 for one in page.all("details", class_="group") if "open" in one.attributes) <= 1


def test_long_lists_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_ABSENT", 1)
    scene = Scene()
    for _ in range(3):
        silent = scene.worker()
        silent.is_unreachable = silent.is_unreadable = True

    assert "Not read: 2 more processes" in page_of(data_of(scene.snapshot())).text


@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(related_snapshots())
def test_random_snapshots_have_a_stacks_section(snapshot: Snapshot) -> None:
    data = data_of(snapshot)
    found = section(data)
    ids = elements_of(found.body).ids if found else []

    assert sorted(ids) == sorted(set(data.stack_ids.values()))

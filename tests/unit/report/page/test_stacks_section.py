"""None"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace

from benchmarks.made_up_snapshots import with_many_stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot, WorkerSample
from dstack.model.vertex_keys import Key
from dstack.report.page import stacks_section as module
from dstack.report.page.section import ReportData
from dstack.report.page.stacks_section import MergedStacks, ShownGroup, StackEnd, section
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.scenes import Scene
from tests.unit.scenes.ranks import training
from tests.unit.support.html_elements import ATTACK, Element, elements_of
from tests.unit.support.random_snapshots import related_snapshots

MANY = with_many_stacks(1_000)


def merged(data: ReportData, members: tuple[Key, ...] = ()) -> list[ShownGroup]:
    return MergedStacks(data.stacks, data.stack_ids, members).groups()


def ends(groups: list[ShownGroup]) -> Iterator[StackEnd]:
    return (row.end for group in groups for row in group.rows if row.end)


def check_ids(data: ReportData, groups: list[ShownGroup]) -> None:
    """Each id is there once, and stands for all executions that have it."""
    counts = Counter(data.stack_ids.values())
    shown = {end.id: end.count for end in ends(groups)}
    left_out = [id_ for group in groups for id_ in group.left_out]

    assert sorted([*(end.id for end in ends(groups)), *left_out]) == sorted(counts)
    assert shown == {id_: counts[id_] for id_ in shown}
    assert sum(group.left_out_count for group in groups) == sum(counts[id_] for id_ in left_out)


@pytest.mark.parametrize("name", ALL)
def test_every_stack_of_a_recorded_cluster_is_there_once(name: str) -> None:
    data = ReportData(AnalysedSnapshot.of(load(RECORDED_CLUSTERS / name)))

    check_ids(data, merged(data))


@examples(50, suppress_health_check=[HealthCheck.too_slow])
@given(related_snapshots())
def test_every_stack_of_a_random_cluster_is_there_once(snapshot: Snapshot) -> None:
    data = ReportData(AnalysedSnapshot.of(snapshot))

    check_ids(data, merged(data))


def test_frames_that_all_share_are_one_row_and_what_ends_there_says_what_it_does() -> None:
    scene, _ = training()
    trainers = next(one for one in merged(ReportData(AnalysedSnapshot.of(scene.snapshot()))) if len(one.rows) > 1)

    most, odd = (row.end for row in trainers.rows if row.end)
    assert most is not None
    assert (most.count, most.ranks, most.activities) == (7, "ranks 0-2, 4-7", (("waiting", "waits"),))
    assert odd is not None
    assert odd.outliers == ("rank 3 is in other code than ranks 0-2, 4-7",)
    assert "rank 3" in odd.places[0]
    own, terms = most.searched.split("\n")[0].split("\t")
    assert "pid" in own
    assert " rank:0 " in terms


def test_members_of_findings_then_outliers_then_frequent_stacks_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ReportData(AnalysedSnapshot.of(MANY))
    counts = Counter(data.stack_ids.values())
    rare = next(key for key, id_ in data.stack_ids.items() if counts[id_] == 1)
    monkeypatch.setattr(module, "MAX_ENDS", 10)

    groups = merged(data, (rare,))

    check_ids(data, groups)
    assert len(list(ends(groups))) == 10
    assert data.stack_ids[rare] in {end.id for end in ends(groups)}
    most = min(count for _, count in counts.most_common(9))
    assert all(end.count >= most for end in ends(groups) if end.id != data.stack_ids[rare])
    assert all(row.count for group in groups for row in group.rows)


def test_the_frames_of_all_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ReportData(AnalysedSnapshot.of(MANY))
    assert sum(group.frames for group in merged(data)) <= module.MAX_FRAMES + module.MAX_ENDS
    monkeypatch.setattr(module, "MAX_FRAMES", 5_000)

    groups = merged(data)

    check_ids(data, groups)
    rows = [row for group in groups for row in group.rows]
    assert sum(len(row.lines) for row in rows) <= 5_000 + len(rows)  # a line for what is left out
    assert any(line.left_out for row in rows for line in row.lines)


def test_a_recursion_in_which_executions_are_at_every_depth_has_a_row_for_each() -> None:
    depths = 300
    snapshot = with_many_stacks(depths)
    actors = tuple(replace(actor, class_name="Walker") for actor in snapshot.actors)
    stacks = tuple((0,) * (depth + 1) for depth in range(depths))
    workers = tuple(_at_stack(worker, number) for number, worker in enumerate(snapshot.samples[0].workers))
    samples = (replace(snapshot.samples[0], workers=workers),)
    data = ReportData(AnalysedSnapshot.of(replace(snapshot, actors=actors, stacks=stacks, samples=samples)))

    with recursion_limit(depths // 2):
        (group,) = merged(data)

    check_ids(data, [group])
    assert max(row.depth for row in group.rows) == depths - 1


@contextmanager
def recursion_limit(more: int) -> Iterator[None]:
    """Let calls be at most this much deeper than here."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + more)
    yield
    sys.setrecursionlimit(before)


def _at_stack(worker: WorkerSample, stack: int) -> WorkerSample:
    assert worker.process is not None
    threads = tuple(dataclasses.replace(thread, stack=stack, call=None) for thread in worker.process.threads)
    return replace(worker, process=dataclasses.replace(worker.process, threads=threads))


def test_only_members_of_findings_have_whole_stacks_and_a_bounded_number_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = tuple(dataclasses.replace(frame, origin="library" if frame.line % 2 else "user") for frame in MANY.frames)
    data = ReportData(AnalysedSnapshot.of(replace(MANY, frames=frames)))
    members = tuple(data.stack_ids)
    monkeypatch.setattr(module, "MAX_WHOLE", 3)

    assert [end.whole for end in ends(merged(data)) if end.whole] == []
    assert sum(bool(end.whole) for end in ends(merged(data, members))) == 3


def test_names_of_executions_are_searched_as_far_as_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ReportData(AnalysedSnapshot.of(MANY))
    lines = [line for end in ends(merged(data)) for line in end.searched.split("\n")]
    assert len(lines) == 1_000
    monkeypatch.setattr(module, "MAX_SEARCHED", 100)

    lines = [line for end in ends(merged(data)) for line in end.searched.split("\n") if line]
    assert len(lines) == 100


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
    data = data_of(with_many_stacks(1_000))
    found = section(data)
    assert found is not None
    assert len(found.body) < 1_300_000
    monkeypatch.setattr("dstack.report.page.stacks_section.MAX_ENDS", 50)

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

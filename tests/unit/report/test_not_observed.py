"""An inconclusive check always has its reasons, in every form of the report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Check
from dstack.model.snapshot import Snapshot
from dstack.observed.node import Failure
from dstack.observed.processes import ACCESSES
from dstack.report.check_json import check_json
from dstack.report.not_observed import (
    ACCESS_WORDS,
    cluster_checks,
    conclusion,
    gaps_in_words,
    node_checks,
    other_failures,
)
from dstack.report.text import report_text
from dstack.tui.views.verdict_view import finding_lines
from tests.fuzzing.effort import examples
from tests.unit.scenes import Scene
from tests.unit.support.random_snapshots import related_snapshots

AGAIN = "Run dstack again"


def scene_with_driver() -> Scene:
    scene = Scene()
    scene.driver().idles()
    return scene


def unread_worker() -> Scene:
    scene = scene_with_driver()
    silent = scene.worker()
    silent.is_unreachable = silent.is_unreadable = True
    return scene


def silent_actor() -> Scene:
    scene = scene_with_driver()
    scene.actor("Shop", name="s").idles().is_unreachable = True
    return scene


def actor_without_stacks() -> Scene:
    scene = scene_with_driver()
    scene.actor("Shop", name="s").idles().is_unreadable = True
    return scene


def starting_worker() -> Scene:
    scene = scene_with_driver()
    starting = scene.worker()
    starting.known["starting"], starting.is_unreachable = "import", True
    return scene


def by_pyspy() -> Scene:
    scene = scene_with_driver()
    scene.worker().idles().access = "py-spy"
    return scene


def hidden_failure() -> Scene:
    scene = scene_with_driver()
    scene.failures.append(Failure(stage="control plane", reason="no answer", cause="timeout", remedy="Check it."))
    return scene


def moving_coroutine() -> Scene:
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    server.coroutines_read = True
    call = scene.call(server, "serve", by=driver)
    server.running = [call]
    driver.gets(call)
    return scene


def value_of_silent_owner() -> Scene:
    scene = Scene()
    scene.driver().gets("ab" * 24 + "01000000")
    return scene


def no_sample() -> Scene:
    return Scene()


REASONS = [
    (unread_worker, "worker", "worker (pid {1}, node {ip}) was not read. Run dstack again"),
    (silent_actor, "worker", 'actor Shop "s" (pid {1}, node {ip}) did not answer which tasks it runs.'),
    (actor_without_stacks, "worker", 'actor Shop "s" (pid {1}, node {ip}) has no stacks that could be read.'),
    (starting_worker, "worker", "worker (pid {1}, node {ip}) is starting (in an import), and was not read completely."),
    (by_pyspy, "access", "worker (pid {1}, node {ip}) was read by py-spy: stacks, but not what they wait for. dstack "),
    (hidden_failure, "failure", "control plane: no answer. Check it."),
    (
        moving_coroutine,
        "dependency",
        "Server.serve (actor Server {actor}, pid {1}, node {ip}) waits for the next step of Server.serve, which was "
        "observed neither suspended nor running. Run dstack again: its coroutine began, ended or ran during",
    ),
    (value_of_silent_owner, "dependency", "waits in ray.get for the value of abababab, which no reachable process"),
]


def analysed(make: Callable[[], Scene]) -> AnalysedSnapshot:
    return AnalysedSnapshot.of(make().snapshot())


@pytest.mark.parametrize(("make", "kind", "words"), REASONS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_gap_says_what_why_and_what_to_do(make: Callable[[], Scene], kind: str, words: str) -> None:
    scene = make()
    one = AnalysedSnapshot.of(scene.snapshot())
    pids = [proc.worker.pid for proc in scene.procs]
    actors = [proc.worker.actor_id for proc in scene.procs if proc.worker.actor_id]

    (gap,) = gaps_in_words(one)

    assert gap.kind == kind
    assert words.format(*pids, ip=scene.nodes[0].ip, actor=(actors or [""])[0][:8]) in gap.text
    assert gap.text.endswith(".")


@pytest.mark.parametrize("make", [make for make, _, _ in REASONS], ids=lambda make: make.__name__)
def test_each_form_of_the_report_has_the_reason(make: Callable[[], Scene]) -> None:
    one = analysed(make)
    (gap,) = gaps_in_words(one)

    assert one.diagnosis.incomplete
    assert f"Inconclusive: {gap.text}" in " ".join(report_text(one).split())
    document = json.loads(check_json(one))
    assert document["gaps"] == [{"kind": gap.kind, "text": gap.text, "count": 1}]
    (title,) = [line for line in finding_lines(one) if line.key == "gaps"]
    assert title.text.plain == "Not observed, could change the verdict: 1 reason"


def test_similar_gaps_are_one_reason_and_many_are_counted() -> None:
    scene = unread_worker()
    for _ in range(4):
        other = scene.worker()
        other.is_unreachable = other.is_unreadable = True
    for number in range(4):
        failure = Failure(stage="control plane", reason=f"reason {number}", cause="timeout")
        scene.failures.append(failure)
    one = AnalysedSnapshot.of(scene.snapshot())

    text = " ".join(report_text(one).split())

    assert "reason 0" in text
    assert "and 4 more such reasons (--details)" in text
    details = " ".join(report_text(one, details=True).split())
    assert "reason 3" in details
    assert "was not read (5 alike)." in details


def test_a_failure_that_explains_a_gap_is_named_once_and_first() -> None:
    scene = unread_worker()
    (_, silent) = scene.procs
    scene.failures.append(Failure(stage="stacks", reason="a remark", cause="missing"))
    of_worker = Failure(stage="process", reason="not allowed", cause="permission", worker_id=silent.worker_id)
    scene.failures.append(of_worker)
    one = AnalysedSnapshot.of(scene.snapshot())

    gaps = gaps_in_words(one)

    assert [gap.text for gap in gaps] == ["process: not allowed."]
    assert other_failures(one, gaps) == ["stacks: a remark."]


def test_each_failure_of_a_gap_is_a_reason() -> None:
    """Also many of one node: none is left out of the list."""
    scene = unread_worker()
    node_id = scene.nodes[0].node_id
    scene.failures += [Failure(stage="node probe", reason=f"odd {number}", node_id=node_id) for number in range(5)]
    one = AnalysedSnapshot.of(scene.snapshot())

    gaps = gaps_in_words(one)

    assert [gap.text.split(": ")[1] for gap in gaps] == [f"odd {number}." for number in range(5)]
    assert {gap.kind for gap in gaps} == {"worker"}


def test_a_snapshot_without_a_sample_says_so() -> None:
    one = AnalysedSnapshot.of(replace(unread_worker().snapshot(), samples=()))

    assert [gap.kind for gap in gaps_in_words(one)] == ["sample"]
    assert "Inconclusive: nothing was read" in report_text(one)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(related_snapshots())
def test_every_inconclusive_report_has_a_reason(snapshot: Snapshot) -> None:
    one = AnalysedSnapshot.of(snapshot)

    text = report_text(one)

    is_inconclusive = one.diagnosis.incomplete and not one.diagnosis.is_stuck
    assert ("Inconclusive: " in text) == is_inconclusive
    assert bool(json.loads(check_json(one))["gaps"]) == bool(one.diagnosis.gaps)


def test_each_way_of_reading_has_words() -> None:
    assert tuple(ACCESS_WORDS) == ACCESSES


NO_PERMISSION = Failure(stage="memory", reason="no permission", remedy="Run dstack as root.")


def of_nodes(snapshot: Snapshot) -> dict[str, list[Check]]:
    return {node.node_id: checks for node, checks in node_checks(AnalysedSnapshot.of(snapshot))}


def test_a_node_that_is_read_wholly_has_no_limit() -> None:
    scene = Scene()
    scene.driver()
    snapshot = scene.sample().snapshot()

    ((check,),) = of_nodes(snapshot).values()
    assert check == Check("ok", "1 of 1 process read: 1 by memory")


def test_alike_failures_of_processes_are_one_line_with_their_remedy() -> None:
    scene = Scene()
    first, second = scene.driver(), scene.worker()
    snapshot = scene.sample(only=[]).snapshot()
    node = snapshot.nodes[0].node_id
    failures = tuple(
        dataclasses.replace(NO_PERMISSION, node_id=node, worker_id=one.worker.worker_id, pid=one.worker.pid)
        for one in (first, second)
    )

    (checks,) = of_nodes(replace(snapshot, failures=failures)).values()
    assert checks[0].level == "limit"
    assert checks[1] == Check("failure", "no permission (2 processes)", "Run dstack as root.")


def test_a_refused_process_is_not_counted_as_read() -> None:
    scene = Scene()
    scene.driver()
    refused = scene.worker()
    snapshot = scene.sample().snapshot()
    (sample,) = snapshot.samples
    without_threads = tuple(
        replace(one, process=dataclasses.replace(one.process, threads=()))
        if one.process and one.worker_id == refused.worker.worker_id
        else one
        for one in sample.workers
    )
    snapshot = replace(snapshot, samples=(replace(sample, workers=without_threads),))

    ((check,),) = of_nodes(snapshot).values()
    assert check == Check("limit", "1 of 2 processes read: 1 by memory")


def test_a_dead_node_is_left_out_and_one_without_workers_is_fine() -> None:
    scene = Scene()
    dead, empty = scene.node(alive=False), scene.node()
    scene.driver()
    found = of_nodes(scene.sample().snapshot())

    assert dead.node_id not in found
    assert found[empty.node_id] == [Check("ok", "no worker or driver runs here")]


def test_a_failure_without_a_node_concerns_the_cluster() -> None:
    scene = Scene()
    scene.driver()
    snapshot = replace(scene.sample().snapshot(), failures=(Failure(stage="control plane", reason="no actors"),))

    checks = cluster_checks(AnalysedSnapshot.of(snapshot))
    assert [check.level for check in checks] == ["ok", "failure"]
    assert checks[1].text == "no actors"


def test_the_conclusion_says_what_cannot_be_read_and_what_to_do() -> None:
    scene = Scene()
    scene.driver()
    scene.worker()
    analysed = AnalysedSnapshot.of(scene.sample().snapshot())
    unread = AnalysedSnapshot.of(unread_worker().sample().snapshot())
    limit = Check("limit", "no permission", "Run dstack as root.")

    assert conclusion(analysed, [Check("ok", "fine")]) == "dstack can read all 2 processes on 1 node."
    limited = conclusion(analysed, [Check("ok", "fine"), limit])
    assert limited == "dstack can read all 2 processes on 1 node, with 1 limit, marked above."
    assert conclusion(unread, [limit]) == "dstack cannot read 1 of 2 processes: Run dstack as root."

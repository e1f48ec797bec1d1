"""What has changed since the snapshot before: marks of findings, waits, executions and workers, and their numbers."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.views.snapshot_changes import (
    FindingSpan,
    FindingSummary,
    SnapshotChanges,
    SnapshotSummary,
    finding_spans,
    mark_of,
)
from dstack.model.snapshot import Snapshot
from tests.tui.test_history_view import three
from tests.unit.analysis.views.test_snapshot_diff import Pair, again, analysed


def between(before: Snapshot, after: Snapshot) -> SnapshotChanges:
    changes = SnapshotChanges.between(analysed(before), analysed(after))
    assert changes
    return changes


def test_nothing_has_changed_in_the_same_scene() -> None:
    scene = Pair()

    changes = between(again(scene, 0.0), again(scene))

    assert changes.in_words == "no changes"
    assert not any((changes.waits, changes.gone_waits, changes.executions, changes.new_workers))


def test_a_new_worker_and_its_wait_are_new_and_later_gone() -> None:
    scene = Pair()
    before = again(scene, 0.0)
    scene.driver_.gets(scene.call_)
    _, worker = scene.run("slow", by=scene.driver_)
    worker.gets(scene.call_)
    after = again(scene)

    changes = between(before, after)
    assert changes.waits[worker.key] == "new"
    assert changes.executions[worker.key] == "new"
    assert changes.new_workers == {worker.worker_id}
    back = between(after, replace(before, taken_at=after.taken_at + 60))
    assert [wait.vertex for wait in back.gone_waits] == [worker.key]
    assert len(back.gone_workers) == 1
    assert back.in_words.endswith("-1 worker")


def test_a_wait_at_another_line_is_changed_and_a_finding_that_loses_a_waiter_too() -> None:
    scene, (first, second, third) = three()

    moved = between(first, second)
    assert {moved.waits[one.key] for one in scene.behind[:2]} == {"changed"}
    assert {moved.executions[one.key] for one in scene.behind[:2]} == {"changed"}
    assert moved.in_words == "~2 waits"
    lost = between(second, third)
    assert sorted(lost.findings.values()) == ["changed", "new"]
    assert lost.in_words == "+1 ~1 findings, +1 -1 waits, -1 worker"
    assert between(third, replace(second, taken_at=third.taken_at + 60)).gone_findings


def test_a_finding_is_continued_by_its_number_in_the_snapshot_before() -> None:
    _, (first, second, third) = three()

    assert between(first, second).continued == (0,)
    assert sorted(between(second, third).continued, key=str) == [0, None]


def test_there_is_nothing_to_compare_without_a_snapshot_before_or_of_another_cluster() -> None:
    scene = Pair()
    snapshot = again(scene)
    other = replace(
        snapshot,
        nodes=tuple(replace(node, node_id="ab" * 28) for node in snapshot.nodes),
        workers=(),
        actors=(),
        samples=(),
    )

    assert SnapshotChanges.between(None, analysed(snapshot)) is None
    assert SnapshotChanges.between(analysed(other), analysed(snapshot)) is None
    assert SnapshotChanges.between(analysed(snapshot), analysed(again(scene, 0.0))) is None


def test_vertices_that_share_a_line_share_a_mark() -> None:
    a, b, c = (proc.key for proc in three()[0].behind[:3])

    assert mark_of([a, b], {a: "new", b: "new"}) == "new"
    assert mark_of([a, b, c], {a: "new"}) == "changed"
    assert mark_of([a], {}) is None
    assert mark_of([], {}) is None


def snapshot(*findings: tuple[str, int | None]) -> SnapshotSummary:
    """A summary with findings by their words, and their numbers in the snapshot before."""
    found = tuple(FindingSummary("deadlock", words, before) for words, before in findings)
    return SnapshotSummary("deadlock", "", found)


def span(words: str, first: int, last: int) -> FindingSpan:
    return FindingSpan("deadlock", words, first, last)


def test_a_finding_stands_as_long_as_it_is_continued_and_has_its_last_words() -> None:
    series = [snapshot(("a", None)), snapshot(("b", None), ("a and c", 0)), snapshot(("b", 0)), snapshot()]

    assert finding_spans(series) == [span("a and c", 0, 1), span("b", 1, 2)]


def test_a_finding_that_comes_back_is_another_one() -> None:
    assert finding_spans([snapshot(("a", None)), snapshot(), snapshot(("a", None))]) == [
        span("a", 0, 0),
        span("a", 2, 2),
    ]


def test_an_unknown_snapshot_ends_a_finding() -> None:
    assert finding_spans([snapshot(("a", None)), None, snapshot(("a", 0))]) == [span("a", 0, 0), span("a", 2, 2)]


def test_a_summary_has_the_verdict_the_coverage_and_the_changes() -> None:
    first, second = (analysed(one) for one in three()[1][:2])

    summary = SnapshotSummary.of(second, SnapshotChanges.between(first, second))

    assert summary.verdict == "deadlock"
    assert summary.coverage == "1 finding, 10/10 workers"
    assert summary.changes == "~2 waits"
    assert [one.before for one in summary.findings] == [0]
    assert [one.before for one in SnapshotSummary.of(first, None).findings] == [None]

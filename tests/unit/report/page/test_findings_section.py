from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot, TaskHistory
from dstack.observed.node import Failure, LogLine
from dstack.report.page import findings_section as module
from dstack.report.page.findings_section import coverage_section, section
from dstack.report.page.section import ReportData
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CLUSTERS, ROOT
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.scenes import Scene
from tests.unit.support.html_elements import ATTACK, elements_of
from tests.unit.support.random_snapshots import related_snapshots


def text_of(snapshot: Snapshot) -> str:
    return elements_of(coverage_section(ReportData(AnalysedSnapshot.of(snapshot))).body).text


def whole() -> Scene:
    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("work", by=driver)
    driver.gets(call)
    return scene.sample().sample()


def test_it_says_if_all_was_observed() -> None:
    text = text_of(replace(whole().snapshot(), history=TaskHistory(asked_at=1.0), total_s=0.5))

    assert text.startswith(
        "All workers, drivers and nodes were observed. The snapshot took 0.5 s. "
        "2 of 2 workers and drivers, and 1 of 1 nodes were observed. "
        "2 processes read from memory, with what their threads wait for Timing The snapshot took 0.5 s. Sample 1 took"
    )
    assert text.endswith("No process was paused.")


def test_an_unread_worker_makes_the_verdict_incomplete_and_says_why() -> None:
    scene = whole()
    silent = scene.worker()
    silent.is_unreachable = silent.is_unreadable = True
    scene.failures.append(Failure(stage="process", reason="no such process", pid=silent.worker.pid, remedy="Be root."))
    text = text_of(scene.snapshot())

    assert text.startswith("Incomplete: something that was not observed could change the verdict.")
    assert "1 process without stacks" in text
    assert f"worker (pid {silent.worker.pid}, node {scene.nodes[0].ip}) was not read. Run dstack again" in text
    assert f"Failures process, pid {silent.worker.pid}: no such process. Be root." in text


def test_failures_that_hide_no_wait_are_listed_too() -> None:
    failure = Failure(stage="stacks", reason="py-spy is missing", cause="missing")
    text = text_of(replace(whole().snapshot(), failures=(failure,)))

    assert text.startswith("Not everything was observed, but nothing of it could change the verdict.")
    assert "py-spy is missing" in text


def test_history_samples_and_clocks_that_are_missing_are_named() -> None:
    scene = Scene()
    scene.driver(scene.node())
    scene.node()
    snapshot = scene.snapshot()
    first, second = snapshot.nodes
    nodes = (replace(first, clock_ahead_s=-5.0), replace(second, clock_ahead_s=None))
    text = text_of(replace(snapshot, nodes=nodes))

    assert "Only one sample was taken: no wait is confirmed." in text
    assert "The history of tasks is missing" in text
    assert f"Clocks differ, so times and durations across hosts may be off: node {first.ip} at least 5.0 s" in text
    assert f"It is not known whether these clocks agree with dstack's: node {second.ip}." in text


def test_attempts_that_the_history_lacks_are_counted() -> None:
    history = TaskHistory(asked_at=1.0, dropped=3, left_out=2_000)
    text = text_of(replace(whole().snapshot(), history=history))

    assert "missing in the history: 3 that Ray had no room for and 2,000 older ones, which were not requested." in text


def test_pauses_and_torn_stacks_have_a_remark() -> None:
    scene = Scene()
    scene.driver()
    snapshot = scene.snapshot()
    sample = snapshot.samples[0]
    workers = []
    for worker in sample.workers:
        assert worker.process is not None
        threads = tuple(dataclasses.replace(thread, torn=True) for thread in worker.process.threads)
        workers.append(replace(worker, process=dataclasses.replace(worker.process, threads=threads, paused_ms=7.0)))
    text = text_of(replace(snapshot, samples=(replace(sample, workers=tuple(workers)),)))

    assert "1 thread ran during every reading of the stack" in text
    assert "dstack made 1 pause of at most 7 ms" in text


@pytest.mark.parametrize("name", ALL)
def test_every_recorded_cluster_has_the_section(name: str) -> None:
    assert "observed" in text_of(load(RECORDED_CLUSTERS / name))


def test_many_failures_are_cut_and_their_text_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_FAILURES", 1)
    failures = (Failure(stage="stacks", reason=ATTACK), Failure(stage="stacks", reason="other"))
    snapshot = replace(whole().snapshot(), failures=failures)
    page = elements_of(coverage_section(ReportData(AnalysedSnapshot.of(snapshot))).body)

    assert "and 1 more" in page.text
    assert not list(page.all("img"))
    assert "<img src=x" in page.text


@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(related_snapshots())
def test_random_snapshots_have_a_coverage_section(snapshot: Snapshot) -> None:
    assert "observed" in text_of(snapshot)


def test_the_logs_of_a_finding_are_folded_line_by_line_and_no_markup() -> None:
    snapshot = load(str(RECORDED / "hangs/thread_raised.json.gz"))
    tails = tuple(
        dataclasses.replace(tail, lines=(*tail.lines, LogLine(text=ATTACK, kind="error")))
        for tail in snapshot.log_tails
    )

    found = section(ReportData(AnalysedSnapshot.of(replace(snapshot, log_tails=tails))))

    assert found is not None
    elements = elements_of(found.body)
    assert "Last lines of the logs of its processes" in elements.text
    lines = found.body.partition("<pre>")[2].partition("</pre>")[0].splitlines()
    assert any("Exception in thread loader: KeyError:" in line and line.startswith(" " * 14) for line in lines)
    assert [one.attributes["class"] for one in elements.all("script")] == ["markdown"]


def test_a_copied_finding_is_within_one_block_of_code() -> None:
    snapshot = hostile(load(RECORDED / "two_actors.json.gz"), "````\n# @everyone <b>")
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))

    assert found is not None
    first = next(elements_of(found.body).all("script", class_="markdown"))
    begin, block, end = json.loads(first.text).split("`````")
    assert (begin, end) == ("**Deadlock** found by dstack:\n\n", "\n")
    assert block.startswith("text\n")
    assert "# @everyone <b>" in block


def test_the_change_that_is_easiest_to_make_leads_to_the_critical_path() -> None:
    snapshot = load(ROOT / "docs" / "case-studies" / "register_center.json.gz")
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))

    assert found is not None
    elements = elements_of(found.body)
    assert "faster: 2 actors of Register instead of 1: 1.2 s instead of 2.2 s, by a simulation of this" in elements.text
    assert [one.text for one in elements.all("a", href="#critical-path")] == ["Critical path"]


def test_a_hang_is_called_one_and_commands_are_code() -> None:
    orphaned = section(ReportData(AnalysedSnapshot.of(load(next(RECORDED.rglob("lock_held_at_fork.json.gz"))))))
    attacked = hostile(load(RECORDED / "slow_actor_queue.json.gz"), "`<b>`")
    slow = section(ReportData(AnalysedSnapshot.of(attacked)))

    assert orphaned is not None
    assert slow is not None
    assert "1. hang" in elements_of(orphaned.body).text
    assert "orphaned" not in orphaned.body
    fix = next(elements_of(slow.body).all("p", class_="fix"))
    assert any(one.text.startswith("dstack ") for one in fix.all("code"))
    assert not list(fix.all("b"))

"""``dstack timeline`` on real Ray: chains of known pipelines, the trace, and a node with an unused slot."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dstack.analysis.history.slices import NOTICED_LATE_S, overlap_s, running_slice
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import Timeline, Track
from dstack.files.snapshot_file import load
from tests.clusters.dstack_command import dstack
from tests.clusters.ray_clusters import ray_cluster
from tests.integration.programs.drivers.pipelines import ITEMS
from tests.paths import PROGRAMS
from tests.perfetto.trace_processor import trace_processor
from tests.processes import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

REPORTED_S = 60.0
"""Deadline for the events of a program to reach the GCS: workers report once a second."""
PLACES = ({"slot": 1, "first": 1}, {"slot": 1, "second": 1})
STEPS = ["load", "resize", "save"]
CALLS = ["Reader.read", "Model.step", "Writer.write"]


@dataclass(frozen=True)
class Observed:
    """The saved snapshot of the program, and the tasks of each item by step."""

    file: Path
    analysed: AnalysedSnapshot
    items: list[list[str]]

    @property
    def timeline(self) -> Timeline:
        found = self.analysed.timeline
        assert found is not None
        return found


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    """A snapshot of the program once all of its events are reported."""
    last: list[AnalysedSnapshot] = []
    with tempfile.TemporaryDirectory() as directory, ray_cluster(2, num_cpus=2, resources=PLACES) as cluster:
        file, ids = Path(directory, "snapshot.json.gz"), Path(directory, "items.json")
        with cluster.run_example(PROGRAMS / "drivers/pipelines.py", [str(ids)]) as program:
            items: list[list[str]] = json.loads(ids.read_text())

            def is_reported() -> AnalysedSnapshot | None:
                where = ("--address", program.address, "-o", str(file), "--force")
                done = dstack("snapshot", *where, environment=program.environment)
                assert done.returncode == 0, done.stderr
                last[:] = [AnalysedSnapshot.of(load(file))]
                history = last[0].history
                assert history is not None
                known = [history.latest.get(task) for item in items for task in item]
                have_ended = all(one and one.started_at and one.ended_at for one in known)
                return last[0] if have_ended and last[0].starving else None

            found = wait_until(is_reported, deadline_s=REPORTED_S, what=lambda: f"reported: {last[0].history}")
            yield Observed(file, found, items)


def test_links_are_right_and_nearly_complete(observed: Observed) -> None:
    """A false link is worse than an unknown one: a busy host may have one. `benchmarks/bench_chains.py` has figures."""
    step_of = {task: (number, step) for number, item in enumerate(observed.items) for step, task in enumerate(item)}
    links = observed.timeline.linked.links.links

    false = [link for link in links if not _is_next_step(step_of, link.maker.task.task_id, link.user.task.task_id)]
    assert len(false) <= 0.02 * len(links), false
    assert len(links) >= 0.7 * 2 * len(observed.items)


def _is_next_step(step_of: dict[str, tuple[int, int]], maker: str, user: str) -> bool:
    number, step = step_of[maker]
    return step_of[user] == (number, step + 1)


def is_noticed_late(track: Track) -> bool:
    """Whether callers on a busy host noticed ends so late that the calls of an actor seem to overlap."""
    runs = (running_slice(attempt, track.asked_at) for attempt in track.attempts)
    return overlap_s(sorted((one for one in runs if one), key=lambda one: one.began_at)) > NOTICED_LATE_S


def test_the_step_that_limits_a_pipeline(observed: Observed) -> None:
    pipelines = {tuple(step.name for step in one.steps): one for one in observed.timeline.pipelines}

    assert set(pipelines) == {tuple(STEPS), tuple(CALLS)}
    calls = pipelines[tuple(CALLS)]
    assert calls.limiting is not None
    assert (calls.limiting.name, calls.limiting.attempts) == ("Model.step", ITEMS)
    assert calls.limiting.at_once == 1 or any(map(is_noticed_late, observed.timeline.tracks))
    assert len(calls.chains) + len(calls.parts) >= 0.7 * ITEMS


def test_tracks_of_both_nodes(observed: Observed) -> None:
    tracks = {track.title.split(" ")[1]: track for track in observed.timeline.tracks if track.actor_id}

    assert tracks["Reader"].node_id != tracks["Model"].node_id == tracks["Writer"].node_id
    assert len(tracks["Model"].slices) == ITEMS + 1  # and its constructor
    ran = [track for track in observed.timeline.tracks if track.slices]
    assert {len(track.lanes) for track in ran if not track.actor_id or not is_noticed_late(track)} == {1}
    assert [one.group for one in observed.timeline.tracks if one.title == "use_slot"] == ["not started"]
    assert any("waits in ray.get" in mark.text for mark in observed.timeline.marks)


def test_a_node_with_a_free_slot_for_which_tasks_wait_elsewhere(observed: Observed) -> None:
    (text,) = observed.analysed.starving

    assert text.startswith("1 of 1 slot is free on node ")
    assert "while 2 tasks (use_slot) wait for slot on node " in text
    assert "they ask for first, which node " in text
    report = " ".join(dstack("show", str(observed.file)).stdout.split())
    assert "Free elsewhere: 1 of 1 slot is free on node" in report


def test_the_command_writes_a_trace_that_perfetto_reads(observed: Observed, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json.gz"

    done = dstack("timeline", str(observed.file), "-o", str(trace))

    assert (done.returncode, done.stdout) == (0, "")
    assert "Model.step limits the throughput" in done.stderr
    assert f"Saved {trace}. Open it in https://ui.perfetto.dev" in done.stderr
    with trace_processor() as processor:
        processor.load(gzip.decompress(trace.read_bytes()))
        wrong = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        assert processor.query(wrong) == []
        counted = processor.query("select name, count(*) as n from slice where category = 'running' group by name")
        assert {row["name"]: row["n"] for row in counted if row["name"] in STEPS + CALLS} == dict.fromkeys(
            STEPS + CALLS, ITEMS
        )
        arrows = processor.query(
            "select a.name as start, b.name as end, count(*) as n from flow"
            " join slice a on slice_out = a.id join slice b on slice_in = b.id group by start, end"
        )
        by_ends = {(row["start"], row["end"]): row["n"] for row in arrows}
        assert by_ends["driver", "Model.step"] == ITEMS
        assert by_ends["Reader.read", "Model.step"] >= 0.7 * ITEMS
        assert len(processor.query("select distinct upid from process where name like 'node %'")) == 1  # one address
    assert dstack("timeline", str(observed.file), "-o", str(trace)).returncode == 2


def test_without_a_file_it_prints_the_summary(observed: Observed) -> None:
    done = dstack("timeline", str(observed.file))

    assert (done.returncode, done.stderr) == (0, "")
    assert f"chains through {' → '.join(CALLS)}" in done.stdout
    assert "Model.step limits the throughput" in done.stdout
    job = observed.analysed.snapshot.jobs[0].job_id
    assert dstack("timeline", str(observed.file), "--job", job).stdout == done.stdout
    assert dstack("timeline", str(observed.file), "--job", "none").returncode == 2
    assert dstack("timeline", str(observed.file), "-o", "trace.txt").returncode == 2

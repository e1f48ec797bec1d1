"""None"""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from dstack.analysis.diagnose import diagnose
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import Timeline
from dstack.files.snapshot_file import load
from dstack.model.recording import RecordedThread, Recording
from dstack.model.snapshot import Node
from dstack.observed.node import Count, Failure, RecordingCoverage
from dstack.report.profile_text import profile_summary
from dstack.report.summaries import print_timeline_summary, recording_summary, shortfalls, summary_lines
from tests.paths import RECORDED_CALLS
from tests.unit.analysis.stacks.made_profiles import SLEEP, in_turn, profile_of
from tests.unit.support.histories import HEAD, attempt, driver_attempt, index, pipeline

RECORDING = Recording(
    dstack_version="0",
    address="",
    ray_version="",
    began_at=0,
    duration_s=10.04,
    rate_hz=20,
    stacks=((),),
    threads=tuple(
        RecordedThread(worker_id=id, node_id=id, pid=1, node=f"node {id}", kind="worker") for id in ("a", "b")
    ),
    counts=(Count(thread=0, stack=0, samples=1500), Count(thread=1, stack=0, samples=900)),
    coverage=RecordingCoverage(processes=12, wanted=2400, taken=2400, lowest_rate_hz=20),
)


def test_the_summary_has_what_was_recorded() -> None:
    assert recording_summary(RECORDING) == "2,400 samples of 12 processes on 2 nodes in 10.0 s, at 20 Hz"
    assert list(shortfalls(RECORDING)) == []


def test_what_is_missing_is_said_once() -> None:
    failures = tuple(Failure(stage="memory", reason="no permission", remedy="Run as root.") for _ in range(3))
    coverage = RecordingCoverage(processes=12, wanted=2400, taken=2000, torn=1, left_out=7, lowest_rate_hz=2.5)

    assert list(shortfalls(replace(RECORDING, coverage=coverage, failures=failures))) == [
        "A node recorded at 2.5 Hz for a time, to use little CPU: a sample then counts for several.",
        "400 of 2,400 samples were missed: this host, or a node, was too busy.",
        "1 sample left out: the stack changed while it was read.",
        "7 samples left out: too many different stacks.",
        "3 processes or nodes not recorded, or not completely: no permission. Run as root.",
    ]


RUNS = [[(item, item + 0.1), (item + 0.2, item + 1.05)] for item in range(1, 6)]
UNCLEAR = pipeline([*RUNS, [(1, 9.0), (10, 10.1)], [(1, 9.0), (11, 11.1)]])


def shown(history: HistoryIndex) -> tuple[Timeline, AnalysedSnapshot]:
    snapshot = history.index.snapshot
    return Timeline(history), AnalysedSnapshot(snapshot, diagnose(snapshot), history.index)


def text_of(history: HistoryIndex) -> str:
    console = Console(width=100, highlight=False, color_system=None)
    with console.capture() as captured:
        print_timeline_summary(console, *shown(history))
    return captured.get()


def test_a_deadlock_is_no_step_in_use_and_nodes_of_one_address_are_several() -> None:
    analysed = AnalysedSnapshot.of(load(RECORDED_CALLS))
    assert analysed.timeline
    first, second, _ = summary_lines(analysed.timeline, analysed)

    assert ", in 14 processes on 2 nodes: " in first
    assert first.endswith("2 running, 2 pending; 4 of them can never proceed.")
    assert second.endswith(": 1 call of Trainer.step can never proceed, which limits the throughput.")


def test_counts_and_the_limiting_step() -> None:
    history = index(driver_attempt(), *pipeline(RUNS), attempt(99, "never", submitted=3), asked=10.0)

    first, second, third = summary_lines(*shown(history))

    assert (
        first == "11 attempts of tasks in 10 s, in 3 processes on 1 node: 10 finished, 0 failed, 0 running, 1 pending."
    )
    assert second.startswith("5 chains through step_0 → step_1: step_1 limits the throughput: 1 at once is in use 8")
    assert third.startswith("Critical path of driver train.py, ")
    text = text_of(history)
    assert "step calls mean max mean wait max wait at once in use" in " ".join(text.split())
    assert "step_1 5 850 ms 850 ms" in " ".join(text.split())


def test_what_is_missing_or_unknown_is_said() -> None:
    other = Node(node_id="bb" * 28, ip="10.0.0.2", clock_ahead_s=100.0)
    history = index(driver_attempt(), *UNCLEAR, nodes=(HEAD, other), dropped=1200)

    lines = list(summary_lines(*shown(history)))

    assert "Attempts that are missing: 1,200 that Ray had no room for." in lines
    assert "It is not known what made the arguments of 2 attempts in these pipelines." in lines
    assert any(line.startswith("Clocks of hosts differ") for line in lines)
    assert all(line in text_of(history).splitlines() for line in lines[3:])


def test_an_empty_timeline() -> None:
    assert list(summary_lines(*shown(index()))) == [
        "0 attempts of tasks in 0.0 s, in 0 processes: 0 finished, 0 failed, 0 running, 0 pending."
    ]


def test_the_spread_of_a_profile_is_said_if_there_are_several_hosts() -> None:
    profile = profile_of(in_turn((2, (SLEEP,))))
    spread = replace(profile, coverage=replace(profile.coverage, spread_ms=12.3))

    assert profile_summary(profile) == "2.0 s of driver train.py, in 10 samples"
    assert profile_summary(spread) == "2.0 s of driver train.py, in 10 samples of all nodes within 12 ms"

from __future__ import annotations

from msgspec.structs import replace

from dstack.observed_node import Count, Coverage, Failure
from dstack.recording import RecordedThread, Recording
from dstack.report.recording_summary import shortfalls, summary

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
    coverage=Coverage(processes=12, wanted=2400, taken=2400, lowest_rate_hz=20),
)


def test_the_summary_has_what_was_recorded() -> None:
    assert summary(RECORDING) == "2,400 samples of 12 processes on 2 nodes in 10.0 s, at 20 Hz"
    assert list(shortfalls(RECORDING)) == []


def test_what_is_missing_is_said_once() -> None:
    failures = tuple(Failure(stage="memory", reason="no permission", remedy="Run as root.") for _ in range(3))
    coverage = Coverage(processes=12, wanted=2400, taken=2000, torn=1, left_out=7, lowest_rate_hz=2.5)

    assert list(shortfalls(replace(RECORDING, coverage=coverage, failures=failures))) == [
        "A node recorded at 2.5 Hz for a time, to use little CPU: a sample then counts for several.",
        "400 of 2,400 samples were missed: this host, or a node, was too busy.",
        "1 sample left out: the stack changed while it was read.",
        "7 samples left out: too many different stacks.",
        "3 processes or nodes not recorded, or not completely: no permission. Run as root.",
    ]

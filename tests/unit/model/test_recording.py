from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from dstack.files.document_file import to_json
from dstack.files.sampled_file import RECORDINGS
from dstack.model import recording
from dstack.model.recording import JoinedRecording, RecordedThread, Recording, RecordingPart
from dstack.observed.node import Count, Failure, RecordingCoverage
from dstack.observed.processes import Frame

EMPTY = Recording(dstack_version="0", address="a:1", ray_version="2.60.0", began_at=1.0, rate_hz=20)
STEP, MAIN, LOAD = (Frame(function=name, file="train.py", line=3) for name in ("step", "main", "load"))
FIRST, SECOND = (RecordedThread(worker_id=id, node_id="n", pid=7, node="node", kind="driver") for id in ("a", "b"))


def part(thread: RecordedThread, *frames: Frame, samples: int = 1, failures: tuple[Failure, ...] = ()) -> RecordingPart:
    recording = replace(
        EMPTY,
        frames=frames,
        stacks=(tuple(range(len(frames))),),
        threads=(thread,),
        counts=(Count(thread=0, stack=0, samples=samples),),
        coverage=RecordingCoverage(wanted=samples, taken=samples, sampler_cpu_s=0.5),
        failures=failures,
    )
    return RecordingPart(recording=recording, worker_ids=(thread.worker_id,))


def test_equal_stacks_are_added_and_others_are_kept() -> None:
    joined = JoinedRecording(EMPTY)
    for one in (part(FIRST, STEP, MAIN), part(SECOND, LOAD, MAIN), part(FIRST, STEP, MAIN, samples=4)):
        joined.add(one)
    found = joined.whole(2.5)

    assert [(c.thread, [f.function for f in found.frames_of(c)], c.samples) for c in found.counts] == [
        (0, ["step", "main"], 5),
        (1, ["load", "main"], 1),
    ]
    assert (found.threads, found.frames) == ((FIRST, SECOND), (STEP, MAIN, LOAD))
    assert found.coverage == RecordingCoverage(processes=2, wanted=6, taken=6, sampler_cpu_s=1.5)
    assert (found.duration_s, joined.in_words, found.coverage.processes) == (2.5, "6 samples", 2)
    assert RECORDINGS.loads(to_json(found)) == found


def test_the_lowest_rate_of_all_parts_is_kept() -> None:
    joined = JoinedRecording(EMPTY)
    for rate_hz in (20.0, 5.0, 10.0):
        one = part(FIRST, STEP)
        coverage = dataclasses.replace(one.recording.coverage, lowest_rate_hz=rate_hz)
        joined.add(replace(one, recording=replace(one.recording, coverage=coverage)))

    assert joined.whole(3).coverage.lowest_rate_hz == 5.0


def test_one_failure_of_a_process_is_kept_once() -> None:
    failure = Failure(stage="memory", reason="no permission", worker_id="a")
    joined = JoinedRecording(EMPTY)
    for _ in range(3):
        joined.add(part(FIRST, STEP, failures=(failure,)))

    assert joined.whole(1).failures == (failure,)


def test_further_stacks_are_only_counted_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_SIZE", 2)
    joined = JoinedRecording(EMPTY)
    for one in (part(FIRST, STEP, MAIN), part(FIRST, LOAD, MAIN, samples=3), part(FIRST, STEP, MAIN)):
        joined.add(one)
    found = joined.whole(1)

    assert [count.samples for count in found.counts] == [2]
    assert found.coverage.left_out == 3

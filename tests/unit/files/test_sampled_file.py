from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dstack.errors import SnapshotFileError, UsageError
from dstack.files import sampled_file
from dstack.files.document_file import to_json
from dstack.files.sampled_file import RECORDINGS
from dstack.model.recording import RecordedThread, Recording, RecordingOptions
from dstack.observed.node import Count, Failure, RecordingCoverage
from dstack.observed.processes import Frame

RECORDING = Recording(
    dstack_version="0.1.0",
    address="10.0.0.1:6379",
    ray_version="2.60.0",
    began_at=1_700_000_000.5,
    duration_s=2.0,
    rate_hz=20.0,
    options=RecordingOptions(idle=True, job_id="01000000"),
    frames=(Frame(function="step", file="train.py", line=3), Frame(function="main", file="train.py", line=9)),
    stacks=((0, 1), (1,)),
    threads=(
        RecordedThread(
            worker_id="a" * 56,
            node_id="b" * 56,
            pid=7,
            node="node 10.0.0.1",
            kind="actor Trainer",
            name="trainer",
            job_id="01000000",
            rank=3,
            os_thread_id=8,
            thread_name="MainThread",
        ),
    ),
    counts=(Count(thread=0, stack=0, samples=30), Count(thread=0, stack=1, samples=4, is_running=False)),
    coverage=RecordingCoverage(processes=1, wanted=40, taken=38, torn=1, cut=2, sampler_cpu_s=0.02),
    failures=(Failure(stage="stacks", reason="it ended", cause="ended", pid=9),),
)


@pytest.mark.parametrize("name", ["r.json", "r.json.gz"])
def test_a_saved_recording_loads_unchanged(tmp_path: Path, name: str) -> None:
    RECORDINGS.save(RECORDING, tmp_path / name)

    assert RECORDINGS.load(tmp_path / name) == RECORDING


def test_counts_take_little_space() -> None:
    assert b'"counts":[[0,0,30,true],[0,1,4,false]]' in to_json(RECORDING)


def test_the_frames_of_a_count_begin_with_the_leaf() -> None:
    assert [frame.function for frame in RECORDING.frames_of(RECORDING.counts[0])] == ["step", "main"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (replace(RECORDING, stacks=((0, 2), (1,))), "no such frame - at `$.stacks[0][1]`"),
        (replace(RECORDING, counts=(Count(thread=1, stack=0, samples=1),)), "no such thread - at `$.counts[0][0]`"),
        (replace(RECORDING, counts=(Count(thread=0, stack=2, samples=1),)), "no such stack - at `$.counts[0][1]`"),
        (replace(RECORDING, counts=(Count(thread=0, stack=0, samples=2**62),)), "the limit for a recording file"),
        (replace(RECORDING, counts=(Count(thread=0, stack=0, samples=-1),)), "at `$.counts[0][2]`"),
        (replace(RECORDING, schema="dstack.snapshot"), "has the schema dstack.snapshot, not dstack.recording"),
        (replace(RECORDING, version=(2, 0)), "this dstack reads format 1"),
    ],
)
def test_invalid_recordings_are_rejected(wrong: Recording, reason: str) -> None:
    assert reason in rejection(lambda: RECORDINGS.loads(to_json(wrong)))


def test_too_many_frames_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_file, "MAX_FRAMES", 2)

    assert "more than 2 frames" in rejection(lambda: RECORDINGS.loads(to_json(RECORDING)))


def test_a_file_of_a_newer_minor_version_is_read() -> None:
    text = to_json(replace(RECORDING, version=(1, 9))).replace(b'"rate_hz"', b'"new":1,"rate_hz"')

    assert RECORDINGS.loads(text).counts == RECORDING.counts


def test_existing_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("mine")

    with pytest.raises(UsageError, match="already exists"):
        RECORDINGS.save(RECORDING, path)
    assert path.read_text() == "mine"


def rejection(read: Callable[[], object]) -> str:
    with pytest.raises(SnapshotFileError) as raised:
        read()
    return raised.value.message

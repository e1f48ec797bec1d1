"""py-spy's JSON is parsed as typed threads or rejected, for any output; and processes are read through py-spy."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dstack.observed.calls import Call, HeldRefs, Unreadable
from dstack.observed.node import NodeAnswer
from dstack.probes.node import pyspy
from dstack.probes.node.node_figures import NodeFigures
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.process_values import ProcessValues
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import Families
from dstack.probes.node.procfs.open_files import KernelTables
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.pyspy import PySpy, PySpyReader, find_pyspy, threads_of
from dstack.probes.node.stability import UNPROVEN
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.system_calls import Surroundings
from dstack.probes.node.target_process import Problem, ProcessReading, ReadRequest, TargetProcess, ThreadReading
from dstack.probes.node.thread_stacks import CodePosition, PythonThread, TextFrame
from dstack.probes.node.wire import ReadTarget, SampleOptions, UnreadablePython
from dstack.probes.node_access.answers import validated
from dstack.probes.observations import Assembly
from tests.fuzzing.effort import tries
from tests.fuzzing.mutations import ByValues, by_bytes
from tests.sampling import OPTIONS

ORIGINS, FAMILIES = Origins(), Families([])
MUTATIONS = tries(4_000)
READ_BY_PROBE = tries(100)
PROGRAM = """
import asyncio, queue, threading
lock = threading.Lock(); lock.acquire()
async def sleep(): await asyncio.gather(asyncio.sleep(1000), asyncio.Event().wait())
def hold(value): lock.acquire()
for target in (queue.Queue().get, lambda: hold({"a": [1, "x"]}), lambda: asyncio.run(sleep())):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""
WITH_LOCALS: SampleOptions = {**OPTIONS, "locals": True, "deadline_s": 20.0}


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
        assert program.stdout
        assert program.stdout.readline() == b"ready\n"
        yield program
        program.kill()


@pytest.fixture(scope="module")
def dump(process: subprocess.Popen[bytes]) -> bytes:
    command = [find_pyspy() or "", "dump", "--json", "--locals", "--nonblocking", "--pid", str(process.pid)]
    return subprocess.run(command, capture_output=True, check=True).stdout


def mutated(dump: bytes, count: int) -> Iterator[bytes]:
    chance = random.Random(7)
    values = ByValues(dump)
    for number in range(count):
        yield values.one(chance) if number % 3 else by_bytes(dump, chance)


def test_a_dump_is_parsed_as_pyspy_prints_it(dump: bytes) -> None:
    printed = json.loads(dump)

    threads = threads_of(dump)

    assert len(threads) == len(printed) == 4
    for thread, as_printed in zip(threads, printed, strict=True):
        assert (thread.thread_id, thread.os_thread_id) == (as_printed["thread_id"], as_printed["os_thread_id"])
        assert (thread.name, thread.is_running) == (as_printed["thread_name"] or "", as_printed["active"])
        for frame, frame_as_printed in zip(thread.frames, as_printed["frames"], strict=True):
            position = frame.position
            assert (position.qualified, position.file) == (frame_as_printed["name"], frame_as_printed["filename"])
            assert (position.line, position.module) == (frame_as_printed["line"], frame_as_printed["module"])
            assert position.function == frame_as_printed["name"].rpartition(".")[2]
            variables = frame_as_printed["locals"] or ()
            assert frame.values == {one["name"]: one["repr"] or "" for one in variables}
            assert all(frame.has(one["name"]) for one in variables)
    assert any(frame.values for thread in threads for frame in thread.frames)


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"null",
            b"{}",
            b"[1]",
            b"[[]]",
            b'[{"frames": {}}]',
            b"[" * 10**6,
            b'{"a":' * 10**5,
            b"\xff",
            b"1" * 10**5,
        ),
        *(b'[{"thread_id": 1, "frames": [{"name": "f", "filename": "f", "line": 1e9}]}]',),
        *(b'[{"thread_id": 1, "frames": [{"name": "f", "filename": null, "line": 1}]}]',),
        *(b'[{"thread_id": true, "frames": []}]', b'[{"thread_id": -1, "frames": []}]'),
        *(b'[{"thread_id": 1, "os_thread_id": 4294967296, "frames": []}]', b'[{"thread_id": NaN, "frames": []}]'),
    ],
    ids=lambda data: data[:40].decode(errors="replace"),
)
def test_malformed_dumps_are_failures(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(data)
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\nexec cat {tmp_path}/data\n")
    fake.chmod(0o755)

    with pytest.raises(DumpFailed, match="the output of py-spy is malformed"):
        PySpy(str(fake)).dump(1, blocking=False, native=False, timeout_s=10)


def test_an_endless_dump_is_a_failure_in_little_memory(tmp_path: Path) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    fake.chmod(0o755)

    with pytest.raises(DumpFailed, match="has more than 128 MiB"):
        PySpy(str(fake)).dump(1, blocking=False, native=False, timeout_s=30)


def test_a_dump_that_writes_on_both_streams_is_read(tmp_path: Path) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nhead -c 300000 /dev/zero >&2\nhead -c 300000 /dev/zero | tr '\\0' ' '\necho '[]'\n")
    fake.chmod(0o755)

    assert PySpy(str(fake)).dump(1, blocking=False, native=False, timeout_s=30) == []


def test_names_are_bounded_and_encodable() -> None:
    frame = {
        "name": "\ud800" * 10,
        "filename": "x" * 10**6,
        "line": 1,
        "locals": [{"name": "v", "addr": 1, "repr": "y" * 10**6}],
    }

    (thread,) = threads_of(json.dumps([{"thread_id": 1, "thread_name": "é", "frames": [frame]}]).encode())

    json.dumps(dataclasses.asdict(thread), ensure_ascii=False).encode()
    assert len(thread.frames[0].position.file) == 4096
    assert len(thread.frames[0].values["v"]) == 1000


class Tool(PySpy):
    """A py-spy that has printed these threads."""

    def __init__(self, threads: list[PythonThread[TextFrame]]) -> None:
        super().__init__("py-spy")
        self._threads = threads

    def dump(self, pid: int, *, blocking: bool, native: bool, timeout_s: float) -> list[PythonThread[TextFrame]]:
        return self._threads


def answer_of(pid: int, threads: list[PythonThread[TextFrame]]) -> NodeAnswer:
    """The answer of a probe about a process that py-spy has read."""
    process = TargetProcess({"worker_id": "w", "pid": pid, "port": 0, "is_driver": True}, FAMILIES, KernelTables())
    process.figures = proc.figures(pid)
    request = process.request(WITH_LOCALS, time.monotonic() + 600)
    problem = Problem("memory", "not read", "permission")
    process.reading = PySpyReader(Tool(threads), request, ORIGINS).read(problem, has_calls=True)
    table = StackTable(ORIGINS, SourceFiles())
    processes = {"w": ProcessValues(table, NodeFigures()).process(process)}
    return NodeAnswer(
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
        sources=table.sources,
        processes=processes,
        clock=(1.0, 2.0),
    )


def test_mutations_are_threads_or_a_failure(dump: bytes, process: subprocess.Popen[bytes]) -> None:
    accepted = 0

    for data in mutated(dump, MUTATIONS):
        try:
            threads = threads_of(data)
        except ValueError:
            continue
        accepted += 1
        Assembly().add(["n"], validated(answer_of(process.pid, threads)), 1)

    assert MUTATIONS / 10 < accepted < MUTATIONS


def test_hostile_names_are_passed_on_up_to_the_bound(
    dump: bytes, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of a Python whose memory is unreadable, so that py-spy is the only reader."""
    python: UnreadablePython = {"unreadable": "another Python"}
    target: ReadTarget = {"worker_id": "w", "pid": process.pid, "port": 0, "is_driver": True, "python": python}
    probe = NodeProbe()

    for data in [data for data in mutated(dump, 5 * READ_BY_PROBE) if is_dump(data)][:READ_BY_PROBE]:
        done = subprocess.CompletedProcess([], 0, data, b"")
        monkeypatch.setattr(pyspy, "run", lambda *_, done=done, **__: done)
        processes, (failure,) = Assembly().add(["n"], validated(probe.sample([target], WITH_LOCALS)), 1)
        assert len(processes["w"].threads) == len(threads_of(data))
        assert processes["w"].access == "py-spy"
        assert failure.reason == "its memory could not be read: another Python"


def is_dump(data: bytes) -> bool:
    try:
        return bool(threads_of(data))
    except ValueError:
        return False


PID = TID = 7
GET = TextFrame(
    CodePosition("/x/site-packages/ray/_private/worker.py", "get_objects", "Worker.get_objects", 986), {"timeout": "-1"}
)
APP = TextFrame(CodePosition("/srv/app.py", "work", "work", 3))


class Dumps(PySpy):
    """A py-spy whose dumps show one thread in these frames in turn; the last ones repeat."""

    def __init__(self, *stacks: Sequence[TextFrame]) -> None:
        super().__init__("py-spy")
        self._stacks = list(stacks)
        self.count = 0

    def dump(self, pid: int, *, blocking: bool, native: bool, timeout_s: float) -> list[PythonThread[TextFrame]]:
        frames = self._stacks[min(self.count, len(self._stacks) - 1)]
        self.count += 1
        return [PythonThread(1, TID, "MainThread", frames, is_running=True)]


def read(tool: PySpy) -> ThreadReading:
    request = ReadRequest(PID, "", True, False, Surroundings(), OPTIONS, time.monotonic() + 60)
    reading: ProcessReading = PySpyReader(tool, request, Origins()).read(
        Problem("memory", "", "permission"), has_calls=True
    )
    (thread,) = reading.threads
    return thread


def marks(monkeypatch: pytest.MonkeyPatch, *, moves: bool) -> None:
    times: Iterator[int] = iter(range(1000))
    for name in ("marks_off_cpu", "marks_of"):
        monkeypatch.setattr(pyspy, name, lambda pid: {TID: str(next(times)) if moves else "still"})


def test_a_thread_that_did_not_run_has_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    marks(monkeypatch, moves=False)
    tool = Dumps([GET, APP])

    thread = read(tool)

    assert thread.call == Call(site="ray.get", frame=0, need=HeldRefs())
    assert (thread.is_stable, thread.is_torn, thread.thread.is_running) == (True, False, False)
    assert tool.count == 1


def test_a_thread_that_ran_each_time_in_the_same_call_may_be_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    marks(monkeypatch, moves=True)
    tool = Dumps([GET, APP])

    thread = read(tool)

    assert thread.call == Call(site="ray.get", frame=0, need=Unreadable(reason=UNPROVEN))
    assert (thread.is_stable, thread.is_torn) == (False, True)
    assert tool.count == pyspy.ATTEMPTS


@pytest.mark.parametrize("stacks", [([GET, APP], [APP], [GET, APP]), ([GET, APP], [GET, GET, APP])])
def test_a_thread_with_one_different_call_proceeds(
    monkeypatch: pytest.MonkeyPatch, stacks: tuple[Sequence[TextFrame], ...]
) -> None:
    marks(monkeypatch, moves=True)

    assert read(Dumps(*stacks)).call is None

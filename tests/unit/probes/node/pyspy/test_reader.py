"""A thread that did not run keeps the call that py-spy shows; one that ran has it only where nothing else was seen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from dstack.probes.node.blocked_calls.unproven import UNPROVEN
from dstack.probes.node.pyspy import reader
from dstack.probes.node.pyspy.reader import PySpyReader
from dstack.probes.node.pyspy.runner import PySpy
from dstack.probes.node.reading import Problem, ProcessReading, Request, ThreadReading
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.threads import Position, PythonThread, ShownFrame
from tests.sampling import OPTIONS

PID = TID = 7
GET = ShownFrame(
    Position("/x/site-packages/ray/_private/worker.py", "get_objects", "Worker.get_objects", 986), {"timeout": "-1"}
)
APP = ShownFrame(Position("/srv/app.py", "work", "work", 3))


class Dumps(PySpy):
    """A py-spy that shows one thread in these frames, dump by dump, and then again and again in the last ones."""

    def __init__(self, *stacks: Sequence[ShownFrame]) -> None:
        super().__init__("py-spy")
        self._stacks = list(stacks)
        self.count = 0

    def dump(self, pid: int, *, blocking: bool, native: bool, timeout_s: float) -> list[PythonThread[ShownFrame]]:
        frames = self._stacks[min(self.count, len(self._stacks) - 1)]
        self.count += 1
        return [PythonThread(1, TID, "MainThread", frames, is_running=True)]


def read(tool: PySpy) -> ThreadReading:
    request = Request(PID, "", True, False, lambda: (), None, OPTIONS, time.monotonic() + 60)
    reading: ProcessReading = PySpyReader(tool, request, Origins()).read(
        Problem("memory", "", "permission"), has_calls=True
    )
    (thread,) = reading.threads
    return thread


def marks(monkeypatch: pytest.MonkeyPatch, *, moves: bool) -> None:
    times: Iterator[int] = iter(range(1000))
    for name in ("marks_off_cpu", "marks_of"):
        monkeypatch.setattr(reader, name, lambda pid: {TID: str(next(times)) if moves else "still"})


def test_a_thread_that_did_not_run_has_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    marks(monkeypatch, moves=False)
    tool = Dumps([GET, APP])

    thread = read(tool)

    assert thread.call == {"kind": "ray.get", "frame": 0, "held": True, "timeout_s": None}
    assert (thread.is_still, thread.is_torn, thread.thread.is_running) == (True, False, False)
    assert tool.count == 1


def test_a_thread_that_ran_each_time_in_the_same_call_may_be_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    marks(monkeypatch, moves=True)
    tool = Dumps([GET, APP])

    thread = read(tool)

    assert thread.call == {"kind": "ray.get", "frame": 0, "unread": UNPROVEN}
    assert (thread.is_still, thread.is_torn) == (False, True)
    assert tool.count == reader.ATTEMPTS


@pytest.mark.parametrize("stacks", [([GET, APP], [APP], [GET, APP]), ([GET, APP], [GET, GET, APP])])
def test_a_thread_with_one_different_call_proceeds(
    monkeypatch: pytest.MonkeyPatch, stacks: tuple[Sequence[ShownFrame], ...]
) -> None:
    marks(monkeypatch, moves=True)

    assert read(Dumps(*stacks)).call is None

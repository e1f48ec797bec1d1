"""Library code that is assumed to stay idle, unless it waits for a socket or a timer."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.analysis.index.idle_libraries import is_idle_library
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model import BlockedCall, Frame, Snapshot, Thread
from tests.unit.scenes import Scene

THREADING = Frame(function="Condition.wait", file="/usr/lib/python3.11/threading.py", line=7, origin="stdlib")
SELECTORS = Frame(function="select", file="/usr/lib/python3.11/selectors.py", line=7, origin="stdlib")
LIBRARY = Frame(function="run", file="/usr/lib/python3/site-packages/tqdm/_monitor.py", line=7, origin="library")
RAYS = Frame(function="run", file="/usr/lib/python3/site-packages/ray/serve/controller.py", line=7, origin="ray")
USERS = Frame(function="run", file="/srv/app.py", line=7, origin="user")
GET = BlockedCall(kind="other", frame=0, what="queue.Queue.get")
WAIT = BlockedCall(kind="other", frame=0, what="threading.Event.wait", timeout_s=10.0)


def stays_idle(*frames: Frame, call: BlockedCall | None = None, name: str = "Thread-1", on_cpu: bool = False) -> bool:
    """Whether a thread with this stack, leaf first, is assumed to stay idle."""
    scene = Scene()
    worker = scene.driver().worker_id
    snapshot = scene.sample().second_sample().snapshot()
    thread = Thread(os_thread_id=7, name=name, stack=0, role="ray", call=call, on_cpu=on_cpu, still=not on_cpu)
    index = SampleIndex(_with(snapshot, frames, thread), snapshot.samples[0])
    return is_idle_library(index, worker, thread)


def _with(snapshot: Snapshot, frames: tuple[Frame, ...], thread: Thread) -> Snapshot:
    """The snapshot with these frames as its only stack, and this thread as the only one of each process."""

    samples = tuple(
        replace(
            sample,
            workers=tuple(
                replace(worker, process=worker.process and replace(worker.process, threads=(thread,), coroutines=()))
                for worker in sample.workers
            ),
        )
        for sample in snapshot.samples
    )
    return replace(snapshot, frames=frames, stacks=(tuple(range(len(frames))),), samples=samples)


@pytest.mark.parametrize(
    ("frames", "call", "name"),
    [
        ((THREADING, LIBRARY), WAIT, "Thread-1"),
        ((THREADING, LIBRARY), GET, "Thread-1"),
        ((RAYS, THREADING), None, "Thread-1"),
        ((THREADING,), GET, "Thread-1"),
        ((THREADING,), None, "Thread-2 (_poll_wrapper)"),
    ],
)
def test_a_library_wait_on_its_own_process_stays_idle(
    frames: tuple[Frame, ...], call: BlockedCall | None, name: str
) -> None:
    assert stays_idle(*frames, call=call, name=name)
    assert not stays_idle(*frames, call=call, name=name, on_cpu=True)


@pytest.mark.parametrize(
    ("frames", "call"),
    [
        ((SELECTORS, LIBRARY), None),
        ((SELECTORS,), None),
        ((LIBRARY,), None),
        ((THREADING,), WAIT),
        ((THREADING, USERS), GET),
        ((), None),
    ],
)
def test_a_library_wait_on_a_socket_or_timer_may_proceed(frames: tuple[Frame, ...], call: BlockedCall | None) -> None:
    assert not stays_idle(*frames, call=call)

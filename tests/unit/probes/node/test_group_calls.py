"""Threads that transfer tensors, and one that waits for some, in code with Ray's paths."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.subjects import of_thread
from dstack.analysis.naming.descriptions import in_words
from dstack.observed.calls import Call, Executions, GroupCall, ProcessGroup
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.group_calls import STORE_FILE, transferred, wait_for_tensors
from tests.unit.scenes import Scene
from tests.unit.support.own_process import own_process

STORE = """
def __ray_send__(gate, obj_id):
    gate.acquire()

def __ray_recv__(gate, obj_id):
    gate.acquire()

def _wait_object(gate, obj_id):
    is_there = lambda: obj_id
    gate.acquire()
"""
WANTED, OTHER = "ab" * 28, "cd" * 28
RAY: dict[str, Any] = {}
exec(compile(STORE, f"/lib{STORE_FILE}", "exec"), RAY)


@contextmanager
def in_functions(*calls: tuple[str, str]) -> Iterator[tuple[PythonProcess, Sequence[MemoryThread]]]:
    """Threads as read from memory, in these functions, each with the id of an object."""
    gates = [threading.Lock() for _ in calls]
    with ExitStack() as held:
        threads = []
        for gate, (function, object_id) in zip(gates, calls, strict=True):
            held.enter_context(gate)  # the thread acquires it at the end, so that this can release it
            threads.append(threading.Thread(target=RAY[function], args=(gate, object_id)))
            threads[-1].start()
        try:
            with shown(threads, [function for function, _ in calls]) as found:
                yield found
        finally:
            for gate, thread in zip(gates, threads, strict=True):
                gate.release()
                thread.join()


@contextmanager
def shown(
    threads: Sequence[threading.Thread], functions: Sequence[str]
) -> Iterator[tuple[PythonProcess, Sequence[MemoryThread]]]:
    """All threads, once each is in its function."""
    while all(thread.is_alive() for thread in threads):
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            process = own_process(memory)
            by_id = {one.os_thread_id: one for one in process.threads if one.frames}
            found = [by_id[thread.native_id] for thread in threads if thread.native_id in by_id]
            if [one.frames[0].function for one in found] == functions:
                yield process, found
                return
    raise AssertionError("a thread has ended")


def wait(*calls: tuple[str, str], is_user: bool = False) -> tuple[Call | None, list[int]]:
    """The wait of the first of these threads, and the ids of all threads."""
    with in_functions(*calls) as (process, threads):
        found = wait_for_tensors(process.objects, threads[0].frames, threads, lambda _: is_user)
        return found, [one.os_thread_id for one in threads]


def test_a_wait_for_tensors_depends_on_the_receiving_thread() -> None:
    call, ids = wait(("_wait_object", WANTED), ("__ray_send__", WANTED), ("__ray_recv__", WANTED))

    name = "Ray Direct Transport of ObjectRef abababab"
    assert call == Call(site="ray.direct_transport", name=name, frame=0, need=Executions(threads=(ids[2],)))


def test_a_queued_transfer_depends_on_the_thread_in_another_transfer() -> None:
    call, ids = wait(("_wait_object", WANTED), ("__ray_send__", OTHER))

    assert call is not None
    assert call.threads == (ids[1],)


def test_a_wait_without_a_transfer_or_in_user_code_is_unknown() -> None:
    assert wait(("_wait_object", WANTED))[0] is None
    assert wait(("_wait_object", WANTED), ("__ray_recv__", WANTED), is_user=True)[0] is None
    assert wait(("__ray_recv__", WANTED))[0] is None


def test_the_frames_of_a_transfer_name_its_object() -> None:
    with in_functions(("__ray_send__", OTHER), ("_wait_object", WANTED)) as (process, (sender, waiter)):
        assert transferred(process.objects, sender.frames) == OTHER
        assert transferred(process.objects, waiter.frames) == ""


def test_a_transfer_is_named_by_its_object() -> None:
    scene = Scene()
    actor = scene.actor("Worker")
    actor.runs(scene.call(actor, "__ray_call__", by=scene.driver()))
    group = ProcessGroup(library="ray.util.collective", world="", name="first", rank=0, ranks=(0, 1))
    of_group = GroupCall(operation="send", group=group, peer=1, transfer=OTHER)
    actor.threads[0].call = Call(site="ray.util.collective.send", frame=0, need=of_group)
    snapshot = scene.snapshot()

    index = SampleIndex(snapshot, snapshot.samples[0])
    thread = index.threads(actor.worker_id)[0]
    assert in_words(of_thread(index, actor.worker_id, thread, None)) == "send of tensors cdcdcdcd"

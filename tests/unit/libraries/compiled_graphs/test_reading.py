"""A thread in the loop of a compiled graph in this process, in code with Ray's names and paths."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dstack.libraries.compiled_graphs import READ, WRITE
from dstack.libraries.compiled_graphs.reading import completed, stages_of
from dstack.observed.calls import Call, ChannelCall, ProcessObject, Refs
from dstack.observed.processes import GraphChannel
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from tests.unit.support.own_process import own_process

WORKER = """
def get_objects(gate):
    gate.acquire()
"""

CHANNELS = """
class BufferedSharedMemoryChannel:
    _num_shm_buffers = 2
    def __init__(self):
        self._buffers = []
        self._num_shm_buffers = 2

class CompositeChannel:
    def __init__(self):
        self._writer = None
        self._reader_and_node_list = []
        self._channels = {BufferedSharedMemoryChannel()}

    def read(self, gate):
        get_objects(gate)

    def write(self, gate):
        gate.acquire()
"""

ENDS = """
class SynchronousReader:
    def __init__(self, channels):
        self._input_channels = channels
        self._num_reads = 3

    def _read_list(self, gate, timeout=None):
        done_channels = {self._input_channels[0]}
        left = [c for c in self._input_channels if c not in done_channels]
        timeout = float("inf") if timeout is None else timeout
        left[0].read(gate)

class SynchronousWriter:
    def __init__(self, channels):
        self._output_channels = channels
        self._num_writes = 4

    def write(self, val, timeout=None):
        for i, channel in enumerate(self._output_channels):
            channel.write(val)
"""

GRAPH = """
class ExecutableTask:
    def __init__(self, name, reader, writer):
        self.method_name, self.input_reader, self.output_writer = name, reader, writer

    def exec_operation(self, gate, timeout, is_write):
        if is_write:
            self.output_writer.write(gate, timeout)
        else:
            self.input_reader._read_list(gate, timeout)

def do_exec_tasks(tasks, gate, timeout, is_write):
    tasks[1].exec_operation(gate, timeout, is_write)

def run(outer, gate):
    get_objects(gate)
"""

FILES = {
    "/lib/ray/_private/worker.py": WORKER,
    "/lib/ray/experimental/channel/shared_memory_channel.py": CHANNELS,
    "/lib/ray/experimental/channel/common.py": ENDS,
    "/lib/ray/dag/compiled_dag_node.py": GRAPH,
}


@pytest.fixture(scope="module")
def ray() -> dict[str, Any]:
    """The names of that code."""
    names: dict[str, Any] = {}
    for file, text in FILES.items():
        exec(compile(text, file, "exec"), names)
    return names


@contextmanager
def in_function(function: Any, *arguments: Any) -> Iterator[tuple[PythonProcess, MemoryThread]]:
    """A thread as read from memory, in a function that waits for a locked lock until the end."""
    gate = threading.Lock()
    with gate:
        thread = threading.Thread(target=function, args=(*arguments[:1], gate, *arguments[1:]))
        thread.start()
        try:
            with read_from_memory(thread) as shown:
                yield shown
        finally:
            gate.release()  # the thread acquires it then, and the end of the block releases it
            thread.join()


@contextmanager
def read_from_memory(thread: threading.Thread) -> Iterator[tuple[PythonProcess, MemoryThread]]:
    while thread.is_alive():
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            process = own_process(memory)
            found = next((one for one in process.threads if one.os_thread_id == thread.native_id), None)
            if found and found.frames and found.frames[0].function in ("get_objects", "write"):
                yield process, found
                return
    raise AssertionError("the thread has ended")


def graph(ray: dict[str, Any]) -> list[Any]:
    """Two stages; the second has two inputs and has read the first."""
    channels = [ray["CompositeChannel"]() for _ in range(4)]
    ends = [(channels[:1], channels[1:2]), (channels[1:3], channels[3:])]
    return [
        ray["ExecutableTask"](f"stage{number}", ray["SynchronousReader"](reads), ray["SynchronousWriter"](writes))
        for number, (reads, writes) in enumerate(ends)
    ]


def test_the_stages_of_a_loop_are_read_with_their_channels_and_counts(ray: dict[str, Any]) -> None:
    with in_function(ray["do_exec_tasks"], graph(ray), None, False) as (process, thread):
        stages = stages_of(process.objects, [thread])

    assert [(one.method, one.is_current, one.reads, one.writes) for one in stages] == [
        ("stage0", False, 3, 4),
        ("stage1", True, 3, 4),
    ]
    assert {one.os_thread_id for one in stages} == {thread.os_thread_id}
    assert [len(one.inputs) for one in stages] == [1, 2]
    assert stages[1].outputs == (GraphChannel(writer="", buffers=2),)


def test_a_read_waits_for_the_missing_inputs(ray: dict[str, Any]) -> None:
    known = Call(site=READ.id, frame=1, need=ProcessObject())
    with in_function(ray["do_exec_tasks"], graph(ray), None, False) as (process, thread):
        call = completed(process.objects, thread.frames, known)
        stages = stages_of(process.objects, [thread])

    assert call is not None
    assert call.need == ChannelCall(end=stages[1].reader, is_write=False, count=3, pending=(1,))
    assert thread.frames[call.frame].function == "_read_list"


def test_the_timeout_of_a_read_is_read(ray: dict[str, Any]) -> None:
    with in_function(ray["do_exec_tasks"], graph(ray), 10.0, False) as (process, thread):
        call = completed(process.objects, thread.frames, Call(site=READ.id, frame=1, need=ProcessObject()))

    assert call is not None
    assert isinstance(call.need, ChannelCall)
    assert call.need.fails_after_s == 10.0
    assert call.timeout_s is None


def test_a_write_without_a_timeout_waits_only_where_the_kernel_shows_it_asleep(ray: dict[str, Any]) -> None:
    with in_function(ray["do_exec_tasks"], graph(ray), None, True) as (process, thread):
        asleep = completed(process.objects, thread.frames, Call(site=WRITE.id, frame=0, need=ProcessObject()))
        awake = completed(process.objects, thread.frames, None)

    assert awake is None
    assert asleep is not None
    assert isinstance(asleep.need, ChannelCall)
    assert (asleep.need.is_write, asleep.need.count, asleep.need.pending) == (True, 4, (0,))


def test_a_call_outside_of_channels_is_unchanged(ray: dict[str, Any]) -> None:
    known = Call(site="ray.get", frame=0, need=Refs())
    with in_function(ray["run"], None) as (process, thread):
        assert completed(process.objects, thread.frames, known) is known
        assert stages_of(process.objects, [thread]) == []  # None is no graph


def test_a_loop_with_unknown_stages_is_none(ray: dict[str, Any]) -> None:
    class Other:
        def exec_operation(self, gate: Any, timeout: Any, is_write: bool) -> None:
            ray["get_objects"](gate)

    with in_function(ray["do_exec_tasks"], [Other(), Other()], None, False) as (process, thread):
        assert stages_of(process.objects, [thread]) == []

"""The ends of a message queue in this process, and threads that wait at them, in code with vLLM's names and paths."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dstack.libraries.vllm import READ, WRITE
from dstack.libraries.vllm.reading import MODULE, completed, queue_ends
from dstack.observed.calls import Call, ProcessObject, QueueCall
from dstack.observed.processes import QueueEnd
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.procfs.open_files import KernelTables
from tests.paths import PROGRAMS
from tests.unit.support.own_process import own_process

SOURCE = PROGRAMS / "vllm/distributed/device_communicators/shm_broadcast.py"
OTHER = Call(site="kernel.call", frame=0, need=ProcessObject())


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, whose waiting ends sleep at a gate until the test has ended; then they wait no more."""
    module: Any = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    exec(compile(SOURCE.read_text(), f"/lib/{SOURCE.relative_to(PROGRAMS)}", "exec"), vars(module))
    module.pause = at_gate(gate := threading.Event())
    module.opened, module.threads = [], []
    yield module
    gate.set()
    for thread in module.threads:
        thread.join()
    for queue in module.opened:
        queue.buffer.shared_memory.close()
        if queue._is_writer:
            queue.buffer.shared_memory.unlink()


def at_gate(gate: threading.Event) -> Callable[[], None]:
    def pause() -> None:
        gate.wait()
        raise TimeoutError

    return pause


def opened(vllm: Any, readers: int, **known: Any) -> list[Any]:
    """The writer of a queue, and its readers."""
    writer = vllm.MessageQueue(readers, **known)
    ends = [vllm.MessageQueue.create_from_handle(writer.handle, rank) for rank in writer.handle.local_reader_ranks]
    vllm.opened += [*ends, writer]
    return [writer, *ends]


@contextmanager
def waiting(
    vllm: Any, function: Callable[..., object], *arguments: Any
) -> Iterator[tuple[PythonProcess, MemoryThread]]:
    """A thread as read from memory, in a function that waits at an end of a queue."""
    reached = threading.Event()
    pause = vllm.pause

    def announced() -> None:
        reached.set()
        pause()

    def run() -> None:
        with suppress(TimeoutError):
            function(*arguments)

    vllm.pause = announced
    thread = threading.Thread(target=run, daemon=True)
    vllm.threads.append(thread)
    thread.start()
    assert reached.wait(30)
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        process = own_process(memory)
        yield process, next(one for one in process.threads if one.os_thread_id == thread.native_id)


def call_in(vllm: Any, function: Callable[..., object], *arguments: Any) -> Call | None:
    with waiting(vllm, function, *arguments) as (process, thread):
        inside = [at for at, frame in enumerate(thread.frames) if frame.function == "pause"][
            -1
        ] + 2  # and ``announced``
        return completed(process.objects, thread.frames[inside:], OTHER, KernelTables())


def need_of(call: Call | None) -> QueueCall:
    assert call is not None
    assert isinstance(call.need, QueueCall)
    return call.need


def test_a_reader_waits_for_a_message_that_is_not_written(vllm: Any) -> None:
    writer, *readers = opened(vllm, 2)
    for message in range(3):
        writer.enqueue(message)
        readers[0].dequeue()
    readers[1].dequeue()

    call = call_in(vllm, readers[0].dequeue)

    need = need_of(call)
    assert call
    assert (call.site, call.frame) == (READ.id, 2)  # below dequeue and the context manager
    assert (need.name, need.rank, need.ranks) == (writer.buffer.shared_memory.name, 0, (0, 1))
    assert (need.unread, need.late, need.is_ready, need.is_unlinked) == ((0, 2), (), False, False)
    assert need.began > 0
    assert {holder.pid for holder in need.holders} == {os.getpid()}


def test_a_reader_of_a_ring_that_has_been_written_all_around_waits(vllm: Any) -> None:
    writer, reader = opened(vllm, 1)
    for message in range(9):
        writer.enqueue(message)
        reader.dequeue()

    need = need_of(call_in(vllm, reader.dequeue))

    assert (need.unread, need.is_ready) == ((0,), False)


def test_a_reader_with_a_message_only_has_to_read_it(vllm: Any) -> None:
    writer, reader = opened(vllm, 1)
    with waiting(vllm, reader.dequeue) as (process, thread):
        writer.enqueue("late")
        frames = [frame for frame in thread.frames if not frame.function.endswith(("pause", "announced", "wait"))]
        need = need_of(completed(process.objects, frames, None, KernelTables()))

    assert (need.is_ready, need.unread) == (True, (1,))


def test_a_writer_waits_for_the_readers_that_are_late(vllm: Any) -> None:
    writer, *readers = opened(vllm, 3, local_reader_ranks=[1, 2, 5])
    for message in range(4):
        writer.enqueue(message)
        readers[0].dequeue()
    readers[2].dequeue()

    call = call_in(vllm, writer.enqueue, "one more", 600.0)

    need = need_of(call)
    assert call
    assert call.site == WRITE.id
    assert (need.rank, need.ranks, need.unread, need.late) == (None, (1, 2, 5), (0, 4, 3), (2,))
    assert (need.fails_after_s, call.timeout_s) == (600.0, None)


def test_a_short_timeout_is_the_programs(vllm: Any) -> None:
    _, reader = opened(vllm, 1)

    call = call_in(vllm, reader.dequeue, 5.0)

    assert call
    assert (need_of(call).fails_after_s, call.timeout_s) == (None, 5.0)


def test_a_queue_whose_name_was_removed_is_unlinked(vllm: Any) -> None:
    _, reader = opened(vllm, 1)
    os.unlink(f"/dev/shm/{reader.buffer.shared_memory.name}")

    need = need_of(call_in(vllm, reader.dequeue))

    assert need.is_unlinked
    open(f"/dev/shm/{need.name}", "w").close()  # for the fixture, which removes it


@pytest.mark.parametrize(
    "change",
    [
        {"max_chunks": 5},
        {"n_reader": 0},
        {"n_reader": 1 << 20},
        {"metadata_offset": 3},
        {"max_chunk_bytes": None},
        {"shared_memory": None},
        {"shared_memory": "text"},
    ],
)
def test_a_ring_whose_sizes_do_not_fit_is_no_wait(vllm: Any, change: dict[str, Any]) -> None:
    _, reader = opened(vllm, 1)
    known = dict(vars(reader.buffer))
    with waiting(vllm, reader.dequeue) as (process, thread):
        vars(reader.buffer).update(change)
        frames = thread.frames[next(at for at, one in enumerate(thread.frames) if one.function == "acquire_read") :]
        call = completed(process.objects, frames, OTHER, KernelTables())
        vars(reader.buffer).update(known)

    assert call is OTHER


def test_bytes_that_are_no_flags_are_no_wait(vllm: Any) -> None:
    writer, reader = opened(vllm, 1)
    writer.buffer.flags(2)[1] = 7

    assert call_in(vllm, reader.dequeue) is OTHER


def test_other_calls_are_unchanged(vllm: Any) -> None:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        process = own_process(memory)
        frames = next(one.frames for one in process.threads if one.os_thread_id == threading.get_native_id())

        assert completed(process.objects, frames, OTHER, KernelTables()) is OTHER
        assert completed(process.objects, [], None, KernelTables()) is None


class Executor:
    """Has ends of queues as vLLM's executors have them."""

    def __init__(self, writer: Any, readers: list[Any]) -> None:
        self.rpc_broadcast_mq, self.response_mqs = writer, readers


def step(engine: Any, reader: Any) -> None:
    assert engine
    reader.dequeue()


def test_the_ends_that_variables_lead_to_are_found(vllm: Any) -> None:
    writer, *readers = opened(vllm, 3, local_reader_ranks=[0, 4, 7])
    engine = types.SimpleNamespace(executor=Executor(writer, readers[1:]))
    name = writer.buffer.shared_memory.name
    with waiting(vllm, step, engine, readers[0]) as (process, _):
        found = queue_ends(process)

    assert {one for one in found if one.name == name} == {QueueEnd(name=name, rank=rank) for rank in (None, 0, 4, 7)}


def test_without_vllm_nothing_is_searched(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = opened(vllm, 1)
    monkeypatch.delitem(sys.modules, MODULE)
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        assert queue_ends(own_process(memory)) == ()
    assert ends

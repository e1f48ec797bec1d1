"""The compiled graphs (``ray.dag``) in a process's memory: stages, the channels between them, and waits in channels.

A stage is a method of an actor: a thread of the actor's process is in a loop that reads its input, calls the method and
writes its output. The process that compiled the graph, its driver, writes the first input and reads the last output; a
thread that watches over the loops has the graph in its frame.

A thread waits in a channel for a value, or for room for one. Such a wait may use the CPU all the time: with a timeout,
Ray polls the shared memory, and a stage reads in a loop with a timeout of 0.1 s. But each end of a channel counts its
reads or writes, so two readings with the same count show the same wait. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dstack.libraries.compiled_graphs import CHANNEL_FILE, EXECUTE, FUTURE, GET, GET_FILE, READ, WRITE
from dstack.observed.calls import Call, ChannelCall
from dstack.observed.processes import GraphChannel, GraphStage
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import MemoryThread
from dstack.probes.node.ray_memory import actor_of_handle, object_refs
from dstack.probes.node.stacks.origins import RAY_WORKER_FILE
from dstack.probes.node.thread_stacks import function_of, is_in

GRAPH_FILE = "/ray/dag/compiled_dag_node.py"
LOOPS = ("do_exec_tasks", "do_profile_tasks")
"""The functions of an actor's loop; their local ``tasks`` has the stages, in no particular order of time."""
OPERATION = "exec_operation"
MONITOR = "run"
"""What the thread ``CompiledGraphMonitorThread`` is in; the local ``outer`` of its ``run`` is the graph."""

CACHED, BUFFERED, SHARED = "CachedChannel", "BufferedSharedMemoryChannel", "Channel"
MAX_STAGES, MAX_CHANNELS, MAX_READERS, MAX_BUFFERS = 64, 32, 64, 4
CHANNELS = "/ray/experimental/channel/"
ENDS_FILE = f"{CHANNELS}common.py"
READS = ("_read_list", "release_channel_buffers", "_run")
READER_TYPES = ("SynchronousReader", "AwaitableBackgroundReader")
WRITER = "SynchronousWriter"
COPIED_AT_ONCE = 1 << 24
"""So many bytes are copied in a few milliseconds."""
OF_DRIVER = {GET_FILE: ("get", GET), GRAPH_FILE: ("execute", EXECUTE)}
"""The outermost functions of Ray's in a driver, by file, with their sites."""


def stages_of(objects: Objects, threads: Iterable[MemoryThread]) -> list[GraphStage]:
    """The stages that run in a process, and for each graph that it has compiled one without a method."""
    found: list[GraphStage] = []
    for thread in threads:
        for frame in thread.frames:
            with contextlib.suppress(UnreadableMemory):
                if is_in(frame, GRAPH_FILE, *LOOPS):
                    found.extend(_of_loop(objects, thread, frame))
                elif is_in(frame, GRAPH_FILE, MONITOR) and (graph := frame.local("outer")):
                    found.append(_of_driver(objects, graph))
    return found[:MAX_STAGES]


def _of_loop(objects: Objects, thread: MemoryThread, loop: MemoryFrame) -> Iterator[GraphStage]:
    """The stages of one actor in one graph."""
    current = [frame.local("self") for frame in thread.frames if is_in(frame, GRAPH_FILE, OPERATION)]
    for task in objects.items(loop.local("tasks"), MAX_STAGES):
        objects.expect(task, "ExecutableTask")
        attributes = objects.attributes(task)
        yield replace(
            _stage(objects, attributes.get("input_reader", 0), attributes.get("output_writer", 0)),
            method=objects.text(attributes.get("method_name", 0)),
            os_thread_id=thread.os_thread_id,
            is_current=task in current,
        )


def _of_driver(objects: Objects, graph: int) -> GraphStage:
    """The driver of a graph, which writes its inputs and reads its outputs.

    It may drop a result without reading it, which counts as read.
    """
    attributes = objects.attributes(graph)
    stage = _stage(objects, attributes.get("_dag_output_fetcher", 0), attributes.get("_dag_submitter", 0))
    finished = count_of(objects, attributes.get("_max_finished_execution_index", 0), least=-1)
    return replace(stage, reads=max(stage.reads, finished + 1))


def _stage(objects: Objects, reader: int, writer: int) -> GraphStage:
    reads, writes = objects.attributes(reader), objects.attributes(writer)
    return GraphStage(
        method="",
        os_thread_id=0,
        reader=hex(reader),
        writer=hex(writer),
        inputs=tuple(_channel(objects, one) for one in channels_of(objects, reads, "_input_channels")),
        outputs=tuple(_channel(objects, one) for one in channels_of(objects, writes, "_output_channels")),
        reads=count_of(objects, reads.get("_num_reads", 0)),
        writes=count_of(objects, writes.get("_num_writes", 0)),
    )


def channels_of(objects: Objects, attributes: dict[str, int], name: str) -> Sequence[int]:
    """The addresses of the channels of a reader or writer. Raises :class:`UnreadableMemory`, also for too many."""
    channels = objects.items(attributes.get(name, 0), MAX_CHANNELS + 1)
    if len(channels) > MAX_CHANNELS:
        raise UnreadableMemory(f"more than {MAX_CHANNELS} channels")
    return channels


def count_of(objects: Objects, address: int, least: int = 0) -> int:
    """A count of reads, writes or places. Raises :class:`UnreadableMemory`."""
    value = objects.number(address)
    if value is None or not least <= value < 1 << 53 or value != int(value):
        raise UnreadableMemory(f"{value} is not a count")
    return int(value)


def _channel(objects: Objects, address: int) -> GraphChannel:
    """A channel: its writer, its readers, and the refs of its values in shared memory, if it uses that.

    ``buffers`` is 0 if the capacity is unknown: the channel may be of an unknown kind.
    """
    if objects.is_a(address, CACHED):
        address = objects.find_attribute(address, "_inner_channel")
    attributes = objects.attributes(address)
    several = attributes.get("_reader_and_node_list")
    if several is None:  # values that stay in their process
        return GraphChannel(writer="")
    readers = [objects.items(one)[0] for one in objects.items(several, MAX_READERS)]
    parts = objects.set_items(attributes["_channels"]) if "_channels" in attributes else ()
    shared = [part for part in parts if objects.is_a(part, BUFFERED) or objects.is_a(part, SHARED)]
    return GraphChannel(
        writer=_actor(objects, attributes.get("_writer", 0)),
        readers=tuple(_actor(objects, one) for one in readers),
        refs=tuple(sorted({ref for part in shared for ref in _refs(objects, part)})),
        buffers=min((_buffers(objects, part) for part in shared), default=0),
    )


def _actor(objects: Objects, handle: int) -> str:
    """The id of the actor of a handle; empty for None, which means the driver."""
    return "" if objects.is_a(handle, "NoneType") else actor_of_handle(objects, handle)


def _buffers(objects: Objects, part: int) -> int:
    """The maximum number of unread values in a part of a channel."""
    if not objects.is_a(part, BUFFERED):
        return 1
    return count_of(objects, objects.attribute(part, "_num_shm_buffers"), least=1)


def _refs(objects: Objects, part: int) -> Iterator[str]:
    """The ids of a part's objects in shared memory; larger ones replace them when values grow."""
    buffers = (
        objects.items(objects.attribute(part, "_buffers"), MAX_BUFFERS) if objects.is_a(part, BUFFERED) else (part,)
    )
    for buffer in buffers:
        attributes = objects.attributes(buffer)
        refs = (attributes.get(name, 0) for name in ("_writer_ref", "_local_reader_ref"))
        yield from object_refs(objects, [ref for ref in refs if ref and not objects.is_a(ref, "NoneType")])


def completed(objects: Objects, frames: Sequence[MemoryFrame], call: Call | None, actor_id: str = "") -> Call | None:
    """The call with its dependency, if the thread is in a channel; any other call unchanged.

    A write without a timeout sleeps in the kernel, so its call is known; a write with a timeout does not.
    """
    at = _end_of_channel(frames)
    if at is None:
        return call
    with contextlib.suppress(UnreadableMemory):
        is_write = function_of(frames[at]) == "write"
        found = _write(objects, frames[at]) if is_write else _read(objects, frames[at])
        if is_write and call is None and not _waits_without_sleep(objects, frames[0], found):
            return None
        return _named(objects, frames, at, found)
    return call


def awaited(objects: Objects, frames: Sequence[MemoryFrame], actor_id: str = "") -> Call | None:
    """The wait of a coroutine that awaits the result of ``execute_async``; None for any other.

    A thread of Ray's reads the results in order. Raises :class:`UnreadableMemory`.
    """
    if not frames or not is_in(frames[0], GET_FILE, "__await__"):
        return None
    result = frames[0].local("self")
    objects.expect(result, "CompiledDAGFuture")
    reader = objects.attribute(objects.attribute(result, "_dag"), "_dag_output_fetcher")
    objects.expect(reader, *READER_TYPES)
    inputs = channels_of(objects, objects.attributes(reader), "_input_channels")
    channel = ChannelCall(
        end=hex(reader),
        is_write=False,
        count=count_of(objects, objects.attribute(result, "_execution_index")),
        pending=tuple(range(len(inputs))),
    )
    return Call(site=FUTURE.id, frame=0, need=channel)


def _end_of_channel(frames: Sequence[MemoryFrame]) -> int | None:
    """The index of the frame of the reader or writer that the thread is in; inner frames are the channel's."""
    for at, frame in enumerate(frames):
        if is_in(frame, ENDS_FILE, *READS) or (is_in(frame, ENDS_FILE, "write") and frame.has("val")):
            return at
        is_leaf = at == 0 and (is_in(frame, RAY_WORKER_FILE, "get_objects") or is_in(frame, CHANNEL_FILE, "write"))
        if not is_leaf and CHANNELS not in frame.file:
            return None
    return None


def _read(objects: Objects, frame: MemoryFrame) -> ChannelCall:
    """The channels from which a reader needs a value; it polls them in turn."""
    reader = frame.local("self")
    objects.expect(reader, *READER_TYPES)
    attributes = objects.attributes(reader)
    done = objects.set_items(frame.local("done_channels")) if frame.has("done_channels") else ()
    channels = channels_of(objects, attributes, "_input_channels")
    return ChannelCall(
        end=hex(reader),
        is_write=False,
        count=count_of(objects, attributes.get("_num_reads", 0)),
        pending=tuple(place for place, channel in enumerate(channels) if channel not in done),
        fails_after_s=_timeout_s(objects, frame),
    )


def _waits_without_sleep(objects: Objects, leaf: MemoryFrame, found: ChannelCall) -> bool:
    """Whether a write that does not sleep waits for room: it has a timeout, and its values are small."""
    kind = objects.attribute(leaf.local("self"), "_typ")
    size = objects.number(objects.attribute(kind, "buffer_size_bytes"))
    return found.fails_after_s is not None and size is not None and size <= COPIED_AT_ONCE


def _write(objects: Objects, frame: MemoryFrame) -> ChannelCall:
    """The channel that a writer waits for; it writes to its channels one after another."""
    writer = frame.local("self")
    objects.expect(writer, WRITER)
    return ChannelCall(
        end=hex(writer),
        is_write=True,
        count=count_of(objects, objects.attribute(writer, "_num_writes")),
        pending=(count_of(objects, frame.local("i")),),
        fails_after_s=_timeout_s(objects, frame),
    )


def _timeout_s(objects: Objects, frame: MemoryFrame) -> float | None:
    """The timeout of the end of a channel, None if it is None, -1 or infinite."""
    if not frame.has("timeout"):
        return None
    timeout = objects.number(frame.local("timeout"))
    return timeout if timeout is not None and 0 <= timeout < math.inf else None


def _named(objects: Objects, frames: Sequence[MemoryFrame], at: int, channel: ChannelCall) -> Call:
    """The wait, named by Ray's outermost function, with the timeout that the program passed.

    The default timeout of the graph is not included: it ends the wait with an error that the program did not request.
    """
    for index in range(at + 1, len(frames)):
        frame = frames[index]
        for file, (function, site) in OF_DRIVER.items():
            if is_in(frame, file, function):
                own = objects.number(frame.local("timeout")) if file == GET_FILE else None
                timeout_s = own if own is not None and own >= 0 else None
                return Call(site=site.id, frame=index, need=channel, timeout_s=timeout_s)
    return Call(site=(WRITE if channel.is_write else READ).id, frame=at, need=channel)

"""The compiled graphs (``ray.dag``) in a process's memory: its stages, and the channels between them.

A stage is a method of an actor: a thread of the actor's process is in a loop that reads its input, calls the method and
writes its output. The process that compiled the graph, its driver, writes the first input and reads the last output; a
thread that watches over the loops has the graph in its frame. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dstack.observed import GraphChannel, GraphStage
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.process import MemoryThread
from dstack.probes.node.ray.ids import actor_of_handle
from dstack.probes.node.ray.object_refs import object_refs
from dstack.probes.node.threads import is_in

GRAPH_FILE = "/ray/dag/compiled_dag_node.py"
LOOPS = ("do_exec_tasks", "do_profile_tasks")
"""The functions of an actor's loop; their local ``tasks`` has the stages, in no particular order of time."""
OPERATION = "exec_operation"
MONITOR = "run"
"""What the thread ``CompiledGraphMonitorThread`` is in; the local ``outer`` of its ``run`` is the graph."""

CACHED, BUFFERED, SHARED = "CachedChannel", "BufferedSharedMemoryChannel", "Channel"
MAX_STAGES, MAX_CHANNELS, MAX_READERS, MAX_BUFFERS = 64, 32, 64, 4


def stages_of(objects: Objects, threads: Iterable[MemoryThread]) -> list[GraphStage]:
    """The stages that run in a process, and for each graph that it has compiled one without a method."""
    found: list[GraphStage] = []
    for thread in threads:
        for frame in thread.frames:
            with contextlib.suppress(Unreadable):
                if is_in(frame, GRAPH_FILE, *LOOPS):
                    found.extend(_of_loop(objects, thread, frame))
                elif is_in(frame, GRAPH_FILE, MONITOR) and (graph := frame.local("outer")):
                    found.append(_of_driver(objects, graph))
    return found[:MAX_STAGES]


def _of_loop(objects: Objects, thread: MemoryThread, loop: Frame) -> Iterator[GraphStage]:
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
    """The addresses of the channels of a reader or writer. Raises :class:`Unreadable` also where they are too many."""
    channels = objects.items(attributes.get(name, 0), MAX_CHANNELS + 1)
    if len(channels) > MAX_CHANNELS:
        raise Unreadable(f"more than {MAX_CHANNELS} channels")
    return channels


def count_of(objects: Objects, address: int, least: int = 0) -> int:
    """A count of reads, writes or places. Raises :class:`Unreadable`."""
    value = objects.number(address)
    if value is None or not least <= value < 1 << 53 or value != int(value):
        raise Unreadable(f"{value} is not a count")
    return int(value)


def _channel(objects: Objects, address: int) -> GraphChannel:
    """A channel: its writer, its readers, and the refs of its values in shared memory, if it uses that.

    ``buffers`` is 0 if the capacity is unknown: the channel may be of an unknown kind.
    """
    if objects.is_a(address, CACHED):
        address = objects.attributes(address).get("_inner_channel", 0)
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

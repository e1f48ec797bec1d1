"""A thread's wait in a channel of a compiled graph (``ray.dag``): for a value, or for room for one.

Such a wait may use the CPU all the time: with a timeout, Ray polls the shared memory, and a stage reads in a loop with
a timeout of 0.1 s. But each end of a channel counts its reads or writes, so two readings with the same count show the
same wait. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from dstack.libraries.compiled_graphs.sites import CHANNEL_FILE, EXECUTE, FUTURE, GET, GET_FILE, READ, WRITE
from dstack.libraries.compiled_graphs.stages import GRAPH_FILE, channels_of, count_of
from dstack.observed_calls import Call, ChannelCall
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.stacks.origins import RAY_WORKER_FILE
from dstack.probes.node.threads import function_of, is_in

CHANNELS = "/ray/experimental/channel/"
ENDS_FILE = f"{CHANNELS}common.py"
READS = ("_read_list", "release_channel_buffers", "_run")
READER_TYPES = ("SynchronousReader", "AwaitableBackgroundReader")
WRITER = "SynchronousWriter"
COPIED_AT_ONCE = 1 << 24
"""So many bytes are copied in a few milliseconds."""
OF_DRIVER = {GET_FILE: ("get", GET), GRAPH_FILE: ("execute", EXECUTE)}
"""The outermost functions of Ray's in a driver, by file, with their sites."""


def completed(objects: Objects, frames: Sequence[Frame], call: Call | None, actor_id: str = "") -> Call | None:
    """The call with its dependency, if the thread is in a channel; any other call unchanged.

    A write without a timeout sleeps in the kernel, so its call is known; a write with a timeout does not.
    """
    at = _end_of_channel(frames)
    if at is None:
        return call
    with contextlib.suppress(Unreadable):
        is_write = function_of(frames[at]) == "write"
        found = _write(objects, frames[at]) if is_write else _read(objects, frames[at])
        if is_write and call is None and not _waits_without_sleep(objects, frames[0], found):
            return None
        return _named(objects, frames, at, found)
    return call


def awaited(objects: Objects, frames: Sequence[Frame], actor_id: str = "") -> Call | None:
    """The wait of a coroutine that awaits the result of ``execute_async``; None for any other.

    A thread of Ray's reads the results in order. Raises :class:`Unreadable`.
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


def _end_of_channel(frames: Sequence[Frame]) -> int | None:
    """The index of the frame of the reader or writer that the thread is in; inner frames are the channel's."""
    for at, frame in enumerate(frames):
        if is_in(frame, ENDS_FILE, *READS) or (is_in(frame, ENDS_FILE, "write") and frame.has("val")):
            return at
        is_leaf = at == 0 and (is_in(frame, RAY_WORKER_FILE, "get_objects") or is_in(frame, CHANNEL_FILE, "write"))
        if not is_leaf and CHANNELS not in frame.file:
            return None
    return None


def _read(objects: Objects, frame: Frame) -> ChannelCall:
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


def _waits_without_sleep(objects: Objects, leaf: Frame, found: ChannelCall) -> bool:
    """Whether a write that does not sleep waits for room: it has a timeout, and its values are small."""
    kind = objects.attribute(leaf.local("self"), "_typ")
    size = objects.number(objects.attribute(kind, "buffer_size_bytes"))
    return found.fails_after_s is not None and size is not None and size <= COPIED_AT_ONCE


def _write(objects: Objects, frame: Frame) -> ChannelCall:
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


def _timeout_s(objects: Objects, frame: Frame) -> float | None:
    """The timeout of the end of a channel, None if it is None, -1 or infinite."""
    if not frame.has("timeout"):
        return None
    timeout = objects.number(frame.local("timeout"))
    return timeout if timeout is not None and 0 <= timeout < math.inf else None


def _named(objects: Objects, frames: Sequence[Frame], at: int, channel: ChannelCall) -> Call:
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

"""vLLM's message queues in a process's memory: the ends that it has, and the waits in them.

A ``MessageQueue`` has one writer and, on its node, several readers. Its ring of chunks in shared memory has one byte
for each chunk that says whether it is written, and then one byte for each reader that says whether that one has read
it. A writer waits until all have read the chunk that it writes next, a reader until the next one is written. Both use
the CPU all the time, or sleep between two looks at the flags. A local with the start of the call distinguishes two
calls, and the flags of the ring prove that the call cannot end. How many messages were written in all is not kept.

Seen on vLLM 0.8.5, 0.11.2, 0.17.1, 0.25.1 and 0.33.0, which have the same ring.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from dstack.libraries.vllm import FILE, READ, WRITE
from dstack.observed.calls import Call, QueueCall
from dstack.observed.processes import QueueEnd
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.cpython.references import References
from dstack.probes.node.named_values import actor_instance
from dstack.probes.node.procfs.open_files import KernelTables
from dstack.probes.node.thread_stacks import function_of, is_in
from dstack.probes.node.waits.reachable_objects import variables_of

MODULE = "vllm.distributed.device_communicators.shm_broadcast"
QUEUE, RING = "MessageQueue", "ShmRingBuffer"
WAITING = {"acquire_read": READ, "acquire_write": WRITE}
"""The generators that wait; they are suspended, so in no stack, while their caller reads or writes a chunk."""
CONTEXT = "/contextlib.py"
INSIDE = (FILE, CONTEXT, "/vllm/distributed/utils.py", "/zmq/sugar/poll.py", "/zmq/sugar/socket.py")
"""The files of frames inside them: ``sched_yield``, and the poll that a writer ends."""
VIEW_START, VIEW_SIZE = 56, 72
"""Where a memoryview has the address of its bytes, and their number; CPython 3.10 to 3.15."""
MAX_READERS, MAX_CHUNKS, MAX_BYTES, MAX_NAME = 1 << 10, 1 << 10, 1 << 50, 128
MAX_DEPTH, MAX_FOLLOWED, MAX_EXAMINED, MAX_ENDS = 4, 64, 5_000, 64
"""A queue is searched from variables: ``self``, its ``executor``, a list there, the queue."""
SHARED, DELETED = "/dev/shm/", " (deleted)"
LIBRARY_TIMEOUT_S = 60.0
"""vLLM's own timeouts are longer (300 s for a step): they end a call with an error. A shorter one is the program's."""


@dataclass(frozen=True)
class _Ring:
    """A ring as memory has it: the descriptor of its memory, the chunk of its queue, and the flags of each chunk."""

    name: str
    descriptor: int
    index: int
    chunks: Sequence[bytes]

    @property
    def current(self) -> bytes:
        """The flags of the chunk that is read or written next."""
        return self.chunks[self.index]

    def unread(self, reader: int) -> int:
        """How many messages a reader has not read."""
        return sum(flags[0] and not flags[1 + reader] for flags in self.chunks)


# The ends that a process has


def queue_ends(process: PythonProcess) -> tuple[QueueEnd, ...]:
    """The ends of queues that variables of its threads, or its actor, lead to; perhaps not all. Nothing is raised."""
    found: list[QueueEnd] = []
    with contextlib.suppress(UnreadableMemory):
        if process.modules.has(MODULE):
            for queue in _queues(process):
                with contextlib.suppress(UnreadableMemory):
                    found.append(_end(process.objects, queue))
    return tuple(dict.fromkeys(found))[:MAX_ENDS]


def _queues(process: PythonProcess) -> Iterator[int]:
    references = References(process)
    seen: set[int] = set()
    level = list(dict.fromkeys(_roots(process)))
    with process.memory.temporary():
        for _ in range(MAX_DEPTH):
            seen.update(level)
            found = [one for one in level if process.objects.is_a(one, QUEUE)]
            yield from found
            ahead = references.of_all(one for one in level if one not in found)
            following = (one for several in ahead.values() for one in several[:MAX_FOLLOWED])
            level = [one for one in dict.fromkeys(following) if one not in seen][: MAX_EXAMINED - len(seen)]


def _roots(process: PythonProcess) -> Iterator[int]:
    """Where the search begins, the likeliest first: the actor, the objects of methods, then all other variables."""
    with contextlib.suppress(UnreadableMemory):
        yield actor_instance(process.modules, process.objects) or 0
    frames = [frame for thread in process.threads for frame in thread.frames]
    yield from (frame.local("self") for frame in frames if frame.has("self"))
    yield from variables_of(frames)
    yield from (frame.globals for frame in frames if frame.function == "<module>")


def _end(objects: Objects, queue: int) -> QueueEnd:
    attributes = objects.attributes(queue)
    name = _name(objects, _memory_of(objects, attributes.get("buffer", 0)))
    if objects.truth(attributes.get("_is_writer", 0)):
        return QueueEnd(name=name)
    rank = _natural(objects, attributes.get("local_reader_rank", 0), MAX_READERS)
    return QueueEnd(name=name, rank=_ranks(objects, attributes, rank + 1)[rank])


# Waits


def completed(objects: Objects, frames: Sequence[MemoryFrame], call: Call | None, tables: KernelTables) -> Call | None:
    """The wait at an end of a queue, if the thread is in one; any other call unchanged. Nothing is raised.

    Of a call that cannot be read, or need not wait, it is what the kernel shows.
    """
    at = _waiting(frames)
    if at is None:
        return call
    with contextlib.suppress(UnreadableMemory):
        if need := _need(objects, frames[at], tables):
            own = takewhile(lambda numbered: numbered[1].file.endswith((FILE, CONTEXT)), enumerate(frames[at:], at))
            outermost = max(number for number, frame in own if is_in(frame, FILE))
            site, own_s = WAITING[function_of(frames[at])], need.fails_after_s
            if own_s is None or own_s >= LIBRARY_TIMEOUT_S:
                return Call(site=site.id, frame=outermost, need=need)
            return Call(site=site.id, frame=outermost, need=replace(need, fails_after_s=None), timeout_s=own_s)
    return call


def _waiting(frames: Sequence[MemoryFrame]) -> int | None:
    """The index of the frame that waits at an end of a queue; inner frames yield, or poll for a notification."""
    for at, frame in enumerate(frames):
        if is_in(frame, FILE, *WAITING):
            return at
        if not frame.file.endswith(INSIDE):
            return None
    return None


def _need(objects: Objects, frame: MemoryFrame, tables: KernelTables) -> QueueCall | None:
    """What the call needs; None for a writer with a chunk to write, which does not wait."""
    objects.expect(frame.local("self"), QUEUE)
    attributes = objects.attributes(frame.local("self"))
    ring = _ring(objects, attributes)
    readers = range(len(ring.current) - 1)
    ranks = _ranks(objects, attributes, len(readers))
    written = bool(ring.current[0])
    late = tuple(ranks[one] for one in readers if written and not ring.current[1 + one])
    is_write = function_of(frame) == "acquire_write"
    if is_write and not late:
        return None
    path = tables.file_of(objects.memory.pid, ring.descriptor)
    if path.removesuffix(DELETED) != f"{SHARED}{ring.name}":
        raise UnreadableMemory(f"{path} is not the memory of {ring.name}")
    rank = None if is_write else ranks[_natural(objects, attributes.get("local_reader_rank", 0), len(readers) - 1)]
    return QueueCall(
        name=ring.name,
        rank=rank,
        began=_began(objects, frame),
        ranks=ranks,
        unread=tuple(ring.unread(one) for one in readers),
        late=late if is_write else (),
        is_ready=not is_write and rank in late,
        holders=tables.holders(path),
        is_unlinked=path.endswith(DELETED),
        fails_after_s=_timeout_s(objects, frame),
    )


def _began(objects: Objects, frame: MemoryFrame) -> float:
    """When the call began, by the clock of its host: a local, or in later versions an attribute of one (0.33)."""
    if read_timeout := frame.local("read_timeout"):
        began = objects.number(objects.attribute(read_timeout, "started"))
    else:
        began = objects.number(frame.local("start_time"))
    if began is None or began <= 0:
        raise UnreadableMemory("a call without its start")
    return began


def _timeout_s(objects: Objects, frame: MemoryFrame) -> float | None:
    timeout = objects.number(frame.local("timeout")) if frame.has("timeout") else None
    return timeout if timeout is not None and timeout >= 0 else None


def _ring(objects: Objects, attributes: dict[str, int]) -> _Ring:
    """The ring of a queue. Raises :class:`UnreadableMemory`, also where its sizes do not fit its memory."""
    buffer = attributes.get("buffer", 0)
    ring, memory = objects.attributes(buffer), _memory_of(objects, buffer)
    names = (("n_reader", MAX_READERS), ("max_chunks", MAX_CHUNKS), ("max_chunk_bytes", MAX_BYTES))
    readers, count, size = (_natural(objects, ring.get(name, 0), most, least=1) for name, most in names)
    start, width = _natural(objects, ring.get("metadata_offset", 0), MAX_BYTES), 1 + readers
    if start != count * size:
        raise UnreadableMemory(f"flags at {start} behind {count} chunks of {size} bytes")
    flags = objects.memory.read(_address(objects, memory, start + count * width) + start, count * width)
    if max(flags) > 1:
        raise UnreadableMemory("bytes that are no flags")
    return _Ring(
        name=_name(objects, memory),
        descriptor=_natural(objects, memory.get("_fd", 0), 1 << 30),
        index=_natural(objects, attributes.get("current_idx", 0), count - 1),
        chunks=[flags[at : at + width] for at in range(0, len(flags), width)],
    )


def _memory_of(objects: Objects, buffer: int) -> dict[str, int]:
    """The attributes of the ``SharedMemory`` of a ring."""
    objects.expect(buffer, RING)
    return objects.attributes(objects.attribute(buffer, "shared_memory"))


def _address(objects: Objects, memory: dict[str, int], needed: int) -> int:
    """Where a process has mapped a shared memory of at least so many bytes."""
    view = memory.get("_buf", 0)
    objects.expect(view, "memoryview")
    address, size = objects.memory.pointer(view + VIEW_START), objects.memory.int64(view + VIEW_SIZE)
    if size != _natural(objects, memory.get("_size", 0), MAX_BYTES) or needed > size:
        raise UnreadableMemory(f"{size} bytes where {needed} are needed")
    return address


def _name(objects: Objects, memory: dict[str, int]) -> str:
    return objects.text(memory.get("_name", 0), MAX_NAME).lstrip("/")


def _ranks(objects: Objects, attributes: dict[str, int], readers: int) -> tuple[int, ...]:
    """The ranks of the readers on this node in their group, in the order of their flags, from the queue's handle."""
    handle = objects.attributes(attributes.get("handle", 0))
    ranks = tuple(objects.counts(objects.items(handle.get("local_reader_ranks", 0), MAX_READERS + 1)))
    if len(ranks) < readers or len(set(ranks)) < len(ranks):
        raise UnreadableMemory(f"{len(ranks)} ranks of {readers} readers")
    return ranks


def _natural(objects: Objects, address: int, most: int, least: int = 0) -> int:
    value = objects.number(address)
    if value is None or not least <= value <= most or value != int(value):
        raise UnreadableMemory(f"{value} is not from {least} to {most}")
    return int(value)

"""Transfers of tensors between actors by Ray Direct Transport, in a process's memory.

A thread of each actor makes its transfers one after another: ``__ray_send__`` on one side, ``__ray_recv__`` on the
other, in calls of ray.util.collective. A method that was given such tensors waits until they are in the actor's store.
Ray 2.60; 2.46 has no such store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dstack.call_sites import DIRECT_TRANSPORT
from dstack.observed.calls import Call, Executions
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.process import MemoryThread
from dstack.probes.node.threads import is_in

STORE_FILE = "/ray/experimental/rdt/rdt_store.py"
WAIT, RECEIVE, SEND = "_wait_object", "__ray_recv__", "__ray_send__"
ID_LENGTH = 56


def wait_for_tensors(
    objects: Objects, frames: Sequence[Frame], threads: Iterable[MemoryThread], is_user: Callable[[Frame], bool]
) -> Call | None:
    """The wait for the tensors of an object, by the thread that receives them or must end another transfer before.

    None where the thread is in no such wait, or no thread makes transfers. Raises :class:`Unreadable`.
    """
    at = next((at for at, frame in enumerate(frames) if is_user(frame) or is_in(frame, STORE_FILE, WAIT)), None)
    if at is None or is_user(frames[at]):
        return None
    wanted = _object_id(objects, frames[at])
    transfers = list(_transfers(objects, threads))
    own = [thread for thread, function, object_id in transfers if (function, object_id) == (RECEIVE, wanted)]
    runners = own or [thread for thread, _, _ in transfers]
    if not runners:
        return None
    name = f"{DIRECT_TRANSPORT.name} of ObjectRef {wanted[:8]}"
    return Call(site=DIRECT_TRANSPORT.id, name=name, frame=at, need=Executions(threads=tuple(runners)))


def transferred(objects: Objects, frames: Iterable[Frame]) -> str:
    """The id of the object whose tensors a thread sends or receives by these frames, empty for none."""
    frame = next((frame for frame in frames if is_in(frame, STORE_FILE, RECEIVE, SEND)), None)
    return _object_id(objects, frame) if frame else ""


def _transfers(objects: Objects, threads: Iterable[MemoryThread]) -> Iterator[tuple[int, str, str]]:
    """The threads that are in a transfer, with its function and the id of its object."""
    for thread in threads:
        for frame in thread.frames:
            if is_in(frame, STORE_FILE, RECEIVE, SEND):
                yield thread.os_thread_id, frame.position.function, _object_id(objects, frame)


def _object_id(objects: Objects, frame: Frame) -> str:
    """The id in the local ``obj_id``."""
    object_id = objects.text(frame.local("obj_id"), ID_LENGTH + 1)
    if len(object_id) != ID_LENGTH:
        raise Unreadable(f"{object_id} is not the id of an object")
    return object_id

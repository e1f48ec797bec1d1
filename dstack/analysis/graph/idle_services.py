"""What may be idle until input from outside comes: services that wait within one process, and code of libraries.

A consumer in ``queue.get`` and a main thread in ``stop.wait`` can each reach the other's object, so each may end the
other's wait: by the observations, a cycle. But all idle services have such waits. A request, a signal, or a socket of
the event loop ends them. They are only likely to never end if their wakers are stuck elsewhere: in a call to Ray, in a
call that does not begin, in the wait for a lock, or in the wait for an event loop that one of them blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.solve.requirements import targets_of
from dstack.call_sites import KERNEL
from dstack.model.diagnosis import Vertex, Wait
from dstack.model.vertex_keys import AnyKey, ChildThreadKey, CoroutineKey, Key, ThreadKey, UnknownKey
from dstack.observed.calls import REF_CALLS, End, KernelObjects
from dstack.observed.processes import Coroutine, Frame, Thread
from dstack.words import grouped


def idle_links(
    vertices: Mapping[Key, Vertex], wakers: Mapping[Key, tuple[Key, ...]], serving: Collection[str] = ()
) -> set[Key]:
    """The waits that lead only to waits of idle services; ``wakers`` maps each candidate to what may end it.

    A wait that leads to running code is not among them: its waker is known. In workers that are ``serving``, idle
    threads of libraries may have work, so a blocked event loop does not explain the wait.
    """
    ahead: dict[Key, list[Key]] = {key: [] for key in wakers}
    unvisited = list(wakers)
    while unvisited:
        key = unvisited.pop()
        vertex = vertices.get(key)
        if vertex is None or (key not in wakers and not _is_inside(vertex, serving)):
            continue
        ahead[key] = [*wakers.get(key, ())] or list(targets_of(vertex))
        for target in ahead[key]:
            if target not in ahead:
                ahead[target] = []
                unvisited.append(target)
    known = [key for key in ahead if not isinstance(key, UnknownKey)]
    active = (key for key in known if not _is_idle(vertices.get(key), wakers, serving))
    return set(wakers) - _reaching(ahead, active)


def _is_idle(vertex: Vertex | None, wakers: Mapping[Key, tuple[Key, ...]], serving: Collection[str]) -> bool:
    """Whether it waits as idle services do, or for a vertex in such a wait."""
    if vertex is None or vertex.wait is None or not _is_inside(vertex, serving):
        return False
    return vertex.key not in wakers or vertex.wait.site.may_be_idle


def _is_inside(vertex: Vertex, serving: Collection[str]) -> bool:
    """Whether it waits inside its own process, neither for a lock nor for its blocked event loop."""
    wait = vertex.wait
    if wait is None or wait.is_timed or wait.of_group is not None:
        return False
    if wait.kind in (*REF_CALLS, "lock") or (wait.kind == "event loop" and vertex.worker_id not in serving):
        return False
    is_inside = isinstance(vertex.key, (ThreadKey, CoroutineKey, ChildThreadKey, AnyKey))
    return is_inside and not any(target.ref for target in wait.targets)


def may_be_idle(wait: Wait) -> bool:
    """Whether an idle service may be in such a wait, until input from outside ends it."""
    return wait.is_linked and wait.site.may_be_idle


def _reaching(ahead: Mapping[Key, Iterable[Key]], keys: Iterable[Key]) -> set[Key]:
    """The keys, and all keys from which one of them is reached."""
    behind = grouped((target, key) for key, targets in ahead.items() for target in targets)
    found = set(keys)
    level = list(found)
    while level:
        level = [key for one in level for key in behind.get(one, ()) if key not in found]
        found.update(level)
    return found


# Libraries


def is_idle_library(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether library code was off the CPU in every sample and reading, and waits for nothing outside."""
    frames = index.frames_of(worker_id, execution)
    is_library = bool(frames) and not any(frame.origin == "user" for frame in frames)
    has_run = isinstance(execution, Thread) and (worker_id, execution.os_thread_id) in index.threads_that_ran
    return is_library and not has_run and _waits_inside(index, worker_id, execution, frames)


def _waits_inside(index: SampleIndex, worker_id: str, execution: Thread | Coroutine, frames: Sequence[Frame]) -> bool:
    """Whether library code is Ray's own, or waits in its process: neither for another process nor as a timer."""
    if any(frame.origin == "ray" for frame in frames):
        return True
    call, poll = index.call_of(worker_id, execution), index.poll_of(worker_id, execution)
    if call is not None and isinstance(call.need, KernelObjects):
        own, is_known = {index.pid_of(worker_id)}, call.site != KERNEL.id
        if any(_leads_outside(end, own) for end in call.need.ends) or (call.timeout_s is not None and not is_known):
            return False
    is_timed = poll is not None or (call is not None and call.timeout_s is not None)
    is_stdlib = all(frame.origin == "stdlib" for frame in frames)  # as threading.Timer
    return index.is_waiting(worker_id, execution) and not (is_stdlib and is_timed)


def _leads_outside(end: End, own: set[int | None]) -> bool:
    """Whether something else than its own process can act at the other end: grpc has both ends of pairs of sockets."""
    return end.what != "eventfd" and {holder.pid for holder in end.holders} != own

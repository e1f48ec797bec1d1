"""Waits of child processes of workers and drivers: a vertex for each thread that waits.

Ray's connection does not survive a fork: a forked child has none of the threads that receive values. Values that it
has not received before never arrive; values in shared memory from before the fork can still be read (Ray 2.60).
"""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.graph.blocked_calls import wait_of_call
from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.coroutines import add_coroutine, relevant_coroutines
from dstack.analysis.index.frames import user_frame
from dstack.analysis.index.sample_index import SampleIndex
from dstack.call_sites import kind_of
from dstack.model.diagnosis import CallName, Vertex, Wait
from dstack.model.snapshot import is_at_hand
from dstack.model.vertex_facts import Never, Subject, never, subject
from dstack.model.vertex_keys import ChildThreadKey
from dstack.observed.calls import REF_CALLS, Call, LostOwner, Refs
from dstack.observed.processes import Process, Thread


def add_children(graph: GraphBuilder, worker_id: str) -> None:
    """Add the main threads and coroutines of a worker's child processes, and the threads that wait or are awaited."""
    process = graph.index.process(worker_id)
    for child in process.children if process else ():
        awaited = {thread_id for call in child.calls() for thread_id in call.threads}
        for thread in child.threads:
            vertex = _vertex(graph, worker_id, child, thread)
            if vertex.wait or vertex.never or thread is child.main_thread or thread.os_thread_id in awaited:
                graph.add(vertex)
        for coroutine in relevant_coroutines(graph.index, worker_id, child):
            add_coroutine(graph, worker_id, coroutine, child_pid=child.pid)


def _vertex(graph: GraphBuilder, worker_id: str, child: Process, thread: Thread) -> Vertex:
    key = ChildThreadKey(worker_id, child.pid, thread.os_thread_id)
    never = _never(graph.index, worker_id, child, thread)
    wait = None if never else _wait(graph, key, child, thread)
    return Vertex(
        key=key,
        kind="execution",
        subject=_subject(child, thread),
        worker_id=worker_id,
        os_thread_id=thread.os_thread_id,
        child_pid=child.pid,
        wait=wait,
        never=never,
    )


def _subject(child: Process, thread: Thread) -> Subject:
    if thread is not child.main_thread:
        return subject("child thread", thread.name or thread.os_thread_id, child.pid)
    process = subject("child process", child.pid)
    return subject("exit", process, thread.exits_in) if thread.exits_in else process


def _wait(graph: GraphBuilder, key: ChildThreadKey, child: Process, thread: Thread) -> Wait | None:
    """The wait of a thread; None in calls to Ray, which works in no child, and for coroutines that were not read."""
    call = graph.index.call_of(key.worker_id, thread)
    if call is None or kind_of(call) in REF_CALLS or call.refs or (call.coroutines and not child.coroutines_read):
        return None
    return replace(wait_of_call(graph, key, call), loop=None)


def _never(index: SampleIndex, worker_id: str, child: Process, thread: Thread) -> Never | None:
    """Why a thread of a forked process can never get the values, or the lock, that it waits for."""
    call = thread.call
    if call is not None and thread.still and isinstance(call.need, LostOwner) and call.timeout_s is None:
        return _lost_lock(index, worker_id, child, call.need)
    if not (child.is_cut_off and thread.still) or call is None or not _is_for_missing(index, call):
        return None  # between fork and exec, a child's memory still shows its parent's threads, which do not run in it
    frame = user_frame(index.snapshot.frames_of(thread))
    place = (frame.file, frame.line) if frame else ("", None)
    return never("forked", CallName.of(call).text, *place)


def _lost_lock(index: SampleIndex, worker_id: str, child: Process, need: LostOwner) -> Never:
    """A lock was held when the child was forked, by a thread that exists only in its parent."""
    parent = index.process(worker_id) if child.parent_pid == index.pid_of(worker_id) else None
    owner = next((one for one in parent.threads if one.os_thread_id == need.owner), None) if parent else None
    frame = user_frame(index.snapshot.frames_of(owner)) if owner else None
    place = f"{frame.file.rpartition('/')[2]}:{frame.line}" if frame else ""
    return never("lost lock", owner.name if owner else "", place)


def _is_for_missing(index: SampleIndex, call: Call) -> bool:
    """Whether a call needs values that cannot be in shared memory."""
    if not isinstance(call.need, Refs) or call.timeout_s is not None:
        return False
    missing = sum(not index.refs.has_value(ref) or _is_with_its_owner(index, ref) for ref in call.refs)
    needed = call.need.count or 1 if kind_of(call) == "ray.wait" else len(call.refs)
    return missing > len(call.refs) - needed


def _is_with_its_owner(index: SampleIndex, ref: str) -> bool:
    """Whether the value is in the memory of its owner's process, where an earlier fork cannot read it."""
    return any(is_at_hand(known) for known in index.refs.reports_of.get(ref, ()))

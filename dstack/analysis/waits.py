"""Reads one sample as a wait-for graph: its vertices, and what each of them waits for.

A claim is made only where it follows from what was seen. Where several things could be what is waited for, the wait is
for any one of them and marked inferred: the truth can only be harder to satisfy, so nothing is called stuck that is
not. Where nothing is known, the target is an ``unknown`` vertex, which counts as able to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from dstack.analysis import names
from dstack.analysis.observed import Observed, any_key, group_key, task_key, thread_key
from dstack.analysis.resources import Resources
from dstack.diagnosis import Group, Target, Vertex, Wait
from dstack.model import Actor, BlockedCall, PlacementGroup, Task, Thread, producer_task_id

T = TypeVar("T")
THERE = "value that is there already and is being fetched"
MANY = 32
"""More possible targets than this are shared through a vertex of their own, so that the graph stays small."""


def wait_for_graph(observed: Observed) -> dict[str, Vertex]:
    """All vertices of one sample by key, waiting or not."""
    return _GraphBuilder(observed).build()


class _GraphBuilder:
    def __init__(self, observed: Observed) -> None:
        self._seen = observed
        self._resources = Resources(observed, self._key_of_running)
        self._vertices: dict[str, Vertex] = {}
        self._keys_of_running: dict[str, str] = {}

    def build(self) -> dict[str, Vertex]:
        for worker in self._seen.sample.workers:
            for thread in self._seen.threads(worker.worker_id):
                if thread.role in ("task", "user") or thread.call:
                    self._add_thread(worker.worker_id, thread)
            for task_id in worker.running_task_ids or ():
                self._add_running(task_id)
        for task in self._seen.sample.tasks:
            if task.task_id not in self._seen.running_on:
                self._add_pending(task)
        for group in self._seen.sample.placement_groups:
            if group.state in ("PENDING", "RESCHEDULING", "PREPARED"):
                self._add_group(group)
        return self._vertices

    # Executions

    def _add_thread(self, worker_id: str, thread: Thread) -> None:
        key = thread_key(worker_id, thread.os_thread_id)
        self._vertices[key] = Vertex(
            key=key,
            kind="execution",
            label=names.execution(self._seen, worker_id, thread, self._task_of(worker_id, thread)),
            worker_id=worker_id,
            os_thread_id=thread.os_thread_id,
            task_id=self._task_of(worker_id, thread),
            wait=self._wait_of_call(worker_id, thread.call) if thread.call else None,
        )

    def _task_of(self, worker_id: str, thread: Thread) -> str | None:
        """The task a thread runs, where only one of each comes into question."""
        worker = self._seen.seen[worker_id]
        candidates = self._task_threads(worker_id)
        running = worker.running_task_ids or ()
        return running[0] if len(running) == 1 and candidates == [thread] else None

    def _task_threads(self, worker_id: str) -> list[Thread]:
        return [thread for thread in self._seen.threads(worker_id) if thread.role == "task"]

    def _has_loop(self, worker_id: str) -> bool:
        return any(thread.role == "loop" for thread in self._seen.threads(worker_id))

    def _key_of_running(self, task_id: str) -> str:
        """The vertex of a running task: its thread where that is certain, else one for the task."""
        if task_id not in self._keys_of_running:
            self._keys_of_running[task_id] = self._find_key_of_running(task_id)
        return self._keys_of_running[task_id]

    def _find_key_of_running(self, task_id: str) -> str:
        worker_id = self._seen.running_on[task_id]
        threads = self._task_threads(worker_id)
        if len(threads) == 1 and not self._has_loop(worker_id) and self._task_of(worker_id, threads[0]):
            return thread_key(worker_id, threads[0].os_thread_id)
        return task_key(task_id)

    def _add_running(self, task_id: str) -> None:
        """A vertex for a running task whose thread is not certain: any of the threads that may run it."""
        key = self._key_of_running(task_id)
        if not key.startswith("task:"):
            return
        worker_id = self._seen.running_on[task_id]
        threads = self._task_threads(worker_id)
        wait = None
        if self._has_loop(worker_id):
            what = f"coroutine of {names.task(self._seen, task_id)}, which was not read"
            wait = self._waits_for_unobserved("coroutine", what)
        elif len(threads) > 1 and len(threads) >= len(self._seen.seen[worker_id].running_task_ids or ()):
            wait = self._one_of(
                "thread",
                threads,
                lambda thread: Target(vertex=thread_key(worker_id, thread.os_thread_id)),
                f"it runs on one of {len(threads)} threads",
                worker_id,
            )
        elif threads:
            what = f"thread that runs {names.task(self._seen, task_id)}, which was not seen"
            wait = self._waits_for_unobserved("thread", what)
        elif self._seen.process(worker_id) is None:
            wait = self._waits_for_unobserved(
                "thread", f"stack of {names.task(self._seen, task_id)}, which was not read"
            )
        self._vertices[key] = Vertex(
            key=key,
            kind="task",
            label=names.task(self._seen, task_id),
            worker_id=worker_id,
            task_id=task_id,
            wait=wait,
        )

    def _wait_of_call(self, worker_id: str, call: BlockedCall) -> Wait:
        if call.unread is not None:
            return self._waits_for_unobserved(
                call.kind, f"target of {call.kind}, which could not be read: {call.unread}"
            )
        if call.kind == "thread.join":
            return self._wait_for_thread(worker_id, call)
        pending = [ref for ref in call.refs if not self._seen.is_given(ref)]
        targets = [Target(vertex=self._vertex_of_ref(ref), ref=ref) for ref in pending]
        needed = len(call.refs) if call.kind == "ray.get" else call.num_returns or 1
        still_needed = needed - (len(call.refs) - len(pending))
        if call.kind == "ray.get":
            groups = tuple(Group(needs=1, targets=(target,)) for target in targets)
        else:
            groups = (Group(needs=still_needed, targets=tuple(targets)),)
        if still_needed <= 0:
            groups = (Group(needs=1, targets=(self._unknown(THERE),)),)
        total = len(call.refs)
        return Wait(kind=call.kind, groups=groups, timeout_s=call.timeout_s, needed=needed, total=total)

    def _wait_for_thread(self, worker_id: str, call: BlockedCall) -> Wait:
        joined = next((t for t in self._seen.threads(worker_id) if t.os_thread_id == call.joins), None)
        if joined is None:
            return self._waits_for_unobserved(call.kind, "thread that was not seen")
        target = Target(vertex=thread_key(worker_id, joined.os_thread_id))
        if target.vertex not in self._vertices and joined.role not in ("task", "user") and not joined.call:
            self._add_thread(worker_id, joined)
        return Wait(kind=call.kind, groups=(Group(needs=1, targets=(target,)),), timeout_s=call.timeout_s)

    def _vertex_of_ref(self, ref: str) -> str:
        """Who makes a ref; a value that is there is an unknown target, since somebody need only fetch it."""
        if self._seen.is_given(ref):
            return self._unknown(THERE).vertex
        task_id = producer_task_id(ref)
        if task_id in self._seen.running_on:
            return self._key_of_running(task_id)
        if task_id in self._seen.tasks:
            return task_key(task_id)
        what = f"value of {names.short(ref)}, which no process that answered knows to be pending"
        return self._unknown(what, key=f"unknown:{task_id}", unobserved=True).vertex

    # Pending tasks

    def _add_pending(self, task: Task) -> None:
        key = task_key(task.task_id)
        wait, never = self._why_pending(task)
        self._vertices[key] = Vertex(
            key=key,
            kind="task",
            label=names.task(self._seen, task.task_id),
            task_id=task.task_id,
            wait=wait,
            never=never,
        )

    def _why_pending(self, task: Task) -> tuple[Wait | None, str | None]:
        """What a task that is not running waits for, or why it can never run."""
        if task.state == "PENDING_ARGS_AVAIL":
            return self._wait_for_arguments(task), None
        if task.state == "SUBMITTED_TO_WORKER":
            return self._wait_for_slot(task), None
        if task.state != "PENDING_NODE_ASSIGNMENT":
            return self._waits_for_unknown("scheduler", f"scheduler ({task.state})"), None
        if task.kind == "ACTOR_TASK":
            return self._wait_for_actor(task)
        if task.placement_group_id:
            return self._wait_for_group(task.placement_group_id), None
        return self._wait_for_resources(task)

    def _wait_for_resources(self, task: Task) -> tuple[Wait | None, str | None]:
        wait, never = self._resources.wait_of(task.required_resources, self._unknown)
        key = any_key("resources", names.amounts(dict(sorted(task.required_resources.items()))))
        return wait and self._shared(key, wait), never

    def _wait_for_arguments(self, task: Task) -> Wait:
        """One of the refs that its owner knows as arguments and that are not there; which, Ray does not tell."""
        refs = self._seen.arguments_of_owner.get(task.owner_id, [])
        if len(refs) <= MANY:
            refs = [ref for ref in refs if producer_task_id(ref) != task.task_id]
        if not refs:
            return self._waits_for_unobserved("arguments", "argument that was not seen")
        return self._one_of(
            "arguments",
            refs,
            lambda ref: Target(vertex=self._vertex_of_ref(ref), ref=ref),
            f"any of the {len(refs)} refs its owner passes as arguments and that are not there",
            task.owner_id,
        )

    def _wait_for_slot(self, task: Task) -> Wait | None:
        """A call its actor has but does not run waits for one of the calls that run there."""
        actor = self._seen.actors.get(task.actor_id or "")
        if actor is None or not actor.worker_id:
            return self._waits_for_unobserved("executor", "worker it was sent to, which does not say that it runs it")
        worker = self._seen.seen.get(actor.worker_id)
        if worker is None or worker.running_task_ids is None:
            what = f"{names.actor(actor)}, which was not observed"
            return self._waits_for_unobserved("actor slot", what)
        if not worker.running_task_ids:
            return None
        return self._one_of(
            "actor slot",
            worker.running_task_ids,
            lambda running: Target(vertex=self._key_of_running(running)),
            f"any of the {len(worker.running_task_ids)} calls that run there may end first",
            actor.actor_id,
        )

    def _wait_for_actor(self, task: Task) -> tuple[Wait | None, str | None]:
        """A call not yet sent: its actor is not there, is dead, or an earlier call of the same caller is not ready."""
        actor = self._seen.actors.get(task.actor_id or "")
        if actor is None:
            return self._waits_for_unobserved("actor creation", "actor that the control plane does not list"), None
        if actor.state == "DEAD":
            return None, f"{names.actor(actor)} is dead: {actor.death_cause or 'no cause given'}"
        if actor.state != "ALIVE":
            return self._wait_for_creation(actor), None
        earlier = self._seen.calls_without_arguments.get((task.owner_id, actor.actor_id), ())
        if not earlier:
            return self._waits_for_unknown("order", "caller, which has not sent it yet"), None
        wait = self._one_of(
            "order",
            earlier,
            lambda call: Target(vertex=task_key(call.task_id)),
            f"any of {len(earlier)} calls by the same caller that lack arguments",
            f"{task.owner_id}/{actor.actor_id}",
        )
        return wait, None

    def _wait_for_creation(self, actor: Actor) -> Wait:
        creation = self._seen.creations.get(actor.actor_id)
        if creation is None:
            return self._waits_for_unknown("actor creation", f"creation of {names.actor(actor)} ({actor.state})")
        running = creation.task_id in self._seen.running_on
        target = Target(vertex=self._key_of_running(creation.task_id) if running else task_key(creation.task_id))
        return Wait(kind="actor creation", groups=(Group(needs=1, targets=(target,)),))

    # Placement groups

    def _wait_for_group(self, placement_group_id: str) -> Wait | None:
        group = self._seen.groups.get(placement_group_id)
        if group is not None and group.state == "PENDING":
            target = Target(vertex=group_key(placement_group_id))
            return Wait(kind="placement group", groups=(Group(needs=1, targets=(target,)),))
        name = names.placement_group(group) if group else "its placement group"
        return self._waits_for_unknown("placement group", f"room in {name}")

    def _add_group(self, group: PlacementGroup) -> None:
        key = group_key(group.placement_group_id)
        wait, never = self._resources.wait_of_group(group, self._unknown)
        self._vertices[key] = Vertex(
            key=key,
            kind="placement group",
            label=names.placement_group(group),
            placement_group_id=group.placement_group_id,
            wait=wait,
            never=never,
        )

    # Unknown targets

    def _unknown(
        self, what: str, *, key: str | None = None, unobserved: bool = False, worker_id: str | None = None
    ) -> Target:
        """A target whose waits are not known, so it counts as able to go on; the same words are the same target.

        ``unobserved`` says that it is one only because nobody could look; ``worker_id`` where it is, if known.
        """
        key = key or f"unknown:{what}"
        if key not in self._vertices:
            threads = self._task_threads(worker_id) if worker_id else []
            self._vertices[key] = Vertex(
                key=key,
                kind="unknown",
                label=what,
                unobserved=unobserved,
                worker_id=worker_id,
                os_thread_id=threads[0].os_thread_id if len(threads) == 1 else None,
            )
        return Target(vertex=key)

    def _waits_for_unknown(self, kind: str, what: str) -> Wait:
        return Wait(kind=kind, groups=(Group(needs=1, targets=(self._unknown(what),)),))

    def _waits_for_unobserved(self, kind: str, what: str) -> Wait:
        return Wait(kind=kind, groups=(Group(needs=1, targets=(self._unknown(what, unobserved=True),)),))

    # One of several

    def _one_of(
        self, kind: str, several: Sequence[T], target_of: Callable[[T], Target], reason: str, whose: str
    ) -> Wait:
        """A wait for one of several, which are ``whose``: exact if there is but one, shared if there are many."""
        key = any_key(kind, whose)
        known = self._vertices.get(key)
        if known is not None and known.wait is not None:
            return self._shared(key, known.wait)
        groups = (Group(needs=1, targets=tuple(map(target_of, several))),)
        if len(several) == 1:
            return Wait(kind=kind, groups=groups)
        wait = Wait(kind=kind, groups=groups, evidence="inferred", inferred=reason, total=len(several))
        return self._shared(key, wait)

    def _shared(self, key: str, wait: Wait) -> Wait:
        """The wait as it is, or if it is for many, through a vertex that all share who wait for the same."""
        count = len(wait.groups[0].targets)
        if count <= MANY:
            return wait
        self._vertices.setdefault(key, Vertex(key=key, kind="task", label=f"any of {count}", wait=wait))
        return msgspec.structs.replace(wait, groups=(Group(needs=1, targets=(Target(vertex=key),)),))

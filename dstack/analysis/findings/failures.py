"""Tasks that failed, actors that died and asyncio tasks that ended, as possible causes of the waits beside them.

Healthy programs handle exceptions and release actors, so a failure changes no verdict. It may be the cause of a wait: a
call that raised, and whose result is never fetched, does not enter the collective that others wait in. An asyncio task
that has ended with an exception sets no future.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.narration import SHOWN_ERROR
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.call_waits import reach_of
from dstack.analysis.graph.producers import RELEASED
from dstack.analysis.index.sample_index import Place
from dstack.analysis.index.shown_frames import innermost_frame
from dstack.analysis.index.subjects import names_of_ended
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import asyncio_task
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import FailedBefore, Step
from dstack.model.snapshot import Actor, FailedTask, actor_of_task
from dstack.model.vertex_keys import Key
from dstack.observed.processes import EndedTask

RAISED = "TASK_EXECUTION_EXCEPTION"
"""Ray's type of an error that the user's code raised."""
INTENDED = ("RAY_KILL", "TASK_CANCELLED")
"""Ends that a program causes on purpose; they count only if a wait depends on them."""
HELD = "; its result may never have been fetched"
NOT_HELD = "; its error may have been handled"
IN_PROCESS = "; it was in the same process"


@dataclass(slots=True)
class _Involved:
    """The processes, actors and tasks that take part in waits, and the classes of these actors."""

    workers: set[str] = field(default_factory=set)
    actors: set[str] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)


class Failures:
    """The failures of a snapshot, and which of them a wait may depend on."""

    def __init__(self, reduced: ReducedGraph) -> None:
        self._reduced = reduced
        self._index = reduced.index

    def beside(self, draft: Draft) -> tuple[FailedBefore, ...]:
        """The failures in the jobs of a finding that its waits may depend on.

        They are on an actor or process that takes part, or on an actor of the same class, or their results are held.
        Where a chain ends outside of Ray, what is awaited is not known, so it may be any failed call of the job.
        """
        keys = (*draft.waits, *draft.behind, *draft.polled_by, *draft.ends)
        is_open = any(self._reduced.vertices[end].waker_of for end in draft.ends)
        return self._of(draft.jobs, keys, is_open=is_open)

    def beside_outside(self, job_id: str | None = None) -> tuple[FailedBefore, ...]:
        """The failures beside waits that do not depend on Ray, of one job if given."""
        waiters = [key for chain in self._reduced.chains for key in chain.waiters]
        jobs = self._reduced.jobs_of(waiters)
        return self._of([job for job in jobs if job_id in (None, job)], waiters, is_open=True)

    def held(self) -> Iterator[FailedBefore]:
        """The failed tasks of all jobs whose results are held, newest first."""
        jobs = {task.job_id for task in self._index.snapshot.failed_tasks}
        return (one for one in self._failed_calls(jobs, _Involved()) if one.is_held)

    def _of(self, jobs: Iterable[str], keys: Sequence[Key], *, is_open: bool) -> tuple[FailedBefore, ...]:
        jobs = set(jobs)
        found = list(self._ended_tasks(keys))
        if any(task.job_id in jobs for task in self._index.snapshot.failed_tasks) or self._dead(jobs):
            involved = self._involved(keys)
            found += [*self._failed_calls(jobs, involved), *self._deaths(jobs, involved)]
        chosen = [one for one in found if one.is_related or one.is_held or is_open]
        chosen.sort(key=lambda one: (not one.is_related, not one.is_held, -(one.failed_at or 0.0), one.name))
        return tuple(folded(chosen))[: words.SHOWN]

    def _involved(self, keys: Iterable[Key]) -> _Involved:
        """The processes, actors and tasks of these vertices, and of the targets of their waits."""
        involved = _Involved()
        vertices = self._reduced.vertices
        reached = {target for key in keys for target in (key, *targets_of(vertices[key]))}
        for vertex in map(vertices.__getitem__, reached):
            worker = self._index.worker_of(vertex)
            actors = (worker.actor_id if worker else None, actor_of_task(vertex.task_id) if vertex.task_id else None)
            involved.workers.update(worker_id for worker_id in (vertex.worker_id,) if worker_id)
            involved.tasks.update(task_id for task_id in (vertex.task_id,) if task_id)
            involved.actors.update(actor_id for actor_id in actors if actor_id)
        known = (self._index.actors.get(actor_id) for actor_id in involved.actors)
        involved.classes.update(actor.class_name for actor in known if actor)
        return involved

    def _failed_calls(self, jobs: set[str], involved: _Involved) -> Iterator[FailedBefore]:
        """The failed tasks; not those that failed because their actor died, which is a failure itself."""
        dead = {actor.actor_id for actor in self._dead(jobs)}
        for task in self._index.snapshot.failed_tasks:
            actor = self._index.actors.get(task.actor_id or "")
            is_related = _is_about(task, actor, involved)
            is_of_dead = task.actor_id in dead and task.error_type != RAISED
            if task.job_id in jobs and not is_of_dead and (is_related or task.error_type not in INTENDED):
                yield self._failed_call(task, actor, is_related=is_related)

    def _failed_call(self, task: FailedTask, actor: Actor | None, *, is_related: bool) -> FailedBefore:
        node = self._index.nodes.get(task.node_id or "")
        return FailedBefore(
            name=task.name,
            error=task.error or task.error_type,
            error_type=task.error_type,
            task_id=task.task_id,
            actor_id=task.actor_id,
            actor=names.actor(actor) if actor else None,
            job_id=task.job_id,
            pid=task.pid,
            node_ip=node.ip if node else None,
            file=task.file,
            line=task.line,
            source=task.source,
            failed_at=task.failed_at,
            ago_s=self._ago_s(task.failed_at),
            is_held=task.is_held,
            is_related=is_related,
        )

    # Asyncio tasks

    def _ended_tasks(self, keys: Iterable[Key]) -> Iterator[FailedBefore]:
        """The asyncio tasks of the processes in which these wait for an object; cancelled ones if they held it."""
        for place, awaited in self._awaited(keys).items():
            for ended in self._index.ended_tasks.get(place, ()):
                is_related = not awaited.isdisjoint(ended.held)
                if is_related or not ended.is_cancelled:
                    yield self._ended_task(place, ended, is_related=is_related)

    def _awaited(self, keys: Iterable[Key]) -> dict[Place, set[str]]:
        """The objects that these wait for, by process."""
        found: dict[Place, set[str]] = defaultdict(set)
        if self._index.ended_tasks:
            for vertex in map(self._reduced.vertices.__getitem__, keys):
                if vertex.worker_id and (object_id := reach_of(self._index.call_of_vertex(vertex)).object_id):
                    found[vertex.worker_id, vertex.child_pid].add(object_id)
        return found

    def _ended_task(self, place: Place, ended: EndedTask, *, is_related: bool) -> FailedBefore:
        index, (worker_id, child_pid) = self._index, place
        actor, worker = index.actor_of_worker(worker_id), index.workers.get(worker_id)
        frame = innermost_frame(index.snapshot.frames_of(ended))
        return FailedBefore(
            name=asyncio_task(*names_of_ended(ended)),
            error=": ".join(filter(None, (ended.error, ended.message))),
            error_type=ended.error,
            coroutine_id=ended.coroutine_id,
            actor_id=actor.actor_id if actor else None,
            actor=names.actor(actor) if actor else None,
            job_id=worker.job_id if worker else None,
            pid=child_pid or (worker.pid if worker else None),
            node_ip=node.ip if worker and (node := index.nodes.get(worker.node_id)) else None,
            file=frame.file if frame else None,
            line=frame.line if frame else None,
            source=index.snapshot.source_line(frame.file, frame.line) if frame else None,
            is_related=is_related,
        )

    # Actors

    def _dead(self, jobs: set[str]) -> list[Actor]:
        """The dead actors of these jobs that were not released."""
        return [one for one in self._dead_actors if one.job_id in jobs]

    @cached_property
    def _dead_actors(self) -> list[Actor]:
        actors = self._index.snapshot.actors
        return [one for one in actors if one.state == "DEAD" and one.death_reason not in (None, *RELEASED)]

    def _deaths(self, jobs: set[str], involved: _Involved) -> Iterator[FailedBefore]:
        for actor in self._dead(jobs):
            is_related = actor.actor_id in involved.actors or actor.class_name in involved.classes
            if is_related or actor.death_reason not in INTENDED:
                node = self._index.nodes.get(actor.node_id or "")
                yield FailedBefore(
                    name=names.actor(actor),
                    error=actor.death_cause or "",
                    error_type=actor.death_reason or "",
                    actor_id=actor.actor_id,
                    actor=names.actor(actor),
                    job_id=actor.job_id,
                    pid=actor.pid or None,
                    node_ip=node.ip if node else None,
                    failed_at=actor.ended_at,
                    ago_s=self._ago_s(actor.ended_at),
                    is_death=True,
                    is_related=is_related,
                )

    def _ago_s(self, failed_at: float | None) -> float | None:
        """How long ago it was; None if the clock of a node is known to differ."""
        if failed_at is None or not self._index.snapshot.has_one_time:
            return None
        ago = self._index.began_at - failed_at
        return round(ago, 3) if ago >= 0 else None


def _is_about(task: FailedTask, actor: Actor | None, involved: _Involved) -> bool:
    """Whether a task ran in a process of the waits, was submitted there, or is of one of their classes."""
    return (
        task.actor_id in involved.actors
        or task.worker_id in involved.workers
        or task.parent_task_id in involved.tasks
        or (actor is not None and actor.class_name in involved.classes)
    )


def folded(found: Iterable[FailedBefore]) -> Iterator[FailedBefore]:
    """The first of each group of similar failures, with their number."""
    groups: dict[tuple[object, ...], list[FailedBefore]] = defaultdict(list)
    for one in found:
        groups[identity(one)].append(one)
    return (replace(group[0], count=len(group)) for group in groups.values())


def identity(failed: FailedBefore) -> tuple[object, ...]:
    """A value that is equal for similar failures."""
    return (failed.error, *((failed.name, failed.file, failed.line) if not failed.is_death else ()))


# Words


def step(failed: FailedBefore) -> Step:
    """``Failed before: Worker.run (pid 7, node 10.0.0.1) raised ValueError: 3, 40 s ago``."""
    return Step(text=_sentence(failed), file=failed.file, line=failed.line, source=failed.source)


def headline(failures: Sequence[FailedBefore]) -> str:
    """What the first failure that the waits may be for adds to a sentence about these.

    It is an asyncio task that held what is awaited, or has an error that may not have been fetched.
    """
    first = next((failed for failed in failures if failed.is_held), None)
    ended = _ended_task(failures)
    if ended:
        return f"; {ended.name}, which held what is awaited, ended with {ended.error_type}"
    return f"; {first.name} {what_happened(first)}" if first else ""


def of_ended_task(failures: Sequence[FailedBefore]) -> str:
    """``asyncio task Pump.run, which held what is awaited, ended with KeyError: 7 at pump.py:9``, if there is one."""
    ended = _ended_task(failures)
    return f"{ended.name}, which held what is awaited, {what_happened(ended)}{_at(ended)}" if ended else ""


def _ended_task(failures: Sequence[FailedBefore]) -> FailedBefore | None:
    """The first asyncio task that held what is awaited."""
    return next((failed for failed in failures if failed.coroutine_id and failed.is_related), None)


def _at(failed: FailedBefore) -> str:
    return f" at {failed.file.rpartition('/')[2]}:{failed.line}" if failed.file else ""


def fix(failures: Sequence[FailedBefore]) -> str:
    """What to change about the end of a task, or an error that may not have been fetched; empty if there is none."""
    if ended := _ended_task(failures):
        return (
            f"Correct the {ended.error_type}{_at(ended)}. Where {ended.name} ends, set its exception on the futures "
            "that it serves, or put an end into its queues."
        )
    first = next((failed for failed in failures if failed.is_held), None)
    return fix_of_call(first) if first else ""


def fix_of_call(failed: FailedBefore) -> str:
    """To correct the error of a call, and to fetch it early."""
    return (
        f"Correct the error of {failed.name}. Fetch its result together with those of the other calls (ray.wait "
        "returns the first that is ready), so that its error is raised at once."
    )


def what_happened(failed: FailedBefore | FailedTask) -> str:
    """``raised ValueError: 3``, ``failed: WORKER_DIED`` or ``ended with ValueError: 3``, with a short error."""
    is_task = isinstance(failed, FailedBefore) and failed.coroutine_id is not None
    verb = "ended with" if is_task else "raised" if failed.error_type == RAISED else "failed:"
    return f"{verb} {(failed.error or failed.error_type)[:SHOWN_ERROR]}"


def happened_ago(failed: FailedBefore) -> str:
    """The same with its time and the number of similar failures: ``raised ValueError: 3, 40 s ago (2 alike)``."""
    return f"{what_happened(failed)}{_ago(failed)}{words.alike(failed.count)}"


def _ago(failed: FailedBefore) -> str:
    return f", {words.duration(failed.ago_s)} ago" if failed.ago_s is not None else ""


def _sentence(failed: FailedBefore) -> str:
    parts = (
        failed.actor if not failed.is_death else None,
        f"pid {failed.pid}" if failed.pid else None,
        f"node {failed.node_ip}" if failed.node_ip else None,
    )
    place = ", ".join(part for part in parts if part)
    if failed.coroutine_id is not None:
        reached = "" if failed.is_related else f" ({place}){IN_PROCESS}"
        return f"Ended before: {failed.name} with {failed.error}{reached}{words.alike(failed.count)}"
    is_raised = failed.error_type == RAISED
    verb = "died" if failed.is_death else "raised" if is_raised else "failed"
    what = f"{verb}{' ' if is_raised else ': '}{failed.error or 'no cause given'}"
    held = "" if failed.is_death else HELD if failed.is_held else NOT_HELD
    name = f"{failed.name}{f' ({place})' if place else ''}"
    return f"Failed before: {name} {what}{_ago(failed)}{held}{words.alike(failed.count)}"

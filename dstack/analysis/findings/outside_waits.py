"""What is in no finding: waits for what is outside of Ray, as an event or a child process, and executions that rest.

These sleep, poll by sleeping, or exit, outside of all known waits. They are no findings, since time may end them. They
are shown where there is nothing else to show: the driver of a job that stands still often polls for something that
never comes, such as nodes or an actor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from dstack import words
from dstack.analysis.evidence.wait_durations import of_any
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.vertex_roles import is_outside
from dstack.analysis.index.ray_libraries import is_machinery_actor
from dstack.analysis.index.shown_frames import user_frame
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.naming.sentences import step_at, subject
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Finding, IdleActors, OutsideWait, Since, Step, Verdict, Vertex
from dstack.observed.processes import LoopBody
from dstack.words import grouped


def resting(reduced: ReducedGraph, job_id: str | None = None) -> list[Vertex]:
    """The executions that rest, of one job if given; those of libraries only at the exit of their process."""
    return [
        vertex
        for vertex in reduced.vertices.values()
        if vertex.kind == "execution" and vertex.wait is None and job_id in (None, reduced.job_of(vertex))
        if _rests(reduced, vertex)
    ]


def _rests(reduced: ReducedGraph, vertex: Vertex) -> bool:
    if vertex.subject.what == "exit":
        return True
    if not reduced.is_in_users_code(vertex.key):
        return False
    details = details_of(reduced.index, vertex)
    loop = loop_of(details)
    return details.sleeps or (loop is not None and loop.sleeps and not details.on_cpu and _is_own(details, loop))


def loop_of(details: VertexDetails) -> LoopBody | None:
    """The innermost loop in the user's code around what an execution does."""
    own = (frame.body for frame in details.frames if frame.origin == "user")
    return next((body for body in own if body is not None), None)


def end_of_loop(vertex: Vertex, details: VertexDetails) -> str:
    """What may end the loop around a wait with a timeout, other than what it waits for; empty if that is not known."""
    loop = loop_of(details)
    if loop is None or vertex.wait is None or vertex.wait.timeout_s is None:
        return ""
    return f"goes on until {loop.until}" if loop.until else f"goes over {loop.over}" if loop.over else ""


def _is_own(details: VertexDetails, loop: LoopBody) -> bool:
    """Whether a loop is in the innermost function of the user's code: calls of others may compute."""
    own = user_frame(details.frames)
    return own is not None and own.body == loop


def explanation(reduced: ReducedGraph, waiters: Sequence[Vertex]) -> Iterator[Step]:
    """What these do at which lines, and whether anything else of their jobs runs."""
    shown = waiters[: words.SHOWN]
    for vertex in shown:
        details = details_of(reduced.index, vertex)
        yield step_at(f"{subject(vertex, details)} {_activity(details)}", details, vertex)
    jobs = reduced.jobs_of(vertex.key for vertex in waiters)
    if shown and reduced.are_at_rest(jobs, frozenset(vertex.key for vertex in waiters)):
        yield Step(text=f"Nothing else of {_jobs(jobs)} runs: no task, and no other thread is on a CPU")
    if shown and (progress := reduced.progress(jobs)):
        yield Step(text=names.progress(progress, jobs))


def _activity(details: VertexDetails) -> str:
    loop = loop_of(details)
    does = "is sleeping" if details.sleeps else "waits outside of Ray" if loop is None else "polls, and sleeps between"
    if loop is None:
        return does
    lines = f"lines {loop.first_line}-{loop.last_line}"
    return (
        f"{does}; its loop in {lines} calls {words.listed(loop.calls)}" if loop.calls else f"{does} in a loop, {lines}"
    )


def _jobs(jobs: Sequence[str]) -> str:
    return f"{words.word(len(jobs), 'job')} {words.listed(jobs)}" if jobs else "the cluster"


def outside_waits(
    reduced: ReducedGraph, findings: Iterable[Finding], rests: Sequence[Vertex], job_id: str | None = None
) -> tuple[OutsideWait, ...]:
    """The open waits in none of the findings, of one job if given; without findings also what ``rests`` or runs.

    They are grouped by name, call and line.
    """
    in_findings = {key for finding in findings if finding.kind != "failed" for key in finding.members}
    waiters = (reduced.vertices[key] for chain in reduced.chains for key in chain.waiters if key not in in_findings)
    is_of_job = (vertex for vertex in waiters if job_id is None or reduced.job_of(vertex) == job_id)
    shown = [vertex for vertex in is_of_job if reduced.is_of_application(vertex.key)]
    shown += () if in_findings else (*_running(reduced, rests, job_id), *rests)
    at_rest = {vertex.key for vertex in rests}
    groups = grouped((_outside_wait(reduced, vertex, is_at_rest=vertex.key in at_rest), vertex) for vertex in shown)
    found = (_of_all(one, similar) for one, similar in groups.items())
    return tuple(sorted(found, key=lambda one: (one.file is None, one.does != "runs", -one.count)))


def _of_all(first: OutsideWait, similar: Sequence[Vertex]) -> OutsideWait:
    """What is true of all of these; a single one has its name, also a thread."""
    name = _name(similar[0]) if len(similar) == 1 else first.name
    since = of_any([vertex.since or Since() for vertex in similar if vertex.wait])
    return replace(first, name=name, count=len(similar), since=since)


def _name(vertex: Vertex) -> str:
    """The name of an execution; of an exit that of its process."""
    return operand_in_words(vertex.subject.of[0]) if vertex.subject.what == "exit" else describe(vertex)


def _running(reduced: ReducedGraph, rests: Sequence[Vertex], job_id: str | None) -> Iterator[Vertex]:
    """What runs and does not wait, besides threads and drivers that rest; of one job if given."""
    return reduced.running(reduced.jobs_in_question(job_id), {vertex.key for vertex in rests})


def idle_actors(reduced: ReducedGraph, job_id: str | None = None) -> tuple[IdleActors, ...]:
    """The actors that are alive and execute nothing, by class or part of a library, without machinery."""
    busy = {worker.worker_id for worker in reduced.index.sample.workers if worker.running_task_ids}
    alive = (actor for actor in reduced.index.snapshot.actors if actor.state == "ALIVE")
    idle = (actor for actor in alive if actor.worker_id not in busy and job_id in (None, actor.job_id))
    counts = Counter(names.actor_kind(actor) for actor in idle if not is_machinery_actor(actor))
    return tuple(IdleActors(name=kind.name, unit=kind.unit, count=count) for kind, count in counts.most_common())


def verdict_without_findings(reduced: ReducedGraph, rests: Sequence[Vertex], job_id: str | None = None) -> Verdict:
    """The verdict on waits in no finding, and on what ``rests``, of one job if given.

    ``stalled`` if jobs at rest wait for what is outside of them; ``running`` if anything else of them runs, or polls
    for something; ``idle`` if nothing does.
    """
    waiters = {key for chain in reduced.chains for key in chain.waiters if reduced.is_of_application(key)}
    waiters.update(vertex.key for vertex in rests)
    of_waiters = reduced.jobs_of(waiters) if job_id is None else (job_id,)
    if waiters and reduced.are_at_rest(of_waiters):
        return "stalled"
    is_running = any(vertex.task_id or _polls(reduced, vertex) for vertex in rests) or any(
        vertex.task_id or not details_of(reduced.index, vertex).sleeps for vertex in _running(reduced, rests, job_id)
    )
    return "running" if is_running or reduced.have_moved(reduced.jobs_in_question(job_id)) else "idle"


def _polls(reduced: ReducedGraph, vertex: Vertex) -> bool:
    """Whether a loop around a sleep calls something: it waits for that."""
    loop = loop_of(details_of(reduced.index, vertex))
    return loop is not None and bool(loop.calls)


def _outside_wait(reduced: ReducedGraph, vertex: Vertex, *, is_at_rest: bool) -> OutsideWait:
    details = details_of(reduced.index, vertex)
    frame = user_frame(details.frames)
    is_exit = vertex.wait is None and vertex.subject.what == "exit"
    sleeps = vertex.wait is None and (is_at_rest or details.sleeps)
    rest = f"the exit of its process ({vertex.subject.of[-1]})" if is_exit else "sleep" * sleeps
    kind: Literal["driver", "asyncio task", "thread"] = (
        "driver" if reduced.is_driver(vertex) else "asyncio task" if vertex.coroutine_id else "thread"
    )
    return OutsideWait(
        name=_name(vertex) if vertex.task_id or kind == "driver" else "",
        call=vertex.wait.call if vertex.wait else rest,
        kind="task" if vertex.task_id else kind,
        count=1,
        file=frame.file if frame else None,
        line=frame.line if frame else None,
        does="waits" if vertex.wait or is_exit else "rests" if sleeps else "runs",
        loop=loop_of(details) if sleeps else None,
        awaits=_awaits(vertex),
    )


def _awaits(vertex: Vertex) -> Literal["", "a signal", "input at its terminal"]:
    ends = {end.what for end in vertex.wait.ends} if vertex.wait else set()
    return "a signal" if "signal" in ends else "input at its terminal" if "terminal" in ends else ""


def waits_outside(reduced: ReducedGraph) -> list[Vertex]:
    """The tasks, drivers and awaited executions that wait only for what is outside of Ray."""
    found = [
        vertex
        for vertex in reduced.vertices.values()
        if vertex.wait and vertex.kind == "execution" and _ends_outside(reduced, vertex)
    ]
    awaited = {target for vertex in reduced.vertices.values() for target in targets_of(vertex)} if found else set()
    return [vertex for vertex in found if vertex.task_id or vertex.key in awaited or reduced.is_driver(vertex)]


def _ends_outside(reduced: ReducedGraph, vertex: Vertex) -> bool:
    targets = [reduced.vertices[target] for target in targets_of(vertex)]
    return bool(targets) and all(map(is_outside, targets))

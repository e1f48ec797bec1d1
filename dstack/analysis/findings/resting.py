"""Executions of the application that rest outside of all known waits: they sleep, poll by sleeping, or exit.

They are no findings, since time may end them. They are shown where there is nothing else to show: the driver of a job
that stands still often polls for something that never comes, such as nodes or an actor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack import words
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.index.frames import user_frame
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import step_at, subject
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.model.diagnosis import Step, Vertex
from dstack.model.snapshot import Actor
from dstack.observed.processes import LoopBody


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


def actors_asked_for(reduced: ReducedGraph, waiters: Sequence[Vertex]) -> Iterator[Step]:
    """The actors that loops ask for by name and do not get: those that have died, or that Ray does not list."""
    asked: dict[tuple[str, str], None] = {}
    for vertex in waiters[: words.SHOWN]:
        loop = loop_of(details_of(reduced.index, vertex))
        job = reduced.index.jobs.get(reduced.job_of(vertex) or "")
        if loop is not None and job is not None:
            asked.update({(name, job.namespace): None for name in loop.actors})
    for name, namespace in asked:
        named = [actor for actor in reduced.index.actors.values() if (actor.name, actor.namespace) == (name, namespace)]
        if not any(actor.state != "DEAD" for actor in named):
            yield Step(text=f'ray.get_actor("{name}") {_absence(named)}')


def _absence(named: Sequence[Actor]) -> str:
    if not named:
        return "finds no actor: Ray lists none of this name in the namespace of the job"
    last = named[-1]
    return f"finds no actor: {names.actor(last)} is {last.state}: {last.death_cause or 'no cause given'}"

"""The words about failures that may be the cause of waits, and about restarts and retries after failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack import words
from dstack.analysis.findings.facts.failures import RAISED
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.wording.narration import SHOWN_ERROR
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import FailedBefore, Step, Vertex
from dstack.model.snapshot import Actor, FailedTask
from dstack.observed.node import Task

HELD = "; its result may never have been fetched"
NOT_HELD = "; its error may have been handled"


IN_PROCESS = "; it was in the same process"


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
    if first is None:
        return ""
    return (
        f"Correct the error of {first.name}. Fetch its result together with those of the other calls (ray.wait returns "
        "the first that is ready), so that its error is raised at once."
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


def restart_steps(facts: FindingFacts) -> Iterator[Step]:
    """How often the actors of a finding were restarted and its calls retried, with the last error."""
    for actor in facts.restarted[: words.SHOWN]:
        yield Step(text=_restarts(actor))
    for vertex, task in facts.retried[: words.SHOWN]:
        yield Step(text=_retries(facts.reduced.index, vertex, task), vertex=vertex.key)


def _restarts(actor: Actor) -> str:
    limit = "no limit" if actor.max_restarts < 0 else f"at most {words.times(actor.max_restarts)}"
    error = f"; its last process ended with: {actor.last_error}" if actor.last_error else ""
    return f"{names.actor(actor)} has been restarted {words.times(actor.num_restarts)} ({limit}){error}"


def _retries(index: SampleIndex, vertex: Vertex, task: Task) -> str:
    failed = (one for one in index.snapshot.failed_tasks if one.task_id == task.task_id)
    error = next((f"; its last error: {one.error_type} {one.error}".rstrip() for one in failed), "")
    first = "the first" if task.attempt == 1 else f"the first {task.attempt:,}"
    return f"{describe(vertex)} is at attempt {task.attempt + 1:,}: {first} failed{error}"

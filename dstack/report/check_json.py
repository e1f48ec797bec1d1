"""The stable, versioned JSON of ``dstack check --json``, schema ``dstack.check/1``."""

from __future__ import annotations

from collections.abc import Container, Sequence
from statistics import median
from typing import Any

import msgspec

from dstack.analysis.index.ranks import Ranks
from dstack.analysis.naming import names
from dstack.analysis.naming.vertex_details import VertexDetails, details_of, source_line
from dstack.analysis.stacks.app_threads import call_in_words
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.distributed_stack import alike
from dstack.diagnosis import FailedBefore, Finding, GroupWait, OutsideWait, Since, Step, Target, Vertex, Wait
from dstack.model import Process, Snapshot, Thread
from dstack.snapshot_file import to_json
from dstack.vertex_keys import Key

SCHEMA = "dstack.check/1"
MANY = 1000
"""Lists of members longer than this are shortened to one of each kind of pending ones, with their number."""
FIELDS = tuple(name for name in VertexDetails.__struct_fields__ if name not in ("frames", "on_cpu", "ranks"))
OUTSIDE = tuple(name for name in OutsideWait.__struct_fields__ if name != "since")
Json = dict[str, Any]


def check_json(analysed: AnalysedSnapshot) -> bytes:
    """The diagnosis as JSON, indented, with a newline at its end."""
    document = _Document(analysed).build()
    return msgspec.json.format(to_json(document), indent=2) + b"\n"


class _Document:
    def __init__(self, analysed: AnalysedSnapshot) -> None:
        self._snapshot = analysed.snapshot
        self._diagnosis = analysed.diagnosis
        self._index = analysed.first_index
        self._targets: dict[Key, Json] = {}

    def build(self) -> Json:
        return {
            "schema": SCHEMA,
            "verdict": self._diagnosis.verdict,
            "incomplete": self._diagnosis.incomplete,
            "job": self._diagnosis.job,
            "findings": [self._finding(finding) for finding in self._diagnosis.findings],
            "failed_before": [_failure(one) for one in self._diagnosis.failed_before],
            "outside_ray": [self._outside(wait) for wait in self._diagnosis.outside],
            "child_processes": [self._child(*child) for child in self._index.children()],
            "coverage": self._coverage(),
            "timing": self._timing(),
        }

    def _outside(self, wait: OutsideWait) -> Json:
        return {**{name: getattr(wait, name) for name in OUTSIDE}, "since_s": _bounds(wait.since)}

    def _finding(self, finding: Finding) -> Json:
        return {
            "kind": finding.kind,
            "confirmed": finding.confirmed,
            "assumed": list(finding.assumed),
            "summary": finding.summary,
            "advice": finding.advice,
            "explanation": [_sentence(step) for step in finding.explanation],
            "resources": list(finding.resources),
            "jobs": list(finding.jobs),
            "waiters_direct": finding.waiters_direct,
            "waiters_total": finding.waiters_total,
            "watched_s": finding.watched_s,
            "since_s": _bounds(finding.since),
            "progress": msgspec.to_builtins(finding.progress),
            "failed_before": [_failure(one) for one in finding.failed_before],
            "members": self._members(finding.members),
            "blocked_behind": self._members(
                finding.blocked_behind, {*finding.members, *finding.blocked_behind, *finding.helpers}
            ),
            "polled_by": self._members(finding.polled_by),
            "final_blockers": [
                {
                    **self._member(self._diagnosis.vertices[blocker.vertex]),
                    "alike": 0,
                    "waiters_direct": blocker.waiters_direct,
                    "waiters_total": blocker.waiters_total,
                }
                for blocker in finding.final_blockers
            ],
        }

    def _members(self, keys: Sequence[Key], within: Container[Key] | None = None) -> list[Json]:
        """Everybody; of very many, of pending ones that are alike only the first, with how many more are."""
        vertices = self._diagnosis.vertices
        groups = [[key] for key in keys] if len(keys) <= MANY else alike(vertices, keys)
        return [{**self._member(vertices[first], within), "alike": len(more)} for first, *more in groups]

    def _member(self, vertex: Vertex, within: Container[Key] | None = None) -> Json:
        """A vertex with what it waits for; of that, only what is ``within`` a finding that it is behind."""
        who = details_of(self._index, vertex)
        fields = {name: getattr(who, name) for name in FIELDS}
        waits = [self._wait(vertex.wait, within)] if vertex.wait else []
        since = _bounds(vertex.since)
        return {**fields, **_ranks(who.ranks), "never": vertex.never, "since_s": since, "waits_for": waits}

    def _wait(self, wait: Wait, within: Container[Key] | None) -> Json:
        targets = (target for group in wait.groups for target in group.targets)
        return {
            "kind": wait.kind,
            "needs": wait.needed,
            "of": wait.total,
            "timeout_s": wait.timeout_s,
            "evidence": wait.evidence,
            "inferred": wait.inferred,
            "polls": wait.polls,
            "process_group": _call_on_group(wait.of_group) if wait.of_group else None,
            "assumed": list(wait.assumed),
            "resources": list(wait.resources),
            "targets": [self._target(target) for target in targets if within is None or target.vertex in within],
        }

    def _target(self, target: Target) -> Json:
        if target.vertex not in self._targets:
            vertex = self._diagnosis.vertices[target.vertex]
            who = details_of(self._index, vertex)
            self._targets[target.vertex] = {
                "execution": vertex.label,
                "task_id": vertex.task_id,
                "task_name": who.task_name,
                "actor_id": who.actor_id,
            }
        return {"ref": target.ref, **self._targets[target.vertex]}

    def _child(self, worker_id: str, child: Process) -> Json:
        """A process that a worker has started, with where its threads are."""
        return {
            "worker_id": worker_id,
            "pid": child.pid,
            "parent_pid": child.parent_pid,
            "name": child.name,
            "state": child.state,
            **_ranks(self._index.ranks(worker_id, child.pid)),
            "threads": [self._thread(thread) for thread in child.threads],
        }

    def _thread(self, thread: Thread) -> Json:
        frames = self._snapshot.frames_of(thread)
        own = names.user_frame(frames) or (frames[0] if frames else None)
        return {
            "thread": thread.name,
            "on_cpu": thread.on_cpu,
            "torn": thread.torn,
            "waits_in": call_in_words(thread.call) or None,
            "file": own.file if own else None,
            "line": own.line if own else None,
            "function": own.function if own else None,
            "source": source_line(self._index, own) if own else None,
        }

    def _coverage(self) -> Json:
        coverage = self._diagnosis.coverage
        failures = [
            {name: getattr(failure, name) for name in failure.__struct_fields__} for failure in coverage.failures
        ]
        return {
            "nodes": {"seen": coverage.nodes.observed, "total": coverage.nodes.total},
            "workers": {"seen": coverage.workers.observed, "total": coverage.workers.total},
            "access": coverage.access,
            "failures": failures,
        }

    def _timing(self) -> Json:
        pauses = pauses_ms(self._snapshot)
        return {
            "total_s": self._snapshot.total_s,
            "sample_s": [round(sample.ended_s - sample.began_s, 4) for sample in self._snapshot.samples],
            "pause_ms": {"median": round(median(pauses), 2), "max": max(pauses)} if pauses else None,
        }


def _call_on_group(wait: GroupWait) -> Json:
    """A call on a process group: which ranks are in it, and of which at least one must come."""
    call, group = wait.call, wait.call.group
    return {
        "library": group.library,
        "group": group.name,
        "description": group.description,
        "operation": call.operation,
        "rank": group.rank,
        "peer": call.peer,
        "ranks": list(group.ranks),
        "inside": list(wait.inside),
        "missing": list(wait.missing),
        "fails_at": call.fails_at,
    }


def _ranks(ranks: Ranks) -> Json:
    """In which run it has which rank, in which dimensions, and the labels of the program."""
    fields = {name: getattr(ranks, name) for name in Ranks.__struct_fields__}
    return {**fields, "dimensions": dict(ranks.dimensions), "labels": dict(ranks.labels)}


def _failure(failed: FailedBefore) -> Json:
    return {name: getattr(failed, name) for name in failed.__struct_fields__}


def _bounds(since: Since | None) -> Json:
    """For how many seconds it has lasted; null where nothing is known."""
    return {"at_least": since.at_least_s if since else None, "at_most": since.at_most_s if since else None}


def pauses_ms(snapshot: Snapshot) -> list[float]:
    """An upper bound on each look's pause of its process, 0 where it was read without one."""
    processes = [w.process for sample in snapshot.samples for w in sample.workers if w.process]
    children = [child.paused_ms for process in processes for child in process.children]
    return [process.paused_ms for process in processes] + children


def _sentence(step: Step) -> str:
    if step.file is None:
        return step.text
    source = f": {step.source}" if step.source else ""
    return f"{step.text}, at {step.file}:{step.line}{source}"

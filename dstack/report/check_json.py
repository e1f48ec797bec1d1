"""The stable, versioned JSON of ``dstack check --json``, schema ``dstack.check/2``."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import fields
from statistics import median
from typing import TypeVar

import msgspec

from dstack.analysis.index.process_index import newest_processes
from dstack.analysis.index.ranks import Ranks
from dstack.analysis.index.shown_frames import innermost_frame
from dstack.analysis.naming.descriptions import in_words
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.stacks.app_threads import call_in_words
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.distributed_stack import group_similar
from dstack.files.document_file import to_json
from dstack.model.diagnosis import (
    Cure,
    DumpedRanks,
    FailedBefore,
    Finding,
    GroupWait,
    OutsideWait,
    RankDifference,
    Since,
    Step,
    Target,
    Vertex,
    Wait,
)
from dstack.model.prediction import PossibleDeadlock
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.observed.calls import Timer
from dstack.observed.processes import Process, Thread
from dstack.report import check_schema
from dstack.report.not_observed import Unobserved, gaps_in_words
from dstack.words import grouped

MANY = 1000
"""Longer lists of members are shortened: of similar pending members only the first is listed, with their number."""
Shape = TypeVar("Shape")


def check_json(analysed: AnalysedSnapshot) -> bytes:
    """The diagnosis as JSON, indented, with a newline at its end."""
    document = _DocumentBuilder(analysed).build()
    return msgspec.json.format(to_json(document), indent=2) + b"\n"


class _DocumentBuilder:
    def __init__(self, analysed: AnalysedSnapshot) -> None:
        self._analysed = analysed
        self._snapshot = analysed.snapshot
        self._diagnosis = analysed.diagnosis
        self._index = analysed.first_index
        self._details: dict[Key, VertexDetails] = {}

    def build(self) -> check_schema.Document:
        diagnosis = self._diagnosis
        return {
            "schema": "dstack.check/2",
            "verdict": diagnosis.verdict,
            "incomplete": diagnosis.incomplete,
            "gaps": [_gap(gap) for gap in gaps_in_words(self._analysed)],
            "job": diagnosis.job,
            "findings": [self._finding(finding) for finding in diagnosis.findings],
            "failed_before": [_failed_before(failed) for failed in diagnosis.failed_before],
            "dumped": _dumped(diagnosis.dumped),
            "explanation": [_sentence(step) for step in (*diagnosis.remarks, *diagnosis.explanation)],
            "idle": [{"name": one.name, "count": one.count} for one in diagnosis.idle],
            "last_progress": diagnosis.progress.last_ended_at if diagnosis.progress else None,
            "tasks_per_s": diagnosis.progress.per_s if diagnosis.progress else None,
            "outside_ray": [_outside(wait) for wait in diagnosis.outside],
            "child_processes": [self._child(worker_id, child) for worker_id, child in self._index.children()],
            "possible_deadlocks": self._possible(),
            "gpus": list(self._gpus()),
            "coverage": self._coverage(),
            "timing": _timing(self._snapshot),
        }

    def _possible(self) -> list[PossibleDeadlock] | None:
        """What another order of the calls could reach; None without a history of tasks."""
        return None if self._snapshot.history is None else list(self._analysed.prediction.possible)

    def _finding(self, finding: Finding) -> check_schema.DocumentFinding:
        return {
            "kind": finding.kind,
            "confirmed": finding.confirmed,
            "assumed": list(finding.assumed),
            "summary": finding.summary,
            "advice": msgspec.to_builtins(finding.advice),
            "cures": [self._cure(cure) for cure in finding.cures],
            "difference": _difference(finding.difference),
            "explanation": [_sentence(step) for step in finding.explanation],
            "resources": list(finding.resources),
            "jobs": list(finding.jobs),
            "waiters_direct": finding.waiters_direct,
            "waiters_total": finding.waiters_total,
            "watched_s": finding.watched_s,
            "since_s": _bounds(finding.since),
            "since": finding.since.began_at if finding.since else None,
            "last_progress": finding.progress.last_ended_at if finding.progress else None,
            "progress": msgspec.to_builtins(finding.progress),
            "failed_before": [_failed_before(failed) for failed in finding.failed_before],
            "last_words": [_fields_of(words, check_schema.DocumentLastWords) for words in finding.last_words],
            "members": self._members(finding.members),
            "blocked_behind": self._members(
                finding.blocked_behind, {*finding.members, *finding.blocked_behind, *finding.helpers}
            ),
            "polled_by": self._members(finding.polled_by),
            "final_blockers": list(self._final_blockers(finding)),
        }

    def _cure(self, cure: Cure) -> check_schema.DocumentCure:
        left = [self._target(Target(vertex=key)) for key in cure.left[:MANY]] if cure.freed else []
        values = {**msgspec.structs.asdict(cure), "left": left}
        return msgspec.convert(values, check_schema.DocumentCure)

    def _final_blockers(self, finding: Finding) -> Iterator[check_schema.DocumentBlocker]:
        for blocker in finding.final_blockers:
            yield {
                **self._member(self._diagnosis.vertices[blocker.vertex]),
                "waiters_direct": blocker.waiters_direct,
                "waiters_total": blocker.waiters_total,
            }

    def _members(self, keys: Sequence[Key], within: Container[Key] | None = None) -> list[check_schema.DocumentMember]:
        """All members; of very many similar pending ones only the first, with the number of the others."""
        vertices = self._diagnosis.vertices
        groups = [[key] for key in keys] if len(keys) <= MANY else group_similar(vertices, keys)
        return [self._member(vertices[first], within, len(others)) for first, *others in groups]

    def _member(
        self, vertex: Vertex, within: Container[Key] | None = None, similar: int = 0
    ) -> check_schema.DocumentMember:
        """A vertex with its dependencies, of which only those ``within`` a finding if that is given."""
        details = self._details_of(vertex.key)
        values = {
            **_shallow(details),
            **ranked(details.ranks),
            "never": in_words(vertex.never) if vertex.never else None,
            "since_s": _bounds(vertex.since),
            "waits_for": [self._wait(vertex.wait, within)] if vertex.wait else [],
            "alike": similar,
        }
        return msgspec.convert(values, check_schema.DocumentMember)

    def _wait(self, wait: Wait, within: Container[Key] | None) -> check_schema.DocumentWait:
        return {
            "kind": wait.kind_name,
            "needs": wait.needed,
            "of": wait.total,
            "timeout_s": wait.timeout_s,
            "evidence": wait.evidence,
            "inferred": in_words(wait.inferred) if wait.inferred else None,
            "polls": wait.polls,
            "process_group": _call_on_group(wait.of_group) if wait.of_group else None,
            "assumed": list(map(in_words, wait.assumed)),
            "resources": list(wait.resources),
            "targets": [self._target(target) for target in wait.targets if within is None or target.vertex in within],
            "timer": _timer(wait.timer) if wait.timer else None,
            "cut_short_by": [self._target(target) for target in (*wait.failing, *wait.cut_short_by)],
        }

    def _target(self, target: Target) -> check_schema.DocumentTarget:
        details = self._details_of(target.vertex)
        return {
            "ref": target.ref,
            "execution": details.execution,
            "task_id": details.task_id,
            "task_name": details.task_name,
            "actor_id": details.actor_id,
        }

    def _details_of(self, key: Key) -> VertexDetails:
        """The details of a vertex; a member is often the target of another one, too."""
        if key not in self._details:
            self._details[key] = details_of(self._index, self._diagnosis.vertices[key])
        return self._details[key]

    def _child(self, worker_id: str, child: Process) -> check_schema.DocumentChild:
        return {
            "worker_id": worker_id,
            "pid": child.pid,
            "parent_pid": child.parent_pid,
            "name": child.name,
            "state": child.state,
            **ranked(self._index.ranks(worker_id, child.pid)),
            "threads": [self._thread(thread) for thread in child.threads],
        }

    def _thread(self, thread: Thread) -> check_schema.DocumentThread:
        frames = self._snapshot.frames_of(thread)
        frame = innermost_frame(frames)
        return {
            "thread": thread.name,
            "on_cpu": thread.on_cpu,
            "torn": thread.torn,
            "waits_in": call_in_words(thread.call) or None,
            "file": frame.file if frame else None,
            "line": frame.line if frame else None,
            "function": frame.function if frame else None,
            "source": self._snapshot.source_line(frame.file, frame.line) if frame else None,
        }

    def _gpus(self) -> Iterator[check_schema.DocumentNodeGpus]:
        users = grouped(self._gpu_processes())
        for node in self._snapshot.nodes:
            host = node.host
            if host.gpus is not None or host.nvml_silent_s is not None or host.xids or node.node_id in users:
                yield {
                    "node_id": node.node_id,
                    "node_ip": node.ip,
                    "gpus": None if host.gpus is None else list(host.gpus),
                    "nvml_silent_s": host.nvml_silent_s,
                    "xids": list(host.xids),
                    "processes": users.get(node.node_id, []),
                }

    def _gpu_processes(self) -> Iterator[tuple[str, check_schema.DocumentGpuProcess]]:
        """The processes of which their use of CUDA is known, each with its node."""
        index = self._index
        for worker_id, process in newest_processes(self._snapshot).items():
            for one in process.family if worker_id in index.workers else ():
                if one.cuda is not None:
                    yield (
                        index.workers[worker_id].node_id,
                        {
                            "worker_id": worker_id,
                            "pid": one.pid,
                            "cuda": one.cuda,
                            "gpus": None if one.gpus is None else list(one.gpus),
                            **ranked(index.ranks(worker_id, None if one.parent_pid is None else one.pid)),
                        },
                    )

    def _coverage(self) -> check_schema.DocumentCoverage:
        coverage = self._diagnosis.coverage
        return {
            "nodes": {"seen": coverage.nodes.observed, "total": coverage.nodes.total},
            "workers": {"seen": coverage.workers.observed, "total": coverage.workers.total},
            "access": dict(coverage.access.items()),
            "failures": list(coverage.failures),
        }


def _fields_of(value: msgspec.Struct, shape: type[Shape]) -> Shape:
    """The fields of a struct that a type of the document names."""
    return msgspec.convert(msgspec.structs.asdict(value), shape)


def _shallow(value: VertexDetails | Ranks) -> dict[str, object]:
    """The fields of a dataclass; unlike ``asdict``, without copies of their values."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _gap(gap: Unobserved) -> check_schema.DocumentGap:
    return {"kind": gap.kind, "text": gap.text, "count": gap.count}


def _difference(value: RankDifference | None) -> check_schema.DocumentDifference | None:
    return _fields_of(value, check_schema.DocumentDifference) if value else None


def _dumped(value: DumpedRanks | None) -> check_schema.DocumentDumped | None:
    if value is None:
        return None
    return msgspec.convert(
        {**msgspec.structs.asdict(value), "difference": _difference(value.difference)}, check_schema.DocumentDumped
    )


def _failed_before(failed: FailedBefore) -> check_schema.DocumentFailedBefore:
    return _fields_of(failed, check_schema.DocumentFailedBefore)


def _outside(wait: OutsideWait) -> check_schema.DocumentOutside:
    return msgspec.convert(
        {**msgspec.structs.asdict(wait), "since_s": _bounds(wait.since)}, check_schema.DocumentOutside
    )


def _timing(snapshot: Snapshot) -> check_schema.DocumentTiming:
    pauses = pauses_ms(snapshot)
    return {
        "total_s": snapshot.total_s,
        "sample_s": [round(sample.ended_s - sample.began_s, 4) for sample in snapshot.samples],
        "pause_ms": {"median": round(median(pauses), 2), "max": max(pauses)} if pauses else None,
    }


def _timer(timer: Timer) -> check_schema.DocumentTimer:
    return {"name": timer.name, "left_s": timer.left_s, "file": timer.file, "line": timer.line}


def _call_on_group(wait: GroupWait) -> check_schema.DocumentGroupCall:
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


def ranked(ranks: Ranks) -> check_schema.Ranked:
    """The ranks and labels of a process, as every document has them."""
    values = {**_shallow(ranks), "dimensions": dict(ranks.dimensions), "labels": dict(ranks.labels)}
    return msgspec.convert(values, check_schema.Ranked)


def _bounds(since: Since | None) -> check_schema.Bounds:
    return {"at_least": since.at_least_s if since else None, "at_most": since.at_most_s if since else None}


def pauses_ms(snapshot: Snapshot) -> list[float]:
    """Upper bounds on the pauses of all processes in milliseconds, 0 for those that were read without one."""
    processes = [w.process for sample in snapshot.samples for w in sample.workers if w.process]
    children = [child.paused_ms for process in processes for child in process.children]
    return [process.paused_ms for process in processes] + children


def _sentence(step: Step) -> str:
    if step.file is None:
        return step.text
    source = f": {step.source}" if step.source else ""
    return f"{step.text}, at {step.file}:{step.line}{source}"

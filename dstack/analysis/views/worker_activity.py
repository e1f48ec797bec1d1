"""The activity of each worker and of its executions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.index import subjects
from dstack.analysis.index.frames import user_frame
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.task_assignment import is_in_user_code
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.naming.sentences import predicate
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.app_threads import ACTIVITIES, Activity
from dstack.model.diagnosis import Diagnosis, Vertex
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Coroutine, Frame, Thread
from dstack.words import grouped

PERMANENT = ("deadlock", "orphaned", "infeasible")


@dataclass(frozen=True, slots=True)
class ExecutionGroup:
    """Similar executions: their ``count`` and activity, and the name and the sentence of the first.

    ``vertex`` is that of the first. ``is_whole_process`` is true for a driver's main code.
    """

    vertex: Key
    activity: Activity
    name: str
    words: str
    is_whole_process: bool = False
    file: str | None = None
    line: int | None = None
    source: str | None = None
    count: int = 1

    @property
    def text(self) -> str:
        """The sentence."""
        return f"{self.name} {self.words}"


class WorkerActivity:
    """The executions of all workers with their activities."""

    def __init__(self, index: SampleIndex, diagnosis: Diagnosis) -> None:
        self._index = index
        self._vertices = diagnosis.vertices
        self._frames: dict[int, Frame | None] = {}
        self.stuck = {
            key
            for finding in diagnosis.findings
            if finding.kind in PERMANENT
            for key in (*finding.members, *finding.blocked_behind)
        }

    def groups(self, worker_id: str) -> tuple[ExecutionGroup, ...]:
        """The executions of a worker, stuck ones first, similar ones as one group."""
        groups = grouped((self._shape(vertex), vertex) for vertex in self._executions.get(worker_id, ()))
        found = [self._group(first, 1 + len(others)) for first, *others in groups.values()]
        return tuple(sorted(found, key=lambda group: ACTIVITIES.index(group.activity)))

    def counts(self, worker_id: str) -> dict[Activity, int]:
        """The number of executions of a worker by activity."""
        counts: dict[Activity, int] = defaultdict(int)
        for vertex in self._executions.get(worker_id, ()):
            counts[self._activity(vertex)] += 1
        return dict(counts)

    def shapes(self, worker_id: str) -> frozenset[object]:
        """Equal for workers whose executions are similar."""
        return frozenset(map(self._shape, self._executions.get(worker_id, ())))

    @cached_property
    def _executions(self) -> dict[str, list[Vertex]]:
        return grouped((vertex.worker_id or "", vertex) for vertex in filter(self._is_active, self._vertices.values()))

    def _is_active(self, vertex: Vertex) -> bool:
        """Whether it is an execution, and not a thread of an idle worker that waits for its next task."""
        if vertex.worker_id is None or vertex.kind not in ("execution", "task"):
            return False
        if vertex.task_id or vertex.wait or vertex.never:
            return True
        worker = self._index.workers.get(vertex.worker_id)
        sample = self._index.worker_samples.get(vertex.worker_id)
        if (worker and worker.is_driver) or sample is None or sample.running_task_ids != ():
            return True
        return is_in_user_code(self._index, vertex)

    def _activity(self, vertex: Vertex) -> Activity:
        if vertex.key in self.stuck:
            return "stuck"
        if vertex.kind == "task" and vertex.wait is not None:
            if self._is_unreadable(vertex):
                return "unreadable"
            if vertex.wait.kind == "thread":
                return "running"
        return "waiting" if vertex.wait or vertex.never else "running"

    def _is_unreadable(self, vertex: Vertex) -> bool:
        """Whether it is a running task whose stack was not read."""
        return vertex.kind == "task" and any(self._vertices[key].unobserved for key in targets_of(vertex))

    def _group(self, vertex: Vertex, count: int) -> ExecutionGroup:
        details = details_of(self._index, vertex)
        return ExecutionGroup(
            vertex=vertex.key,
            activity=self._activity(vertex),
            name=describe(vertex),
            words=self._words(vertex, details),
            is_whole_process=self._is_whole_process(vertex),
            file=details.file,
            line=details.line,
            source=details.source,
            count=count,
        )

    def _words(self, vertex: Vertex, details: VertexDetails) -> str:
        if vertex.kind == "task" and vertex.key not in self.stuck:
            if self._is_unreadable(vertex):
                targets = (self._vertices[key] for key in targets_of(vertex))
                hidden = next(describe(target) for target in targets if target.unobserved)
                return f"runs, but its stack was not read: {hidden}"
            if vertex.wait is None or vertex.wait.kind == "thread":
                return "runs on an unknown thread"
        return predicate(self._index, self._vertices, vertex, details)

    def _is_whole_process(self, vertex: Vertex) -> bool:
        """Whether it is a driver's main thread, or a driver without stacks."""
        worker = self._index.workers.get(vertex.worker_id or "")
        if worker is None or not worker.is_driver or vertex.task_id is not None:
            return False
        return vertex.kind == "task" or vertex.os_thread_id == worker.pid

    def _shape(self, vertex: Vertex) -> object:
        """Equal for similar executions: by name, line, and the names of the dependencies."""
        wait = vertex.wait
        execution = self._index.execution_of(vertex)
        targets = frozenset(describe(self._vertices[key]) for key in targets_of(vertex))
        return (
            self._common_name(vertex, execution),
            self._activity(vertex),
            self._user_frame(execution) if execution else None,
            wait and (wait.kind, wait.called, wait.timeout_s, targets),
        )

    def _user_frame(self, execution: Thread | Coroutine) -> Frame | None:
        if execution.stack not in self._frames:
            self._frames[execution.stack] = user_frame(self._index.snapshot.frames_of(execution))
        return self._frames[execution.stack]

    def _common_name(self, vertex: Vertex, execution: Thread | Coroutine | None) -> tuple[str, bool]:
        """The name of an execution, of an asyncio task without its number; and whether it is an asyncio task."""
        if isinstance(execution, Coroutine) and vertex.task_id is None:
            return operand_in_words(subjects.owner_of(self._index, vertex.worker_id or "", execution)), True
        return describe(vertex), False

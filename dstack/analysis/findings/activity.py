"""Which executions of a snapshot run, or may run: each could end a wait whose waker is not known."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from dstack.analysis.evidence.coverage import read_workers
from dstack.analysis.findings.vertex_roles import VertexRoles
from dstack.analysis.index.ray_libraries import machinery
from dstack.analysis.index.task_assignment import is_in_user_code
from dstack.analysis.naming.descriptions import describe
from dstack.diagnosis import Vertex


class Activity:
    """The running executions of a graph, and the jobs that have unread ones."""

    def __init__(self, roles: VertexRoles) -> None:
        self._roles = roles

    @cached_property
    def running_tasks(self) -> dict[tuple[str, str | None], list[Vertex]]:
        """The executions that run a task, by the task's name and job."""
        named: dict[tuple[str, str | None], list[Vertex]] = defaultdict(list)
        for vertex in self._roles.vertices.values():
            if vertex.worker_id is not None and vertex.task_id is not None:
                named[describe(vertex), self._roles.job_of(vertex)].append(vertex)
        return named

    @cached_property
    def runners(self) -> dict[str | None, list[Vertex]]:
        """The executions that run or are unread, by job; None for those whose job is not known.

        Ray libraries at work for themselves are left out.
        """
        runners: dict[str | None, list[Vertex]] = defaultdict(list)
        machines = machinery(self._roles.index, self._roles.vertices)
        for vertex in self._roles.vertices.values():
            if vertex.unobserved or (vertex.key not in machines and self._may_run(vertex)):
                runners[None if vertex.unobserved else self._roles.job_of(vertex)].append(vertex)
        return runners

    @cached_property
    def unread_jobs(self) -> set[str | None]:
        """The jobs of unread processes; None among them if the job of one is not known."""
        snapshot = self._roles.index.snapshot
        read = read_workers(snapshot)
        return {worker.job_id for worker in snapshot.workers if worker.worker_id not in read}

    def _may_run(self, vertex: Vertex) -> bool:
        """Whether it runs a task or a driver's main code and its wait may end, or may act by itself.

        A coroutine that sleeps in the user's code may act. Threads of libraries always sleep between their rounds, so
        they count only while on a CPU.
        """
        if vertex.worker_id is None or (vertex.wait is not None and not vertex.wait.is_timed):
            return False
        if vertex.task_id is not None or vertex.wait is not None or self._roles.is_driver(vertex):
            return True
        index, execution = self._roles.index, self._roles.index.execution_of(vertex)
        if execution is None:
            return False
        return index.is_on_cpu(vertex.worker_id, execution) or is_in_user_code(index, vertex)

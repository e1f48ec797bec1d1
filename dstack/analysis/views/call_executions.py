"""Where the calls of a call graph are in the other views: the vertices of those that run or are pending."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.vertex_keys import CoroutineKey, Key, ThreadKey


class CallExecutions:
    """Finds the vertices of unfinished tasks in one snapshot."""

    def __init__(self, analysed: AnalysedSnapshot) -> None:
        self._analysed = analysed

    @cached_property
    def _of_task(self) -> dict[str, Key]:
        vertices = self._analysed.diagnosis.vertices.values()
        return {vertex.task_id: vertex.key for vertex in vertices if vertex.task_id and vertex.is_counted}

    def running(self, tasks: Iterable[str]) -> Key | None:
        """The thread or coroutine that runs the first of these tasks of which it is known."""
        index = self._analysed.merged_index
        for task_id in tasks:
            if task_id in index.coroutine_of_task:
                return CoroutineKey(*index.coroutine_of_task[task_id])
            if task_id in index.thread_of_task:
                return ThreadKey(*index.thread_of_task[task_id])
        return None

    def with_stack(self, vertices: Iterable[Key]) -> Key | None:
        """The first of these vertices that is an execution."""
        known = self._analysed.diagnosis.vertices
        return next((key for key in vertices if key in known and known[key].kind == "execution"), None)

    def waiting(self, tasks: Iterable[str]) -> Key | None:
        """The vertex of the first of these tasks that takes part in a wait."""
        return next((self._of_task[task_id] for task_id in tasks if task_id in self._of_task), None)

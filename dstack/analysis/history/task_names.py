"""What calls are named in the call tree of a history, and the groups that they may be in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.naming import names, ray_libraries
from dstack.analysis.stacks.app_threads import PathStep, job_in_words
from dstack.analysis.stacks.stack_tree import Grouping
from dstack.model import TaskAttempt


class TaskNames:
    """The steps and groups of attempts; those of the same name are the same."""

    def __init__(self, history: HistoryIndex) -> None:
        self._index = history.index
        self._attempts = history.history.attempts
        self._steps: dict[tuple[str, str, str | None], PathStep] = {}

    def groups(self, task: TaskAttempt, by: Grouping | None) -> tuple[str, ...]:
        """The group of an attempt, if it is to be in one: ``node 10.0.0.1``, ``job 01000000 train.py``, a class."""
        if by is None:
            return ()
        if by == "node":
            return (self._nodes.get(task.node_id or "", "node unknown"),)
        return (self._jobs[task.job_id] if by == "job" else _kind(task),)

    def step(self, task: TaskAttempt) -> PathStep:
        """The step of a call: of a task or method by its name, of a driver by its script."""
        key = task.name, task.kind, task.job_id if task.kind == "DRIVER_TASK" else task.actor_id
        if key not in self._steps:
            self._steps[key] = self._new_step(task)
        return self._steps[key]

    def _new_step(self, task: TaskAttempt) -> PathStep:
        if task.kind == "DRIVER_TASK":
            job = self._index.jobs.get(task.job_id)
            name = f"driver {names.script(job.entrypoint)}" if job and job.entrypoint else "driver"
            return PathStep(name, function=name)
        actor = self._index.actors.get(task.actor_id or "")
        part = ray_libraries.part(actor.class_name, actor.name, actor.actor_id) if actor else None
        library = part.call(task.name) if part else ray_libraries.data_operator(task.name)
        name = library or task.name or "unnamed task"
        return PathStep(name, function=name, origin="ray" if library else "user")

    @cached_property
    def _nodes(self) -> Mapping[str, str]:
        return {node.node_id: names.node(node) for node in self._index.snapshot.nodes}

    @cached_property
    def _jobs(self) -> Mapping[str, str]:
        return {job_id: job_in_words(self._index, job_id) for job_id in {task.job_id for task in self._attempts}}


def _kind(task: TaskAttempt) -> str:
    """``actor Trainer``, ``tasks`` or ``drivers``."""
    if task.kind in ("ACTOR_TASK", "ACTOR_CREATION_TASK"):
        return f"actor {task.name.rpartition('.')[0] or 'unknown'}"
    return "drivers" if task.kind == "DRIVER_TASK" else "tasks"

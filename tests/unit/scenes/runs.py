"""Runs that ended, as snapshots with a history of tasks and the outlines of their source.

    run = Run(tmp_path, SOURCE, slots...)
    shop = run.actor("Shop")
    call = run.call("Shop.work", at=0.0, until=0.1, of=shop)
    run.call("Shop.ping", at=0.02, until=0.03, of=other, by=call)
    run.snapshot()

Times are seconds from the begin of the run. A call that has no end still runs, one without a begin is queued.
"""

from __future__ import annotations

from pathlib import Path

from dstack.model.snapshot import Actor, Job, Node, Snapshot, TaskAttempt, TaskHistory
from dstack.observed.node import TaskKind
from dstack.observed.outlines import ProgramOutline
from dstack.probes.node.outlines import outline_of_files

JOB = "01000000"
BEGAN = 1_800_000_000.0
DRIVER = "f" * 40 + JOB


class Run:
    """The calls of one job, whose program is ``source``: with a function ``main``, which is its own code.

    It runs ``until`` a time, or still.
    """

    def __init__(self, folder: Path, source: str, until: float | None = None, **resources: float) -> None:
        file = folder / "app.py"
        file.write_text(source)
        self.outline = outline_of_files([str(file)], (str(file), "main"), job_id=JOB)
        self._resources = {"CPU": 2.0, **resources}
        self._actors: list[Actor] = []
        self._attempts: list[TaskAttempt] = []
        self._add("", "DRIVER_TASK", DRIVER, None, 0.0, 0.0, until, None, {})

    def actor(self, class_name: str, **required: float) -> str:
        """Create an actor, right at the begin, and return its id."""
        actor_id = f"{len(self._actors) + 1:024x}{JOB}"
        self._actors.append(
            Actor(actor_id=actor_id, job_id=JOB, class_name=class_name, state="ALIVE", required_resources=required)
        )
        self._add(
            f"{class_name}.__init__",
            "ACTOR_CREATION_TASK",
            f"{'f' * 16}{actor_id}",
            DRIVER,
            0.0,
            0.0,
            0.001,
            actor_id,
            {},
        )
        return actor_id

    def call(
        self,
        name: str,
        at: float,
        until: float | None = None,
        *,
        began: float | None = None,
        of: str | None = None,
        by: str = DRIVER,
        **required: float,
    ) -> str:
        """A call that was submitted ``at`` a time and ran from then on, or from when it ``began``; returns its id."""
        task_id = f"{len(self._attempts) + 1:016x}{of or 'f' * 24 + JOB}"
        kind: TaskKind = "ACTOR_TASK" if of else "NORMAL_TASK"
        self._add(name, kind, task_id, by, at, at if began is None else began, until, of, required)
        return task_id

    def _add(
        self,
        name: str,
        kind: TaskKind,
        task_id: str,
        parent: str | None,
        at: float,
        began: float,
        until: float | None,
        actor_id: str | None,
        required: dict[str, float],
    ) -> None:
        states = {"PENDING_ARGS_AVAIL": BEGAN + at, "RUNNING": BEGAN + began}
        if until is not None:
            states["FINISHED"] = BEGAN + until
        self._attempts.append(
            TaskAttempt(
                task_id=task_id,
                name=name,
                kind=kind,
                job_id=JOB,
                actor_id=actor_id,
                parent_task_id=parent,
                states=states,
                required_resources=required,
                worker_id=actor_id or task_id,
                node_id="n1",
            )
        )

    def snapshot(self, *, has_source: bool = True) -> Snapshot:
        """The run, with or without what was read of its source."""
        outlines: tuple[ProgramOutline, ...] = (self.outline,) if has_source else ()
        return Snapshot(
            dstack_version="1.0",
            taken_at=BEGAN + 60.0,
            address="10.0.0.1:6379",
            ray_version="2.60.0",
            nodes=(Node(node_id="n1", ip="10.0.0.1", resources=self._resources),),
            jobs=(Job(job_id=JOB, entrypoint="python app.py", driver_ip="10.0.0.1"),),
            actors=tuple(self._actors),
            history=TaskHistory(asked_at=BEGAN + 60.0, attempts=tuple(self._attempts), kept=len(self._attempts)),
            outlines=outlines,
        )

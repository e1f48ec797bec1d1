"""Samples of the processes of a scene, as the model has them."""

from __future__ import annotations

from dataclasses import replace

from dstack.model.snapshot import WorkerSample
from dstack.observed.processes import Coroutine, Frame, Process, Thread
from tests.unit.scenes.processes import SceneCoroutine, SceneProcess, SceneThread


class WorkerSampler:
    """Makes worker samples, and collects their frames and stacks, whose indices they use."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}

    def sample(self, proc: SceneProcess, *, is_wanted: bool = True) -> WorkerSample:
        """The worker's sample, without its process if that is not wanted or not readable."""
        coros = proc.coros if proc.coroutines_read and not proc.has_no_stacks else ()
        process = Process(
            pid=proc.worker.pid,
            started_at=proc.started_at,
            cpu_s=proc.cpu_s,
            state=proc.state,
            tasks_read=proc.tasks_read,
            coroutines_read=proc.coroutines_read,
            concurrency_groups=proc.groups,
            access=proc.access,
            threads=() if proc.has_no_stacks else tuple(map(self._thread, proc.threads)),
            coroutines=tuple(map(self._coroutine, coros)),
            graph_stages=tuple(proc.graph_stages),
            process_groups=() if proc.has_no_stacks else tuple(proc.memberships),
            rank=proc.rank,
        )
        return WorkerSample(
            worker_id=proc.worker_id,
            running_task_ids=None if proc.is_unreachable else tuple(call.task.task_id for call in proc.running),
            process=replace(process, **proc.known) if is_wanted and not proc.is_unreadable else None,
            held=dict(proc.held),
            executed_tasks=None if proc.is_unreachable else proc.executed,
        )

    def _stack(self, of: SceneThread | SceneCoroutine) -> int:
        frames = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in of.frames())
        return self.stacks.setdefault(frames, len(self.stacks))

    def _coroutine(self, coro: SceneCoroutine) -> Coroutine:
        return Coroutine(
            coroutine_id=coro.coroutine_id,
            name=coro.name,
            stack=self._stack(coro),
            os_thread_id=coro.loop.tid if coro.loop else None,
            task_id=coro.task.task.task_id if coro.task else None,
            is_task=coro.is_task,
            still=coro.is_stable,
            call=coro.call if coro.is_stable else None,
            request=coro.request,
        )

    def _thread(self, thread: SceneThread) -> Thread:
        return Thread(
            os_thread_id=thread.tid,
            name=thread.name,
            stack=self._stack(thread),
            role=thread.role,
            on_cpu=thread.call is None and not thread.is_asleep and not thread.sleeps,
            sleeps=thread.sleeps,
            slices=thread.slices,
            exits_in=thread.exits_in,
            still=thread.is_stable,
            torn=thread.is_torn,
            texts=thread.texts,
            task_id=thread.task_id,
            call=thread.call,
            timer=thread.timer,
        )

"""What the executions, tasks and processes of a sample are, as typed facts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from dstack.analysis.index.ray_libraries import is_client_request, is_library_actor
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import import_of, user_frame
from dstack.libraries.serve import BATCHES_FILE, REPLICA_FILE
from dstack.libraries.train import TRAINING
from dstack.model.snapshot import GoneWorker, Node, Worker, job_of_task
from dstack.model.vertex_facts import ProcessName, Subject, TaskName, subject
from dstack.model.vertex_keys import CoroutineKey
from dstack.observed.calls import GroupCall, QueuedRequest
from dstack.observed.processes import Coroutine, EndedTask, Thread

IN_BATCHES, IN_REPLICA = BATCHES_FILE[1:], REPLICA_FILE[1:]
"""The ends of the paths of Serve's files, which may be relative."""
DEFAULT_NAME = re.compile(r"Task-\d+")
"""The names that asyncio gives to tasks: a count of those that its process made."""
UNNAMED = re.compile(r"Thread-\d|ThreadPoolExecutor-\d|AnyIO worker")
"""How the names begin that Python and AnyIO give to threads without a name."""


def workers_of_jobs(index: SampleIndex, jobs: Iterable[str]) -> list[Worker]:
    """The workers and drivers of these jobs, by what they are or run."""
    of_jobs = {*jobs}
    return [worker for worker in index.present_workers if not of_jobs.isdisjoint(_jobs_of(index, worker))]


def _jobs_of(index: SampleIndex, worker: Worker) -> set[str | None]:
    actor, sample = index.actors.get(worker.actor_id or ""), index.worker_samples.get(worker.worker_id)
    running = (sample.running_task_ids if sample else None) or ()
    return {worker.job_id, actor.job_id if actor else None, *map(job_of_task, running)}


def task(index: SampleIndex, task_id: str) -> TaskName:
    """A task, with its name if its owner answered."""
    request, known = index.request_of_task.get(task_id), index.tasks.get(task_id)
    return TaskName(
        task_id=task_id,
        name=known.name if known else None,
        actor=index.actor_of_call(task_id),
        request=request.name if request else None,
    )


def worker(index: SampleIndex, value: Worker) -> ProcessName:
    """A driver with its command line, or a worker."""
    if not value.is_driver:
        return ProcessName()
    job = index.jobs.get(value.job_id or "")
    return ProcessName(sort="driver", entrypoint=job.entrypoint if job else "")


def process(index: SampleIndex, worker_id: str, *, with_pid: bool = False) -> ProcessName:
    """A driver or worker by its id, an actor's worker with its actor."""
    known = index.workers.get(worker_id)
    if known is None:
        return ProcessName(sort="unlisted process")
    actor, pid = index.actor_of_worker(worker_id), known.pid if with_pid else None
    if actor is not None:
        return ProcessName(actor=actor, pid=pid)
    return replace(worker(index, known), pid=pid)


def place(index: SampleIndex, value: Worker | GoneWorker) -> ProcessName:
    """A worker with its process id and node; a driver with its command line if known."""
    host: Node | None = index.nodes.get(value.node_id)
    node = host.ip if host else f"{value.node_id:.8}"
    gone = ProcessName(sort="driver" if value.is_driver else "worker")
    return replace(worker(index, value) if isinstance(value, Worker) else gone, pid=value.pid, node=node)


def of_task(index: SampleIndex, task_id: str) -> Subject:
    """A task by its id."""
    return subject("task", task(index, task_id))


def of_thread(index: SampleIndex, worker_id: str, thread: Thread, task_id: str | None) -> Subject:
    """What runs on a thread: the task, the driver, or the thread itself."""
    owner = index.workers.get(worker_id)
    if at_stage := _stage(index, worker_id, thread.os_thread_id):
        return at_stage
    call = index.call_of(worker_id, thread)
    if call and isinstance(call.need, GroupCall) and call.need.transfer:
        return subject("transfer", call.need.operation, call.need.transfer)
    if task_id is not None:
        return _running(index, worker_id, thread, task_id)
    if owner and owner.pid == thread.os_thread_id and (starting := of_start(index, owner)):
        return starting
    own = worker(index, owner) if owner else ProcessName(sort="process")
    if thread.exits_in:
        return subject("exit", own, thread.exits_in)
    if owner and owner.pid == thread.os_thread_id:
        return subject("process", own)
    if thread.role == "loop":  # Ray calls the threads of async actors ``AsyncIO Thread: GROUP`` (2.46 and 2.60)
        return subject("event loop", thread.name.partition(": ")[2], index.actor_of_worker(worker_id))
    if request := index.request_of_thread.get((worker_id, thread.os_thread_id)):
        return subject("named", request.name)
    if thread.name.startswith(TRAINING) and (
        outermost := user_frame(index.frames_of(worker_id, thread), outermost=True)
    ):
        return subject("training function", outermost.function)
    if function := _run_by_library(index, worker_id, thread):
        return subject("named", function)
    return subject("thread", thread.name or thread.os_thread_id, own if owner and owner.is_driver else None)


def _run_by_library(index: SampleIndex, worker_id: str, thread: Thread) -> str | None:
    """The user's function that a thread of Serve, Data or Tune runs in an actor of these; None for other threads."""
    actor = index.actor_of_worker(worker_id)
    if actor is None or not is_library_actor(actor) or not UNNAMED.match(thread.name):
        return None
    own = user_frame(index.frames_of(worker_id, thread), outermost=True)
    return own.function if own else None


def of_start(index: SampleIndex, value: Worker) -> Subject | None:
    """A worker that takes no tasks yet, with how long it has been starting; None for other workers."""
    own, node = index.process(value.worker_id), index.nodes.get(value.node_id)
    if own is None or own.starting is None:
        return None
    ahead_s = (node.clock_ahead_s if node else None) or 0.0
    main = index.thread(value.worker_id, value.pid)
    imported = import_of(index.frames_of(value.worker_id, main)) if main else ""
    return subject("starting worker", own.starting, max(0.0, index.began_at + ahead_s - own.started_at), imported)


def _running(index: SampleIndex, worker_id: str, execution: Thread | Coroutine, task_id: str) -> Subject:
    """A task, or its outermost function if its owner did not answer."""
    if task_id not in index.tasks:
        outermost = user_frame(index.frames_of(worker_id, execution), outermost=True)
        if outermost is not None:
            return subject("named", outermost.function)
    return of_task(index, task_id)


def _stage(index: SampleIndex, worker_id: str, os_thread_id: int) -> Subject | None:
    """The current stage of an actor's loop in a compiled graph, None for other threads."""
    own, actor = index.process(worker_id), index.actor_of_worker(worker_id)
    if own is None or actor is None:
        return None
    at = (one for one in own.graph_stages if one.is_current and one.os_thread_id == os_thread_id)
    return next((subject("stage", actor.class_name, one.method) for one in at), None)


def of_coroutine(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> Subject:
    """The task that a coroutine is, the request that it serves, or the coroutine itself."""
    if coroutine.is_task and coroutine.task_id:
        return _running(index, worker_id, coroutine, coroutine.task_id)
    if coroutine.request:
        return subject("named", coroutine.request.name)
    call = index.call_of(worker_id, coroutine)
    if call and isinstance(call.need, QueuedRequest):
        return subject("queued request", call.need.request.name)
    if is_client_request(index, worker_id, coroutine):
        return subject("client's request")
    frames = index.frames_of(worker_id, coroutine)
    method = user_frame(frames, outermost=True)
    if method and any(frame.file.endswith(IN_BATCHES) for frame in frames):
        return subject("batch", method.function)
    if method and any(frame.file.endswith(IN_REPLICA) for frame in frames):
        return subject("named", method.function)
    return subject("asyncio task", *names_of(index, worker_id, coroutine), owner_of(index, worker_id, coroutine))


def of_library(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> Subject:
    """A thread or coroutine that runs a library's code only."""
    if isinstance(execution, Thread):
        return subject("library's thread", execution.name)
    return subject("library's asyncio task", *names_of(index, worker_id, execution))


def names_of(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> tuple[str, str]:
    """The function that an asyncio task runs, and its name, empty if that is asyncio's default.

    The function is the outermost one that is not Python's own, without those that enclose its definition.
    """
    frames = index.frames_of(worker_id, coroutine)
    outermost = [*frames, *(frame for frame in frames if frame.origin != "stdlib")][-1:]
    return _shown_names(next((frame.function for frame in outermost), ""), coroutine.name)


def names_of_ended(ended: EndedTask) -> tuple[str, str]:
    """The same of an asyncio task that has ended."""
    return _shown_names(ended.function, ended.name)


def _shown_names(function: str, name: str) -> tuple[str, str]:
    is_default = function and DEFAULT_NAME.fullmatch(name)
    return function.rpartition("<locals>.")[2], "" if is_default else name


def owner_of(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> TaskName | ProcessName:
    """The task that a coroutine belongs to, or its process."""
    if coroutine.task_id and coroutine.task_id in index.tasks:
        return task(index, coroutine.task_id)
    if pid := index.child_of(CoroutineKey(worker_id, coroutine.coroutine_id)):
        return ProcessName(sort="child process", pid=pid)
    own = process(index, worker_id)
    return ProcessName(sort="process") if own.sort == "unlisted process" else own

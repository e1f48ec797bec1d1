"""Names of Ray's entities in sentences: their Ray names, short, and easy to find in Ray's own tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import ray_libraries
from dstack.diagnosis import Progress, Since
from dstack.libraries.train.parts import TRAINING
from dstack.model import RAY_CLIENT_SERVER, Actor, GoneWorker, Node, PlacementGroup, Worker, actor_of_task
from dstack.observed import Coroutine, Frame, Thread
from dstack.observed_calls import DATA, TRAIN, GroupCall, ProcessGroup, QueuedRequest
from dstack.words import duration, listed, plural, word

SHORT = 8
SERVE_BATCHES, SERVE_REPLICA = "ray/serve/batching.py", "ray/serve/_private/replica.py"
SHORTEST_S = 0.05
"""The smallest bound that is shown."""
BYTES = ("memory", "object_store_memory")
SHOWN_RANGES = 8
"""The most ranges of ranks that are listed; the other ranks are counted."""


def short(identifier: str) -> str:
    """The first digits of an id, as Ray's own log lines abbreviate them."""
    return identifier[:SHORT]


def actor(value: Actor) -> str:
    """``actor Trainer "left"``, or ``actor Trainer 5f8aed75`` without a name; an actor of a Ray library by its part."""
    return actor_in_words(value.class_name, value.name, value.actor_id)


def actor_in_words(class_name: str, name: str, actor_id: str) -> str:
    """The name of an actor from its parts."""
    if part := ray_libraries.part(class_name, name, actor_id):
        return f"{part.name}{part.which}"
    kind = actor_class(class_name)
    return f'{kind} "{name}"' if name else f"{kind} {short(actor_id)}"


def actor_class(class_name: str) -> str:
    """``actor Trainer``; ``actor`` alone in C++, where Ray knows no class."""
    return f"actor {class_name}".rstrip()


def short_actor(class_name: str, name: str, actor_id: str) -> str:
    """The name of an actor next to a method that names the class: ``actor "left"``, ``actor 5f8aed75``."""
    if part := ray_libraries.part(class_name, name, actor_id):
        return f"{part.name}{part.which}"
    return f'actor "{name}"' if name else f"actor {short(actor_id)}"


def call_of(label: str, value: Actor) -> str:
    """``Left.ping of "l"``: a call with its actor, which distinguishes it from calls of other actors."""
    if part := ray_libraries.part(value.class_name, value.name, value.actor_id):
        return f"{label}{part.which}"
    if not label.startswith(f"{value.class_name}."):
        return f"{label} of {actor(value)}"
    return f'{label} of "{value.name}"' if value.name else f"{label} of actor {short(value.actor_id)}"


GROUPS = {TRAIN: "the worker group", DATA: "the readers of streaming_split"}
"""The only groups of these libraries."""


def process_group(value: ProcessGroup) -> str:
    """``group dp``: the program's name of it, else the library's."""
    if value.library in GROUPS:
        return GROUPS[value.library]
    name = value.description or value.name
    return f"group {name}" if name else "a process group"


def ranks(values: Iterable[int], group: ProcessGroup | None = None) -> str:
    """``rank 3``, ``ranks 0-2, 5``; for Data's readers ``split 3``."""
    return ranks_in_words(values, "split" if group is not None and group.library == DATA else "rank")


def node(value: Node) -> str:
    """``node 10.0.0.1``."""
    return f"node {value.ip}"


def placement_group(value: PlacementGroup) -> str:
    """``placement group trainers``, or its id if it has no name."""
    return f"placement group {value.name or short(value.placement_group_id)}"


def amounts(value: Mapping[str, float]) -> str:
    """``1 CPU and 2 GPU``; bytes as GiB."""
    parts = [
        f"{amount / 2**30:.1f} GiB {name}" if name in BYTES else f"{amount:g} {name}" for name, amount in value.items()
    ]
    return listed(parts) or "nothing"


def bundles(group: PlacementGroup) -> str:
    """``2 bundles: 1 CPU, 1 CPU``, cut short after four."""
    shown = ", ".join(amounts(bundle.resources) for bundle in group.bundles[:4])
    more = f" and {len(group.bundles) - 4} more" if len(group.bundles) > 4 else ""
    return f"{plural(len(group.bundles), 'bundle')}: {shown}{more}"


def task(index: SampleIndex, task_id: str) -> str:
    """A task's name by its owner, or the beginning of its id if no owner answered.

    A task of a Ray library is named by what it does for the user.
    """
    if request := index.request_of_task.get(task_id):
        return f"request {request.name}"
    known = index.tasks.get(task_id)
    if known is None:
        return f"task {short(task_id)}"
    called = actor_of(index, task_id)
    part = ray_libraries.part(called.class_name, called.name, called.actor_id) if called else None
    if part:
        return part.call(known.name)
    return ray_libraries.data_operator(known.name) or known.name


def actor_of(index: SampleIndex, task_id: str) -> Actor | None:
    """The actor that a task id names, if the control plane lists it."""
    return index.actors.get(actor_of_task(task_id) or "")


def worker(index: SampleIndex, value: Worker) -> str:
    """``driver train.py`` or ``worker``."""
    if not value.is_driver:
        return "worker"
    job = index.jobs.get(value.job_id or "")
    return f"driver {script(job.entrypoint)}" if job and job.entrypoint else "driver"


def place(index: SampleIndex, value: Worker | GoneWorker) -> str:
    """``worker (pid 7, node 10.0.0.1)``; a driver with its script if known."""
    host = index.nodes.get(value.node_id)
    what = worker(index, value) if isinstance(value, Worker) else "driver" if value.is_driver else "worker"
    return f"{what} (pid {value.pid}, node {host.ip if host else short(value.node_id)})"


def child_process(pid: int) -> str:
    """``child process (pid 7)``."""
    return f"child process (pid {pid})"


def script(entrypoint: str) -> str:
    """The file that a driver's command line runs, without its folder; the beginning of the line if there is none.

    A driver of a Ray Client runs no file of its own: it is ``of a Ray Client``.
    """
    if RAY_CLIENT_SERVER in entrypoint:
        return "of a Ray Client"
    for part in entrypoint.split():
        if part.endswith(".py"):
            return part.rpartition("/")[2]
    return entrypoint[:40]


def execution(index: SampleIndex, worker_id: str, thread: Thread, task_id: str | None) -> str:
    """The name of what runs on a thread: the task, the driver, or the name of the thread."""
    owner = index.workers.get(worker_id)
    if at_stage := stage(index, worker_id, thread.os_thread_id):
        return at_stage
    call = index.call_of(worker_id, thread)
    if call and isinstance(call.need, GroupCall) and call.need.transfer:
        return f"{call.need.operation} of tensors {short(call.need.transfer)}"
    if task_id is not None:
        outermost = user_frame(index.frames_of(worker_id, thread), outermost=True)
        return outermost.function if task_id not in index.tasks and outermost else task(index, task_id)
    place = worker(index, owner) if owner else "process"
    if owner and owner.pid == thread.os_thread_id:
        return place
    if thread.role == "loop":
        return event_loop(index, owner, thread)
    if request := index.request_of_thread.get((worker_id, thread.os_thread_id)):
        return request.name
    if thread.name.startswith(TRAINING) and (
        outermost := user_frame(index.frames_of(worker_id, thread), outermost=True)
    ):
        return f"training function {outermost.function}"
    name = f'thread "{ray_libraries.thread_name(thread.name)}"' if thread.name else f"thread {thread.os_thread_id}"
    is_known = ray_libraries.thread_name(thread.name) != thread.name
    return f"{name} of {place}" if owner and owner.is_driver and not is_known else name


def stage(index: SampleIndex, worker_id: str, os_thread_id: int) -> str | None:
    """``stage Trainer.step``: the current stage of an actor's loop in a compiled graph, None for other threads."""
    process, owner = index.process(worker_id), index.workers.get(worker_id)
    known = index.actors.get((owner.actor_id if owner else None) or "")
    at = (one for one in process.graph_stages if one.is_current and one.os_thread_id == os_thread_id) if process else ()
    return next((f"stage {known.class_name}.{one.method}" for one in at), None) if known else None


def coroutine(index: SampleIndex, worker_id: str, value: Coroutine) -> str:
    """The name of the task that a coroutine is; else ``asyncio task "Task-7" of Office.report``, or of its process."""
    if value.is_task and value.task_id:
        outermost = user_frame(index.frames_of(worker_id, value), outermost=True)
        return outermost.function if value.task_id not in index.tasks and outermost else task(index, value.task_id)
    if value.request:
        return value.request.name
    call = index.call_of(worker_id, value)
    if call and isinstance(call.need, QueuedRequest):
        return f"queued request {call.need.request.name}"
    frames = index.frames_of(worker_id, value)
    if ray_libraries.is_client_request(index, worker_id, value):
        return "a client's request in Serve's proxy"
    method = user_frame(frames, outermost=True)
    if method and any(frame.file.endswith(SERVE_BATCHES) for frame in frames):
        return f"batch of {method.function}"
    if method and any(frame.file.endswith(SERVE_REPLICA) for frame in frames):
        return method.function
    return f'asyncio task "{value.name}" of {whose_coroutine(index, worker_id, value)}'


def whose_coroutine(index: SampleIndex, worker_id: str, value: Coroutine) -> str:
    """The task that a coroutine belongs to, or its actor or process."""
    if value.task_id and value.task_id in index.tasks:
        return task(index, value.task_id)
    owner = index.workers.get(worker_id)
    known = index.actors.get((owner.actor_id if owner else None) or "")
    return actor(known) if known else worker(index, owner) if owner else "process"


def event_loop(index: SampleIndex, owner: Worker | None, thread: Thread) -> str:
    """``event loop of actor Server "s"``, with its concurrency group if that is not the default one.

    Ray names the threads of async actors ``AsyncIO Thread: GROUP``; seen on Ray 2.46 and 2.60.
    """
    group = thread.name.partition(": ")[2]
    known = index.actors.get((owner.actor_id if owner else None) or "")
    of = f" of {actor(known)}" if known else ""
    return ("event loop" if group in ("", "default") else f'event loop "{group}"') + of


def user_frame(frames: tuple[Frame, ...], *, outermost: bool = False) -> Frame | None:
    """The innermost or outermost frame of user code; None if there is none."""
    own = [frame for frame in frames if frame.origin == "user"]
    return own[-1 if outermost else 0] if own else None


def innermost_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost user frame, else the innermost frame, of a stack that is given leaf first."""
    return user_frame(frames) or (frames[0] if frames else None)


def library_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame outside of the standard library and Ray's core, else the innermost frame."""
    parts = (one for one in frames if one.origin != "stdlib" and "/ray/_private/" not in f"/{one.file}")
    return next(parts, frames[0] if frames else None)


def waiting(count: int) -> str:
    """``1 waiter`` or ``10,000 waiters``."""
    return plural(count, "waiter")


def lasting(since: Since | None) -> str:
    """``for 3 min 20 s``, ``for 0.4 s to 5 min``, ``for at least 0.4 s``, ``for at most 5 min``; empty if unknown."""
    return _bounded(since, "for at least ", "for at most ", "for ")


def bounds(since: Since | None) -> str:
    """The same in short form: ``3 min 20 s``, ``0.4 s to 5 min``, ``≥ 0.4 s``, ``≤ 5 min``."""
    return _bounded(since, "≥ ", "≤ ", "")


def _bounded(since: Since | None, at_least: str, at_most: str, within: str) -> str:
    """The bounds of a duration, with the words that precede a lower bound, an upper bound, or both."""
    if since is None:
        return ""
    least, most = since.at_least_s or 0.0, since.at_most_s
    if most is None:
        return f"{at_least}{duration(least)}" if least >= SHORTEST_S else ""
    if least < SHORTEST_S:
        return f"{at_most}{duration(most)}"
    if most - least <= max(2.0, 0.1 * most) or duration(least) == duration(most):
        return f"{within}{duration(least)}"
    return f"{within}{duration(least)} to {duration(most)}"


def progress(value: Progress, jobs: Sequence[str]) -> str:
    """``No task of job 01000000 started or finished within the 1.2 s observed; its processes used 0.02 s of CPU``."""
    jobs_in_words = f"{word(len(jobs), 'job')} {listed(jobs)}" if jobs else "no known job"
    cpu = f"; its processes used {value.cpu_s:.2f} s of CPU time" if value.cpu_s is not None and jobs else ""
    if value.has_moved:
        counts = f"{value.started:,} started, {value.finished:,} finished, {value.submitted:,} submitted"
        return f"Tasks of {jobs_in_words} within the {duration(value.watched_s)} observed: {counts}{cpu}"
    idle = f"; the last one ended {duration(value.idle_s)} ago" if value.idle_s is not None else ""
    return f"No task of {jobs_in_words} started or finished within the {duration(value.watched_s)} observed{idle}{cpu}"


def ranks_in_words(ranks: Iterable[int], word: str = "rank") -> str:
    """``rank 3``, ``ranks 0-2, 5``, ``ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more``; empty for none."""
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], rank]
        else:
            ranges.append([rank])
    shown = ", ".join("-".join(map(str, one)) for one in ranges[:SHOWN_RANGES])
    rest = sum(one[-1] - one[0] + 1 for one in ranges[SHOWN_RANGES:])
    is_one = len(ranges) == 1 and len(ranges[0]) == 1
    return f"{word}{'' if is_one else 's'} {shown}" + (f" and {rest:,} more" if rest else "") if ranges else ""

"""What things are called in sentences: by their Ray names, short, and such that one can find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dstack.analysis.observed import Observed
from dstack.model import Actor, Frame, Node, PlacementGroup, Thread, Worker, actor_of_task

SHORT = 8
BYTES = ("memory", "object_store_memory")


def short(identifier: str) -> str:
    """The first digits of an id, as Ray's own log lines abbreviate them."""
    return identifier[:SHORT]


def actor(value: Actor) -> str:
    """``actor Trainer "left"`` where it has a name, else ``actor Trainer 5f8aed75``."""
    return (
        f'actor {value.class_name} "{value.name}"'
        if value.name
        else f"actor {value.class_name} {short(value.actor_id)}"
    )


def node(value: Node) -> str:
    """``node 10.0.0.1``."""
    return f"node {value.ip}"


def placement_group(value: PlacementGroup) -> str:
    """``placement group trainers``, by its id where it has no name."""
    return f"placement group {value.name or short(value.placement_group_id)}"


def amounts(value: Mapping[str, float]) -> str:
    """``1 CPU and 2 GPU``; bytes as GiB."""
    parts = [
        f"{amount / 2**30:.1f} GiB {name}" if name in BYTES else f"{amount:g} {name}" for name, amount in value.items()
    ]
    return " and ".join(parts) or "nothing"


def bundles(group: PlacementGroup) -> str:
    """``2 bundles: 1 CPU, 1 CPU``, cut short after four."""
    shown = ", ".join(amounts(bundle.resources) for bundle in group.bundles[:4])
    more = f" and {len(group.bundles) - 4} more" if len(group.bundles) > 4 else ""
    return f"{len(group.bundles)} bundle{'s' * (len(group.bundles) != 1)}: {shown}{more}"


def task(observed: Observed, task_id: str) -> str:
    """A task's name as its owner gave it, or the beginning of its id where no owner answered."""
    known = observed.tasks.get(task_id)
    return known.name if known else f"task {short(task_id)}"


def actor_of(observed: Observed, task_id: str) -> Actor | None:
    """The actor a task id belongs to, as the control plane knows it."""
    return observed.actors.get(actor_of_task(task_id) or "")


def worker(observed: Observed, value: Worker) -> str:
    """``driver train.py`` or ``worker``."""
    if not value.is_driver:
        return "worker"
    job = observed.jobs.get(value.job_id or "")
    return f"driver {script(job.entrypoint)}" if job and job.entrypoint else "driver"


def script(entrypoint: str) -> str:
    """The file a driver's command line runs, without its folder; the whole line where there is none."""
    for word in entrypoint.split():
        if word.endswith(".py"):
            return word.rpartition("/")[2]
    return entrypoint[:40]


def execution(observed: Observed, worker_id: str, thread: Thread, task_id: str | None) -> str:
    """What runs on a thread: the task, or the driver, or a thread by its name."""
    owner = observed.workers.get(worker_id)
    place = worker(observed, owner) if owner else "process"
    if task_id is not None:
        known = task(observed, task_id)
        outermost = user_frame(observed.snapshot.frames_of(thread), outermost=True)
        return outermost.function if known.startswith("task ") and outermost else known
    if owner and owner.pid == thread.os_thread_id:
        return place
    name = f'thread "{thread.name}"' if thread.name else f"thread {thread.os_thread_id}"
    return f"{name} of {place}" if owner and owner.is_driver else name


def user_frame(frames: tuple[Frame, ...], *, outermost: bool = False) -> Frame | None:
    """The frame of the user's own code nearest the leaf, or farthest from it; None where all is others' code."""
    own = [frame for frame in frames if frame.origin == "user"]
    return own[-1 if outermost else 0] if own else None


def listed(words: Sequence[str], joint: str = " and ") -> str:
    """``a, b and c``."""
    return joint.join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)

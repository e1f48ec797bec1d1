"""Ray Train's worker groups: the rank of a worker in one, and the calls in which its ranks wait for each other.

All these calls, such as ``ray.train.report`` and ``ray.train.collective.barrier``, meet in one actor of the group.
There a coroutine for each rank waits until all ranks have joined, whichever call they make. Seen on Ray 2.60.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dstack.call_sites import SITES
from dstack.libraries.train import MEETING as MEETING_SITE
from dstack.libraries.train import VALIDATION
from dstack.observed.calls import TRAIN, Call, GroupCall, ProcessGroup, Refs
from dstack.observed.processes import LibraryCount, LibraryState
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.ray_memory import actor_of_handle, object_refs, owners
from dstack.probes.node.thread_stacks import is_in

CONTEXT = ("ray.train.v2._internal.execution.context", "_train_context")
"""The module and its global that has the context of a worker."""
MEETING = ("/ray/train/v2/_internal/execution/checkpoint/sync_actor.py", "broadcast_from_rank_zero")
WAITING = ("/ray/train/v2/_internal/util.py", "wait_with_logging")
"""The method of the actor in which ranks meet, and the function in which a rank waits there for the others."""
CHECKPOINTS = "get_all_reported_checkpoints"
MANAGER_FILE = "/ray/train/v2/_internal/execution/checkpoint/checkpoint_manager.py"
CONTROLLER_FILE = "/ray/train/v2/_internal/execution/controller/controller.py"
"""Where a coroutine of the controller waits until the checkpoints are committed, or validated, and its caller."""
CONTROLLER = (CONTROLLER_FILE, "run")
TUNE = ("/ray/tune/execution/tune_controller.py", "step")
"""The loops of the controllers of Train and of Tune."""
MAX_RANKS = 1 << 16


@dataclass(frozen=True, slots=True)
class TrainRank:
    """What a Train worker is in its worker group; ``local_rank`` is its rank among those on its node."""

    group: ProcessGroup
    local_rank: int


def rank_in_train(process: PythonProcess) -> TrainRank | None:
    """The rank of a process in its worker group, if it is a Train worker; raises :class:`UnreadableMemory`."""
    objects = process.objects
    context = process.modules.lookup(*CONTEXT)
    if not objects.is_a(context, "TrainContext"):
        return None
    attributes = objects.attributes(context)
    places = objects.attributes(attributes.get("distributed_context", 0))
    execution = objects.attributes(attributes.get("execution_context", 0))
    rank, size, local = (_number(objects, places.get(one, 0)) for one in ("world_rank", "world_size", "local_rank"))
    group = _group(actor_of_handle(objects, execution.get("synchronization_actor", 0)), rank, size)
    has_left = _has_ended(process, execution.get("training_thread_runner", 0))
    return TrainRank(replace(group, has_left=has_left), local)


def awaited(objects: Objects, frames: Sequence[MemoryFrame], actor_id: str) -> Call | None:
    """The wait of a coroutine in the actor of this id for the ranks that have not come; None for any other.

    Unknown while Train lets a group continue without some of its ranks, as on nodes that are preempted.
    Raises :class:`UnreadableMemory`.
    """
    frame = next((frame for frame in frames if is_in(frame, *MEETING)), None)
    if frame is None or not actor_id or not any(is_in(one, *WAITING) for one in frames):
        return None
    actor = objects.attributes(frame.local("self"))
    if (required := actor.get("_required_ranks")) and not objects.is_a(required, "NoneType"):
        return None
    rank, size = (_number(objects, frame.local(name)) for name in ("world_rank", "world_size"))
    operation = objects.text(frame.local("caller_method_name"))
    of_group = GroupCall(
        operation=operation, group=_group(actor_id, rank, size), fails_at=_fails_at(actor, objects, rank)
    )
    is_known = operation in SITES
    site, name = (operation, None) if is_known else (MEETING_SITE.id, operation)
    return Call(site=site, name=name, frame=0, need=of_group)


def awaited_validation(objects: Objects, frames: Sequence[MemoryFrame], actor_id: str) -> Call | None:
    """The wait of a coroutine in Train's controller for the tasks that validate checkpoints; None for any other.

    The controller starts the next such task when one ends, so the wait needs at least those that it has started.
    Raises :class:`UnreadableMemory`.
    """
    manager = next((frame for frame in frames if is_in(frame, MANAGER_FILE, CHECKPOINTS)), None)
    controller = next((frame for frame in frames if is_in(frame, CONTROLLER_FILE, CHECKPOINTS)), None)
    if manager is None or controller is None or not any(is_in(one, *WAITING) for one in frames):
        return None
    if objects.text(objects.attribute(manager.local("consistency_mode"), "_name_")) != "VALIDATED":
        return None
    reported = objects.attribute(manager.local("self"), "_current_report_index")
    if objects.number(reported) != objects.number(manager.local("current_report_index")):
        return None  # it waits for reports of other ranks first
    pending = _pending_validations(objects, controller.local("self"))
    timeouts = [objects.number(manager.local("timeout_s")), *(_timeout_s(objects, one) for _, one in pending)]
    refs = [ref for ref, _ in pending]
    need = Refs(refs=tuple(object_refs(objects, refs)), owners=tuple(owners(objects, refs)))
    timeout_s = min((one for one in timeouts if one is not None), default=None)
    return Call(site=VALIDATION.id, frame=0, need=need, timeout_s=timeout_s) if refs else None


def run_state(objects: Objects, controller: int) -> Iterator[LibraryState]:
    """The state of a run, of its controller. Raises :class:`UnreadableMemory`."""
    state = objects.attributes(objects.attribute(controller, "_state"))
    decision = objects.attributes(state["scaling_decision"]) if "scaling_decision" in state else {}
    queue = _validations(objects, controller).get("_training_report_queue", 0)
    counts: dict[LibraryCount, int] = {
        "workers": _number(objects, decision["num_workers"]) if decision else 0,
        "validations": len(_pending_validations(objects, controller)),
        "queued validations": sum(1 for _ in objects.deque_items(queue)) if queue else 0,
    }
    resources = objects.named(decision.get("resources_per_worker", 0))
    yield LibraryState(
        library="Train",
        state=objects.text(objects.attribute(state["_state_type"], "_name_")),
        counts={name: count for name, count in counts.items() if count},
        resources={name: objects.number(amount) or 0.0 for name, amount in resources.items()},
    )


def trials(objects: Objects, address: int) -> Iterator[LibraryState]:
    """The trials of a Tune run, of its controller. Raises :class:`UnreadableMemory`."""
    controller = objects.attributes(address)
    search = objects.attributes(controller.get("_search_alg", 0))
    searcher = objects.attributes(search["searcher"]) if "searcher" in search else {}
    most = {**searcher, **search}.get("max_concurrent") or search.get("_max_concurrent", 0)
    counts: dict[LibraryCount, int] = {
        "running trials": objects.size(controller["_running_trials"], "set"),
        "pending trials": objects.size(controller["_pending_trials"], "set"),
        "most trials": _number(objects, most) if most else 0,
    }
    yield LibraryState(library="Tune", counts={name: count for name, count in counts.items() if count})


def _pending_validations(objects: Objects, controller: int) -> list[tuple[int, int]]:
    """The refs of the validation tasks that Train's controller has started, with its record of each."""
    manager = _validations(objects, controller)
    return objects.entries(manager["_pending_validations"]) if manager else []


def _validations(objects: Objects, controller: int) -> dict[str, int]:
    """The attributes of the part of Train's controller that validates checkpoints; none without it."""
    callbacks = objects.items(objects.attribute(controller, "_controller_callbacks"))
    manager = next((one for one in callbacks if objects.is_a(one, "ValidationManager")), 0)
    return objects.attributes(manager) if manager else {}


def _timeout_s(objects: Objects, pending: int) -> float | None:
    return objects.number(objects.attribute(pending, "timeout_s"))


def _group(actor_id: str, rank: int, size: int) -> ProcessGroup:
    if not 0 <= rank < size <= MAX_RANKS:
        raise UnreadableMemory(f"rank {rank} of {size}")
    return ProcessGroup(library=TRAIN, world=actor_id, name="workers", rank=rank, ranks=tuple(range(size)))


def _fails_at(actor: dict[str, int], objects: Objects, rank: int) -> float | None:
    """When Train ends the call with an error; by default it never does. In whole seconds, for two readings to agree."""
    timeout_s = objects.number(actor.get("_timeout_s", 0))
    if timeout_s is None:
        return None
    with contextlib.suppress(UnreadableMemory, IndexError):
        began = objects.number(objects.items(actor.get("_sync_start_times", 0))[rank])
        return None if began is None else round(began + timeout_s - time.monotonic() + time.time())
    return None


def _has_ended(process: PythonProcess, runner: int) -> bool:
    """Whether the thread of the training function has ended without an error; Train handles errors."""
    with contextlib.suppress(UnreadableMemory):
        thread, error = (process.objects.attribute(runner, name) for name in ("_thread", "_exc"))
        if process.objects.is_a(thread, "Thread") and process.objects.is_a(error, "NoneType"):
            ident = process.objects.number(process.objects.attribute(thread, "_ident"))
            return ident is not None and ident not in {one.thread_id for one in process.threads}
    return False


def _number(objects: Objects, address: int) -> int:
    objects.expect(address, "int")
    return int(objects.number(address) or 0)

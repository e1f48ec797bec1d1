"""Ray Data's ``streaming_split``, whose readers wait for each other before each epoch, and the operators held back.

For each reader a thread of the dataset's coordinator, an actor, polls until all splits are read. Operators are those
of the executor that runs in a thread. Seen on Ray 2.60.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from dstack.libraries.train.reading import MAX_RANKS
from dstack.observed.calls import DATA, Call, GroupCall, ProcessGroup
from dstack.observed.processes import LibraryCount, LibraryState
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.thread_stacks import is_in

MEETING = ("/ray/data/_internal/iterator/stream_split_iterator.py", "_barrier")
"""The method of the coordinator in which a thread waits for the other splits."""
EXECUTOR = ("/ray/data/_internal/execution/streaming_executor.py", "run")
OPERATOR = "/ray/data/_internal/execution/interfaces/physical_operator.py"
"""The function of the thread that executes a dataset, and the file of its operators."""
HELD_BACK: dict[Literal["tasks", "outputs"], str] = {
    "tasks": "task_submission_backpressure",
    "outputs": "task_output_backpressure",
}
"""What a policy may forbid an operator, with the name in its attributes."""
RESOURCES = ("CPU", "GPU", "object_store_memory")
MAX_OPERATORS, MAX_NAME, MAX_AMOUNT = 256, 200, 1e15


def completed(objects: Objects, frames: Sequence[MemoryFrame], call: Call | None, actor_id: str) -> Call | None:
    """The call with the splits that it waits for, if it is such a wait that can be read, in the actor of this id."""
    if call is None or not actor_id or not frames or not is_in(frames[0], *MEETING):
        return call
    split = count = None
    with contextlib.suppress(UnreadableMemory):
        split = objects.number(frames[0].local("split_idx"))
        count = objects.number(objects.attribute(frames[0].local("self"), "_n"))
    if split is None or count is None or not 0 <= split < count <= MAX_RANKS:
        return call
    ranks = tuple(range(int(count)))
    group = ProcessGroup(library=DATA, world=actor_id, name="", rank=int(split), ranks=ranks)
    return replace(call, timeout_s=None, need=GroupCall(operation="start_epoch", group=group))


def operators(objects: Objects, address: int) -> Iterator[LibraryState]:
    """The operators that a policy holds back, of an executor. Raises :class:`UnreadableMemory`."""
    executor = objects.attributes(address)
    manager = objects.attributes(executor.get("_resource_manager", 0))
    allocator = objects.attributes(manager.get("_op_resource_allocator", 0))
    budgets = dict(objects.entries(allocator["_op_budgets"])) if "_op_budgets" in allocator else {}
    usages = dict(objects.entries(manager.get("_op_usages", 0)))
    for operator, state in objects.entries(executor.get("_topology", 0))[:MAX_OPERATORS]:
        of_operator = objects.attributes(operator)
        held = (one for one in HELD_BACK if objects.truth(of_operator.get(f"_in_{HELD_BACK[one]}", 0)))
        if (holds_back := next(held, None)) is not None:
            policy = of_operator.get(f"_{HELD_BACK[holds_back]}_policy", 0)
            queues = objects.attributes(state)
            counts: dict[LibraryCount, int] = {
                "running tasks": _natural(objects, objects.attribute(of_operator["_metrics"], "num_tasks_running")),
                "queued blocks": sum(_blocks(objects, one) for one in objects.items(queues["input_queues"])),
                "output blocks": _blocks(objects, queues["output_queue"]),
                "used bytes": int(_resources(objects, usages.get(operator, 0)).get("object_store_memory", 0)),
            }
            yield LibraryState(
                library="Data",
                name=objects.text(of_operator["_name"], MAX_NAME),
                state=objects.text(policy, MAX_NAME) if objects.is_a(policy, "str") else "",
                holds_back=holds_back,
                counts={name: count for name, count in counts.items() if count},
                resources=_resources(objects, budgets.get(operator, 0)),
            )


def _blocks(objects: Objects, queue: int) -> int:
    """The blocks in the queues between two operators."""
    inner = (objects.attribute(one, "_inner") for one in objects.items(objects.attribute(queue, "_queues")))
    return sum(_natural(objects, objects.attribute(one, "_num_blocks")) for one in inner)


def _resources(objects: Objects, address: int) -> dict[str, float]:
    """The amounts of ``ExecutionResources`` that are known and finite."""
    slots = objects.slots(address) if objects.is_a(address, "ExecutionResources") else {}
    amounts = ((name, objects.number(slots.get(f"_{name.lower()}", 0))) for name in RESOURCES)
    return {name: amount for name, amount in amounts if amount is not None and 0 <= amount < MAX_AMOUNT}


def _natural(objects: Objects, address: int) -> int:
    return max(0, int(objects.number(address) or 0))

"""The fixes for a deadlock over resources: held while waiting, or until an actor or group ends."""

from __future__ import annotations

from collections.abc import Sequence

from dstack import words
from dstack.analysis.findings.wording.deadlocked_waits import DeadlockedWaits, labels_of
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.diagnosis import Vertex
from dstack.vertex_keys import AnyKey

RELEASE_RESOURCES = (
    "End an actor that is done (drop its last handle, or ray.kill), remove a placement group, create fewer of them, "
    "let them ask for less (num_cpus=0), or add resources."
)
"""The fix where resources are held until their holder is ended."""


def held_until_released(waits: DeadlockedWaits) -> str | None:
    """Leave room beside resources that are held until an actor ends or a placement group is removed."""
    lifetimes = [vertex for vertex in waits.members if vertex.kind == "lifetime"]
    if not lifetimes or not waits.resources:
        return None
    requests = (vertex for vertex in waits.members if vertex.wait and vertex.wait.resources)
    requested = sorted({describe(vertex) for vertex in requests if vertex.task_id or vertex.placement_group_id})
    holders = sorted({operand_in_words(vertex.holder) for vertex in lifetimes if vertex.holder})
    if not requested or not holders:
        return RELEASE_RESOURCES
    hold, until = words.word(len(holders), "holds", "hold"), until_released([one for one in lifetimes if one.holder])
    return (
        f"Leave {words.listed(waits.resources)} for {words.shortly(requested, ' or ')}: "
        f"{words.shortly(holders)} {hold} it {until}. Start fewer of them, let them ask for less, "
        "reserve a bundle, or add resources."
    )


def until_released(lifetimes: Sequence[Vertex]) -> str:
    """``until it ends``, or of placement groups ``until they are removed``."""
    is_one = len(lifetimes) == 1
    if all(isinstance(vertex.key, AnyKey) and vertex.key.what == "removal" for vertex in lifetimes):
        return "until it is removed" if is_one else "until they are removed"
    return "until it ends" if is_one else "until they end"


def held_while_waiting(waits: DeadlockedWaits) -> str | None:
    """Release resources while waiting for a task that needs them."""
    if not waits.kinds & {"resources", "placement group"}:
        return None
    requested = labels_of(one for one in waits.members if one.wait and one.wait.resources and one.is_counted)
    if set(waits.resources) <= {"CPU"}:
        holders = labels_of(vertex for vertex in waits.members if vertex.kind == "execution" and vertex.task_id)
        what = words.shortly(requested) or "the pending tasks"
        return (
            f"Let {words.shortly(holders) or 'the waiting tasks'} ask for less (num_cpus=0 for a task "
            f"that only waits), return ObjectRefs instead of waiting, or add CPUs: {what} "
            f"{words.word(len(requested), 'needs', 'need')} the CPUs that are held there."
        )
    what = words.shortly(requested, " or ") or "a task"
    return (
        f"Do not hold {words.listed(waits.resources)} while waiting for {what}, which needs it too: start that "
        "first, let it ask for less, return its ObjectRef instead of getting it, or add resources."
    )

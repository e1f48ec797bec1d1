"""Calls of a scene, the frames of blocked calls, and builders of blocked calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dstack.call_sites import SITES
from dstack.model.vertex_keys import Key, TaskKey
from dstack.observed.calls import Call as BlockedCall
from dstack.observed.calls import CallKind, GroupCall, Need, ProcessGroup
from dstack.observed.node import Task
from dstack.observed.processes import Frame

JOB = "01000000"
APP = "/srv/app/app.py"
RAY_WORKER = "/usr/lib/python3/site-packages/ray/_private/worker.py"
RAY_GENERATOR = "/usr/lib/python3/site-packages/ray/_private/object_ref_generator.py"
LEAVES: dict[CallKind, Frame] = {
    "ray.get": Frame(function="get_objects", file=RAY_WORKER, line=900, origin="ray"),
    "ray.wait": Frame(function="wait", file=RAY_WORKER, line=3000, origin="ray"),
    "generator": Frame(function="_next_sync", file=RAY_GENERATOR, line=290, origin="ray"),
    "thread.join": Frame(function="join", file="/usr/lib/python3/threading.py", line=1100, origin="stdlib"),
    "future": Frame(function="result", file="/usr/lib/python3/concurrent/futures/_base.py", line=450, origin="stdlib"),
    "other": Frame(function="wait", file="/usr/lib/python3/threading.py", line=330, origin="stdlib"),
}
OTHER_LEAF = Frame(function="wait", file="/usr/lib/python3/threading.py", line=320, origin="stdlib")
AWAITS = Frame(function="wait", file="/usr/lib/python3/asyncio/locks.py", line=210, origin="stdlib")
SLEEPS = Frame(function="sleep", file="/usr/lib/python3/asyncio/tasks.py", line=650, origin="stdlib")
SELECT = Frame(function="select", file="/usr/lib/python3/selectors.py", line=460, origin="stdlib")


@dataclass(eq=False)
class Call:
    """A task or actor call as its owner knows it; ``has_arrived`` if its actor reports it as received."""

    task: Task
    has_arrived: bool = False

    @property
    def ref(self) -> str:
        return f"{self.task.task_id}01000000"

    @property
    def key(self) -> Key:
        """The vertex of the call while it does not run."""
        return TaskKey(self.task.task_id)

    def arrives(self) -> Call:
        """The actor reports that it received the call and all its arguments."""
        self.has_arrived = True
        return self

    def becomes(self, **changes: Any) -> Call:
        """Changes fields of the task as its owner reports them."""
        self.task = replace(self.task, **changes)
        return self


def group_of(rank: int, *ranks: int, name: str = "0", description: str = "default_pg", **known: Any) -> ProcessGroup:
    """The membership of a rank in a process group of torch.distributed that has these ranks."""
    known = {"library": "torch.distributed", "world": "tcp://10.0.0.1:29500"} | known
    return ProcessGroup(name=name, description=description, rank=rank, ranks=ranks, **known)


def call_on(operation: str, group: ProcessGroup, **known: Any) -> BlockedCall:
    """A blocked call of this operation on a process group."""
    of_group = GroupCall(operation=operation, group=group, **{"mark": "7"} | known)
    return call_named(f"{operation} of {group.library}", of_group)


def call_named(what: str, need: Need, kind: CallKind = "other", timeout_s: float | None = None) -> BlockedCall:
    """A blocked call of this kind at the site with this name, or at no known one."""
    site = next((site.id for site in SITES.values() if (site.kind, site.name) == (kind, what)), None)
    return BlockedCall(site=site or kind, name=None if site else what, frame=0, need=need, timeout_s=timeout_s)


def ids_of(refs: Iterable[Call | str]) -> tuple[str, ...]:
    return tuple(map(id_of, refs))


def owners_of(refs: Iterable[Call | str]) -> tuple[str, ...]:
    return tuple(ref.task.owner_id if isinstance(ref, Call) else "" for ref in refs)


def id_of(ref: Call | str) -> str:
    return ref.ref if isinstance(ref, Call) else ref

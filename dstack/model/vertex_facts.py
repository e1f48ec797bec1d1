"""Typed facts about vertices and waits: what a vertex is, what is inferred or assumed, why it can never complete.

A fact is a kind and what it is about. Facts are made where they are observed or concluded, and hold no words. These are
made when a fact is shown: :mod:`dstack.analysis.naming.descriptions` has a row for each kind.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from dstack.model.snapshot import Actor, Job, Model, Node, PlacementGroup
from dstack.observed.calls import Inference, ProcessGroup
from dstack.observed.node import EnvironmentSetup

# What facts are about


class TaskName(Model, frozen=True):
    """A task by id, with its ``name`` if its owner answered.

    ``actor`` is the one that it is a call of, ``request`` the name of the request to Serve that it executes.
    """

    task_id: str
    name: str | None = None
    actor: Actor | None = None
    request: str | None = None


class ProcessName(Model, frozen=True):
    """A process by what it is: that of an ``actor``, the driver of a job with this ``entrypoint``, another worker.

    One that is not listed has no ``pid``, or has ended. ``node`` is the address of its node, or the beginning of the id
    of a node that is not known.
    """

    sort: Literal["driver", "worker", "process", "child process", "unlisted process", "ended process"] = "worker"
    entrypoint: str = ""
    actor: Actor | None = None
    pid: int | None = None
    node: str | None = None


class ResourceRequest(Model, frozen=True):
    """Amounts of resources, outside of placement groups or in a ``bundle`` or any bundle of one.

    ``group`` is None for one that Ray does not list, if ``is_in_group``.
    """

    amounts: dict[str, float]
    bundle: int | None = None
    is_in_group: bool = False
    group: PlacementGroup | None = None


class Bundles(Model, frozen=True):
    """The bundles of a placement group, with its strategy if that matters."""

    group: PlacementGroup
    has_strategy: bool = False


class Labels(Model, frozen=True):
    """Labels of nodes with the asked values, or those of one of the ``others``."""

    values: dict[str, str]
    others: tuple[dict[str, str], ...] = ()


class RankList(Model, frozen=True):
    """Some members of a process group, which is None where the word for them is that of all libraries."""

    ranks: tuple[int, ...]
    group: ProcessGroup | None = None


class Fact(Model, frozen=True):
    """Base of the facts. ``of`` is what a fact is about, in the order of the words of its kind."""

    of: tuple[Operand, ...] = ()


Thing: TypeAlias = "Actor | Job | Node | PlacementGroup | ProcessGroup | EnvironmentSetup"
"""What a snapshot has as a whole."""
Operand: TypeAlias = (
    "str | int | float | Thing | TaskName | ProcessName | ResourceRequest | Bundles | Labels | RankList | Fact | None"
)

# The facts

SubjectKind = Literal[
    # executions
    "asyncio task",
    "batch",
    "child process",
    "child thread",
    "client's request",
    "event loop",
    "exit",
    "named",
    "process",
    "queued request",
    "stage",
    "starting worker",
    "task",
    "thread",
    "training function",
    "transfer",
    # what does not run
    "arguments of no task",
    "pinned arguments",
    "placement group",
    "queue reader",
    "queue writer",
    "ready ref",
    "value",
    # unreadable or unobserved
    "actor in no list",
    "argument",
    "call read once",
    "coroutine",
    "driver",
    "graph driver",
    "graph loop",
    "group in no list",
    "observed by nothing",
    "process in no list",
    "receiver",
    "refs",
    "replica",
    "silent",
    "stack",
    "stage's thread",
    "target",
    "thread of process",
    "unidentified thread",
    "unread process",
    "value of no owner",
    "value of silent owner",
    # able to proceed
    "attempt",
    "autoscaler",
    "available value",
    "bytes in transit",
    "caller",
    "child processes",
    "client",
    "consumer",
    "creation",
    "end of job",
    "ended call",
    "error of dead actor",
    "error of removed group",
    "first replica",
    "free slot",
    "free slot of replica",
    "holder",
    "idle worker",
    "library's asyncio task",
    "library's thread",
    "new node",
    "new replica",
    "removed group",
    "room for request",
    "room in group",
    "scheduler",
    "scheduler state",
    "setup",
    "signal",
    "start of actor",
    "start of replica",
    "step",
    "timer",
    "transfer of arguments",
    "value of dead owner",
    "waker",
    "worker start",
    "written value",
    # helpers
    "any holder",
    "any of",
    "any thread",
    "any unread process",
    "calls of ranks",
    "end of actor",
    "holders",
    "job",
    "rank",
    "receivers",
    "removal",
    "room anywhere",
    "room for arguments",
    "room on node",
    "some thread",
    "some thread of child",
    "users",
]
"""What a vertex is."""

ReasonKind = Literal[
    # why targets are inferred
    Inference,
    "any earlier call",
    "any ender",
    "any event loop",
    "any holder",
    "any holders",
    "any lost argument",
    "any pending argument",
    "any pending group",
    "any pending ref",
    "any running call",
    "any running call of group",
    "any setup",
    "any starting worker",
    "any thread",
    "kept values",
    "only pending ref",
    "ready ref",
    "unread stack",
    # why a request is not satisfied
    "bundles do not fit",
    "few nodes",
    "few nodes fit",
    "group too large",
    "lacking bundle",
    "lacking labels",
    "lacking nodes with labels",
    "lacking resource",
    "lacking total",
    "most of a node",
    "not all on one node",
    "not on any node",
    "room for few",
    # why a node that satisfies it may still join
    "lost node",
    "node joined",
    "node left",
    "young cluster",
    # what an autoscaler reports
    "autoscaler failed",
    "came and went",
    "failed launches",
    "pending nodes",
    "platform event",
    "refused",
    "stale report",
    # why a request could be satisfied
    "free on node",
    "no request",
    "room for bundles",
    "not said",
    # what delays the start of a worker process, or a request whose resources are free elsewhere
    "environment first",
    "infeasible on node",
    "late starts",
    "lost starts",
    "no start",
    "queued on node",
    "reported",
    "start limit",
    "unconnected starts",
]
"""Why something is so: why dependencies are inferred, why nothing satisfies a request, or what could."""

AssumptionKind = Literal[
    "among held refs",
    "declared group",
    "does not fail",
    "dropped value",
    "idle library",
    "keeps node",
    "lock holder",
    "no others",
    "nothing stops",
    "only the ends",
    "rank elsewhere",
    "rank in no group",
    "rank not created",
    "reported",
    "same call",
    "store",
    "waits for arguments",
    "waits for memory",
]
"""What a suspected wait depends on."""

NeverKind = Literal[
    "dead actor",
    "dead owner",
    "ended training",
    "forked",
    "lost lock",
    "queue end",
    "removed group",
    "unsatisfiable",
    "unsatisfied",
]
"""Why something can never complete: its producer is gone, or its request can never be satisfied.

A request is unsatisfied where a node could still join, but none has for a while.
"""


class Subject(Fact, frozen=True, kw_only=True):
    """What a vertex is."""

    what: SubjectKind


class Reason(Fact, frozen=True, kw_only=True):
    """Why something is so."""

    why: ReasonKind


class Assumption(Fact, frozen=True, kw_only=True):
    """What a suspected wait depends on."""

    what: AssumptionKind


class Never(Fact, frozen=True, kw_only=True):
    """Why a vertex can never complete."""

    why: NeverKind

    @property
    def is_orphaned(self) -> bool:
        """Whether its producer is gone; otherwise no node satisfies its request."""
        return self.why not in ("unsatisfiable", "unsatisfied")


def subject(what: SubjectKind, *of: Operand) -> Subject:
    """What a vertex is, and what that is about."""
    return Subject(what=what, of=of)


def reason(why: ReasonKind, *of: Operand) -> Reason:
    """Why something is so, and what that is about."""
    return Reason(why=why, of=of)


def assumption(what: AssumptionKind, *of: Operand) -> Assumption:
    """What a suspected wait depends on, and what that is about."""
    return Assumption(what=what, of=of)


def never(why: NeverKind, *of: Operand) -> Never:
    """Why a vertex can never complete, and what that is about."""
    return Never(why=why, of=of)

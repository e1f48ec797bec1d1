"""What was concluded from a snapshot: the wait-for graph's vertices and waits, findings, the verdict.

A vertex is anything that can wait or be waited for. Its key is typed, see :mod:`dstack.vertex_keys`; ``str()`` of it is
stable text.
"""

from __future__ import annotations

from typing import Literal

from dstack.model import Access, Failure, GroupCall, Model
from dstack.vertex_keys import AnyKey, Key, UnknownKey

Evidence = Literal["exact", "inferred"]
VertexKind = Literal["execution", "task", "placement group", "room", "lifetime", "unknown"]
NeverKind = Literal["orphaned", "infeasible"]
FailOn = Literal["deadlock", "stalled", "starved"]
"""What makes ``check`` fail; each includes those before it. A deadlock is also one that is suspected, or a hang."""
FindingKind = Literal["deadlock", "orphaned", "infeasible", "starved", "blocked", "polling", "stalled"]
Verdict = Literal["deadlock", "hang", "stalled", "blocked", "clear"]
_HELPERS = (AnyKey, UnknownKey)
SERVE_REQUEST = "Serve request"
"""The kind of wait of code of Ray Serve that passes a request on to the user's method."""
_PASSED_ON = ("thread", SERVE_REQUEST)
"""The kinds of wait of what stands for another execution."""
VERDICTS: tuple[Verdict, ...] = ("deadlock", "hang", "stalled", "blocked", "clear")
"""Worst first."""


class Target(Model, frozen=True):
    """One thing waited for: a vertex, and the ObjectRef through which it is waited for, if any."""

    vertex: Key
    ref: str | None = None


class Group(Model, frozen=True):
    """``needs`` of these targets must be given before the wait ends. More needed than targets: never."""

    needs: int
    targets: tuple[Target, ...] = ()


class GroupWait(Model, frozen=True):
    """A wait in a call on a process group: the ranks that are in the same call, the waiter's included, and the others.

    ``missing`` are those of which at least one must come, or all of them where none may leave before; empty where it is
    not known whether any has to.
    """

    call: GroupCall
    inside: tuple[int, ...]
    missing: tuple[int, ...] = ()


class AbsentRank(Model, frozen=True):
    """A member of a process group that is not in the call that others are in, and what is known of its actor.

    ``is_idle`` says that its actor is alive and runs nothing, ``is_dead`` that it has died.
    """

    rank: int
    actor_id: str | None = None
    is_idle: bool = False
    is_dead: bool = False


class Wait(Model, frozen=True):
    """Why a vertex cannot go on; it holds until every group has what it needs.

    ``total`` and ``needed`` describe the call itself, with values already there counted in. ``resources`` names
    what is asked for where the wait is for resources. ``inferred`` says how the groups are known, where they were not
    read as they are. If they depend on assumptions, ``assumed`` lists these, and ``proven_groups`` are the groups
    without them. ``what`` names the call where its kind does not say enough. ``loop`` is the thread, one of the
    targets, that a coroutine needs besides, since it keeps the event loop to itself. ``polls`` is the place of a loop,
    ``FILE:LINE``, that several readings show to do nothing but wait again. ``is_linked`` says that it is for what was
    seen to reach an object of its own process. ``of_group`` describes a call on a process group. ``fails_after_s`` is
    a timeout of a library, not of the program, that ends the wait with an error: the waiter does not proceed by it.
    """

    kind: str
    groups: tuple[Group, ...]
    inferred: str | None = None
    timeout_s: float | None = None
    needed: int = 1
    total: int = 1
    resources: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    proven_groups: tuple[Group, ...] = ()
    what: str | None = None
    loop: Key | None = None
    polls: str | None = None
    is_linked: bool = False
    of_group: GroupWait | None = None
    fails_after_s: float | None = None

    @property
    def evidence(self) -> Evidence:
        """Whether the groups were read as they are, or inferred from what was."""
        return "inferred" if self.inferred else "exact"

    @property
    def is_suspected(self) -> bool:
        """Whether the wait counts only under an assumption."""
        return bool(self.assumed) or self.polls is not None

    @property
    def is_timed(self) -> bool:
        """A wait with a timeout ends by itself, so it is no part of a deadlock, unless its loop only polls."""
        return self.timeout_s is not None and self.polls is None


class Since(Model, frozen=True):
    """For how long something has lasted; what is not known is None. As good as the hosts' clocks agree."""

    at_least_s: float | None = None
    at_most_s: float | None = None


class Vertex(Model, frozen=True):
    """Something in the wait-for graph; which fields are set depends on ``kind``.

    A ``room`` is what is missing on a node, and a ``lifetime`` the end of an actor, the removal of a placement group,
    or anybody of many who can bring such about; ``holder`` is whose end it is.

    An execution is a thread, by its ``os_thread_id``, or a coroutine, by its ``coroutine_id``.

    ``never`` says why this can never be given, and ``never_kind`` whether that is because somebody who would have
    made it is gone, or because nobody has what it asks for. ``is_confirmed`` is true when a second
    sample showed the same wait again, false when only the first sample saw it. ``unobserved`` marks an unknown
    vertex that might as well be stuck: it could not be read; ``at_most`` are all that it may depend on, None where
    that is not known. ``waker_of`` names the call, as ``queue.Queue.get``, of
    an unknown vertex that is whoever ends that call: it was all seen, but not who that is; ``child_pid`` is of one that
    is a process which its worker has started. ``absent`` is the member of a process group that a helper stands for.
    ``since`` bounds the wait.
    """

    key: Key
    kind: VertexKind
    label: str
    worker_id: str | None = None
    os_thread_id: int | None = None
    coroutine_id: str | None = None
    task_id: str | None = None
    placement_group_id: str | None = None
    holder: str | None = None
    wait: Wait | None = None
    never: str | None = None
    never_kind: NeverKind = "infeasible"
    is_confirmed: bool = False
    unobserved: bool = False
    at_most: tuple[Key, ...] | None = None
    waker_of: str | None = None
    child_pid: int | None = None
    absent: AbsentRank | None = None
    since: Since | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it is an execution, a pending call, an actor or a placement group.

        Helpers are not: one of many, room, an actor's end, what is unknown, and what waits for the execution that it
        stands for: a call on one of several threads, a request that Serve passes on to the user's method.
        """
        return not isinstance(self.key, _HELPERS) and (self.wait is None or self.wait.kind not in _PASSED_ON)


class FinalBlocker(Model, frozen=True):
    """What an open chain ends in, with how many wait on it directly and in all; helpers are not counted."""

    vertex: Key
    waiters_direct: int
    waiters_total: int


class Step(Model, frozen=True):
    """One sentence of an explanation; the vertex and the line of code that it is about, if any."""

    text: str
    vertex: Key | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None


class Entry(Model, frozen=True):
    """One numbered row of a diagram: an execution or pending call, its line of code, and what it waits for.

    ``place`` is its actor, rank, process and node, as far as known; ``does`` says what it waits for, with the numbers
    of other entries, or what it does instead. ``also`` are further remarks, one per line. An entry that ``is_brief``
    is printed in one line: it stands between the first and the last of a long cycle or chain.
    """

    number: int
    name: str
    vertex: Key | None = None
    place: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None
    source: str | None = None
    does: str = ""
    also: tuple[str, ...] = ()
    is_brief: bool = False


class Diagram(Model, frozen=True):
    """A finding as a reader sees it at a glance: a cycle or a chain of numbered entries, and what is blocked behind it.

    A row that is no :class:`Entry` is a remark between two of them, as on entries that were folded. ``remarks`` are
    printed after the fix: other members, other final blockers, failures.
    """

    is_cycle: bool = False
    rows: tuple[Entry | Step, ...] = ()
    behind: tuple[Step, ...] = ()
    remarks: tuple[Step, ...] = ()


class FailedBefore(Model, frozen=True):
    """A task that failed, or an actor that died, beside a wait that may depend on it: never a finding by itself.

    ``name`` is the task's or the actor's, ``actor`` the one that the task was called on. ``error_type`` is Ray's name
    of the kind of error, or of the reason of a death. ``is_held`` says that a process still holds the task's result,
    ``is_related`` that a process, actor or class of the wait is that of the failure. ``count`` are those alike, of
    which the rest is about the first. ``ago_s`` is None where clocks do not agree.
    """

    name: str
    error: str
    error_type: str = ""
    task_id: str | None = None
    actor_id: str | None = None
    actor: str | None = None
    job_id: str | None = None
    pid: int | None = None
    node_ip: str | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None
    failed_at: float | None = None
    ago_s: float | None = None
    is_death: bool = False
    is_held: bool = False
    is_related: bool = False
    count: int = 1


class Progress(Model, frozen=True):
    """What moved in the jobs of a finding within ``watched_s`` seconds, beside polls and libraries' own calls.

    Tasks that ``started``, ``finished`` and were ``submitted``; ``cpu_s`` is the CPU time of their processes, as far as
    these were read twice. ``idle_s`` is how long ago the last task of the jobs ended, by Ray's task events, where these
    tell.
    """

    watched_s: float
    started: int = 0
    finished: int = 0
    submitted: int = 0
    cpu_s: float | None = None
    idle_s: float | None = None

    @property
    def has_moved(self) -> bool:
        """Whether a task has started, finished or was submitted."""
        return bool(self.started or self.finished or self.submitted)


class Finding(Model, frozen=True):
    """One conclusion.

    ``members`` are vertex keys: of a deadlock its core, the shortest cycle first and in order; of an open chain its
    waits. ``blocked_behind`` are waits that depend on the members and can never proceed either. ``helpers`` are the
    vertices between them that are not counted (:attr:`Vertex.is_counted`); ``cycle`` has those of the cycle, too.
    ``polled_by`` are waits with a timeout for any of these: they proceed, without a result. ``waiters_total`` is the
    number of waits that depend on the finding without being part of it, ``waiters_direct`` of those that depend on a
    part directly. Of an open chain they count all of its waits, and those for its ends. ``jobs`` are the jobs that
    take part, ``watched_s`` is how long the finding was observed without progress, and ``since`` how long all waits of
    its members have lasted. A finding with ``assumed`` is suspected: two samples agree, but it rests on these
    assumptions. ``progress`` is what moved in its jobs meanwhile, ``failed_before`` are failures that its waits may
    depend on. ``explanation`` has a sentence for each member, ``diagram`` is the short form of it.
    """

    kind: FindingKind
    confirmed: bool
    summary: str = ""
    advice: str = ""
    members: tuple[Key, ...] = ()
    cycle: tuple[Key, ...] = ()
    blocked_behind: tuple[Key, ...] = ()
    helpers: tuple[Key, ...] = ()
    polled_by: tuple[Key, ...] = ()
    waiters_direct: int = 0
    waiters_total: int = 0
    jobs: tuple[str, ...] = ()
    watched_s: float | None = None
    since: Since | None = None
    final_blockers: tuple[FinalBlocker, ...] = ()
    resources: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    progress: Progress | None = None
    failed_before: tuple[FailedBefore, ...] = ()
    explanation: tuple[Step, ...] = ()
    diagram: Diagram = Diagram()


class OutsideWait(Model, frozen=True):
    """Executions that wait in the same ``call`` at the same line, for nothing that Ray could give.

    ``kind`` is what waits there; the line is that of the user's own code, if there is any. ``since`` bounds how long
    each of them has waited.
    """

    call: str
    kind: Literal["task", "driver", "thread", "asyncio task"]
    count: int
    file: str | None = None
    line: int | None = None
    since: Since | None = None


class Ratio(Model, frozen=True):
    """How many of how many were observed."""

    observed: int
    total: int


class Coverage(Model, frozen=True):
    """What the diagnosis rests on; ``access`` counts workers by the best way in which they could be read."""

    nodes: Ratio
    workers: Ratio
    access: dict[Access, int] = {}
    failures: tuple[Failure, ...] = ()


class Diagnosis(Model, frozen=True):
    """The verdict on a snapshot, its findings worst first, and the graph behind them.

    ``incomplete`` is true if something that was not observed could change the verdict. With a ``job``, the findings and
    the verdict are those of this job. ``outside`` are waits that are in no finding because they do not depend on Ray,
    most frequent first. ``failed_before`` are failures next to these waits, if there is no finding.
    """

    verdict: Verdict
    incomplete: bool
    findings: tuple[Finding, ...]
    vertices: dict[Key, Vertex]
    coverage: Coverage
    job: str | None = None
    outside: tuple[OutsideWait, ...] = ()
    failed_before: tuple[FailedBefore, ...] = ()

    @property
    def is_stuck(self) -> bool:
        """Whether the verdict is a deadlock or a hang, confirmed or suspected."""
        return self.verdict in ("deadlock", "hang")

    def fails(self, on: FailOn = "deadlock") -> bool:
        """Whether ``check --fail-on`` exits with 1."""
        if self.is_stuck or on == "deadlock":
            return self.is_stuck
        kinds = ("stalled",) if on == "stalled" else ("stalled", "starved")
        return any(finding.kind in kinds for finding in self.findings)

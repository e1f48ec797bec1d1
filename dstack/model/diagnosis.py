"""Conclusions from a snapshot: the vertices and waits of the wait-for graph, findings, and the verdict.

A vertex is anything that can wait or be waited for. Its key is typed, see :mod:`dstack.model.vertex_keys`; ``str()`` of
it is stable text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dstack.call_sites import kind_of, name_of, named_site, site_of
from dstack.model.snapshot import Actor, Model, PlacementGroup
from dstack.model.vertex_facts import Assumption, Never, Reason, Subject
from dstack.model.vertex_keys import AnyKey, Key, Unknown, UnknownKey
from dstack.observed.call_site import Site
from dstack.observed.calls import Call, CallKind, End, GroupCall, KernelObjects, QueueCall, Timer
from dstack.observed.node import Failure, LogKind, LogStream
from dstack.observed.processes import Access, LoopBody

Exactness = Literal["exact", "inferred"]
VertexKind = Literal["execution", "task", "placement group", "room", "lifetime", "unknown"]
FailOn = Literal["deadlock", "stalled", "starved"]
"""The findings that make ``check`` fail; each includes those before it. Suspected deadlocks and hangs count, too."""
FindingKind = Literal["deadlock", "orphaned", "infeasible", "starved", "running", "polling", "stalled", "failed"]
FAILING: Mapping[FailOn, frozenset[FindingKind]] = {
    "deadlock": frozenset({"deadlock", "orphaned", "infeasible"}),
    "stalled": frozenset({"deadlock", "orphaned", "infeasible", "stalled"}),
    "starved": frozenset({"deadlock", "orphaned", "infeasible", "stalled", "starved"}),
}
"""The kinds of findings that make ``check`` fail."""
NODES_SETTLE_S = 60.0
"""Default for how long no node must have joined or left before what none of them has counts as a hang."""
Verdict = Literal["deadlock", "hang", "stalled", "unknown", "running", "idle"]
WaitKind = Literal[
    CallKind,  # the calls that dstack recognises; "other" for all others, which Wait.called names
    "actor creation",
    "actor slot",
    "arguments",
    "backpressure",
    "channel read",
    "channel write",
    "coroutine",
    "event loop",
    "executor",
    "kept value",
    "lifetime",
    "next call",
    "order",
    "perhaps ray.get",
    "placement group",
    "queue read",
    "queue write",
    "ranks",
    "resources",
    "retry",
    "runtime environment",
    "scheduler",
    "Serve request",
    "Serve slot",
    "step",
    "thread",
]
"""What kind of dependency a wait has. dstack.analysis.naming.sentences has the sentence for each kind."""
_HELPERS = (AnyKey, UnknownKey)
_PASSED_ON: tuple[WaitKind, ...] = ("thread", "Serve request")
"""The kinds of wait of a vertex that represents another execution."""
VERDICTS: tuple[Verdict, ...] = ("deadlock", "hang", "stalled", "unknown", "running", "idle")
"""Worst first."""


class Target(Model, frozen=True):
    """One dependency of a wait: a vertex, and the awaited ObjectRef that it produces, if any."""

    vertex: Key
    ref: str | None = None


class Group(Model, frozen=True):
    """``needs`` of these targets must proceed before the wait ends. With fewer targets than that, it never ends."""

    needs: int
    targets: tuple[Target, ...] = ()

    def has_unknown(self, kind: Unknown) -> bool:
        """Whether one of the targets is an unknown vertex of this kind."""
        return any(isinstance(target.vertex, UnknownKey) and target.vertex.what == kind for target in self.targets)


class GroupWait(Model, frozen=True):
    """A wait in a call on a process group: the ranks ``inside`` the same call, with the waiter's, and the missing ones.

    At least one of the ``missing`` ranks must enter the call, or all of them if no member may leave it before. It is
    empty if that is unknown.
    """

    call: GroupCall
    inside: tuple[int, ...]
    missing: tuple[int, ...] = ()


DifferenceKind = Literal["behind", "ahead", "left out", "added", "line", "operation", "order", "root", "sizes", "types"]


class RankDifference(Model, frozen=True):
    """How members of a process group first differ in the collectives that they have entered.

    The ``ranks`` differ from the others since the collective of this ``number`` in the group: they have not entered it
    (``behind``), or alone (``ahead``); by the lines of later calls they ``left out`` or ``added`` some, or are at
    another ``line``; or it has another operation, root, sizes or types. In another ``order`` they make groups; the
    number is then that of the group. ``shift`` is by how many calls they are behind (negative) or ahead. ``is_clear``
    says that they are fewer than the others. The place is that of the others' call, ``own_file`` and ``own_line`` that
    of the first of these ranks; of one that is behind, of its last call.
    """

    kind: DifferenceKind
    group: str
    ranks: tuple[int, ...]
    number: int
    shift: int = 0
    is_clear: bool = True
    operation: str = ""
    own_operation: str = ""
    file: str | None = None
    line: int | None = None
    own_file: str | None = None
    own_line: int | None = None
    text: str = ""


class DumpedRanks(Model, frozen=True):
    """What torch dumped of the flight recorders of some ranks, as its watchdog does before it ends their processes.

    ``missing`` are ranks of which no dump was found, where the dumps state how many there are. ``jobs`` are those that
    ran when the files were written; ``is_of_ray`` says that workers of Ray wrote them. ``unreadable`` are the paths of
    files that have such a name and no such content. Without a ``difference`` the records do not differ.
    """

    written_at: float
    ago_s: float
    ranks: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()
    is_of_ray: bool = True
    difference: RankDifference | None = None
    unreadable: tuple[str, ...] = ()
    text: str = ""


class AbsentRank(Model, frozen=True):
    """A member of a process group that is missing from a call, with the state of its actor.

    ``is_idle`` says that its actor is alive and runs nothing, ``is_dead`` that it has died.
    """

    rank: int
    actor_id: str | None = None
    is_idle: bool = False
    is_dead: bool = False


class CallName(Model, frozen=True):
    """The name of a call for users, with the id of its site for code."""

    site: str
    text: str

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, call: Call) -> CallName:
        """The name by which users know a call: that of its kind if nothing is more precise."""
        return cls(site=named_site(call).id, text=name_of(call) or kind_of(call))


class SlotLimit(Model, frozen=True):
    """How many requests each replica of a Serve deployment executes at once; its replicas may differ."""

    deployment: str
    most: tuple[int, ...]


class Wait(Model, frozen=True):
    """Why a vertex cannot proceed: it waits until each of the groups has what it needs.

    ``needed`` and ``total`` describe the call itself, including refs that have a value already. ``resources`` are the
    names of the requested resources. ``inferred`` is the reason for the groups if they were not read exactly.
    ``assumed`` are the assumptions that the groups depend on, and ``proven_groups`` the groups without them. ``called``
    is the call if the kind is not enough, ``limit`` what is reached in a Serve deployment. ``loop`` is a target that a
    coroutine needs besides: the thread that blocks its event loop. ``polls`` is the place of a loop, ``FILE:LINE``,
    that does nothing but wait again in several readings. ``is_linked`` says that the targets can reach an object of
    their process that the wait is on. ``of_group`` describes a call on a process group, ``kernel`` a wait in a system
    call, ``of_queue`` one at an end of a message queue. ``fails_after_s`` is a timeout of a library, not of the
    program: it ends the wait with an error, so the waiter does not proceed by it. ``timer`` ends the wait at
    ``timeout_s``. With ``fails_fast`` a target that fails ends the wait; ``failing`` are those that may.
    ``cut_short_by`` are targets that are not awaited, but may end the wait: they can cancel or kill the waiter, or fail
    in its task group.
    """

    kind: WaitKind
    groups: tuple[Group, ...]
    inferred: Reason | None = None
    timeout_s: float | None = None
    needed: int = 1
    total: int = 1
    resources: tuple[str, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    proven_groups: tuple[Group, ...] = ()
    called: CallName | None = None
    limit: SlotLimit | None = None
    loop: Key | None = None
    polls: str | None = None
    is_linked: bool = False
    of_group: GroupWait | None = None
    kernel: KernelObjects | None = None
    of_queue: QueueCall | None = None
    fails_after_s: float | None = None
    timer: Timer | None = None
    fails_fast: bool = False
    failing: tuple[Target, ...] = ()
    cut_short_by: tuple[Target, ...] = ()

    @property
    def ends(self) -> tuple[End, ...]:
        """What a wait in a system call is on; nothing for other waits."""
        return self.kernel.ends if self.kernel else ()

    @property
    def targets(self) -> Iterator[Target]:
        """The targets of all groups."""
        return (target for group in self.groups for target in group.targets)

    @property
    def all_targets(self) -> tuple[Target, ...]:
        """The targets of all groups, and what may cut the wait short."""
        return (*self.targets, *self.cut_short_by)

    @property
    def kind_name(self) -> str:
        """The kind as users read it: the name of the call if that is of no kind of its own."""
        return self.call if self.kind == "other" else self.kind

    @property
    def call(self) -> str:
        """The name of the call, else the kind."""
        return self.called.text if self.called else self.kind

    @property
    def site(self) -> Site:
        """The site of its call; one without further knowledge if it is no call."""
        return site_of(self.called.site if self.called else self.kind)

    @property
    def evidence(self) -> Exactness:
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
    """The bounds of a duration, None if unknown. They are as accurate as the clocks of the hosts.

    ``began_at`` is the Unix time of the upper bound. ``is_close`` says that the awaited call was submitted then,
    or that what waits entered its state: a wait usually begins right after it, but may have begun later.
    """

    at_least_s: float | None = None
    at_most_s: float | None = None
    began_at: float | None = None
    is_close: bool = False


class Vertex(Model, frozen=True):
    """One vertex of the wait-for graph; its kind determines the fields that are set.

    An execution is a thread, with its ``os_thread_id``, or a coroutine, with its ``coroutine_id``. A ``room`` is what
    is missing on a node. A ``lifetime`` is the end of an actor or the removal of a placement group, of the ``holder``,
    or represents any of the users that can cause it.

    ``never`` is the reason why the vertex can never complete; ``never_kind`` distinguishes a dead producer from a
    request that no node can satisfy. ``is_confirmed`` is true if a second sample showed the same wait. An unknown
    vertex that is ``unobserved`` could not be read, so it may be stuck; ``at_most`` are all its possible dependencies,
    None if unknown. One with ``waker_of``, a call such as ``queue.Queue.get``, is the unknown waker of that
    call: all processes were read, but nothing shows what will end it. ``child_pid`` is set for a child process.
    ``absent`` is the member of a process group that a helper represents. ``is_graph_loop`` marks a task that may be an
    actor's loop in a compiled graph. ``since`` bounds the duration of the wait; without a wait, that of its task.
    """

    key: Key
    kind: VertexKind
    subject: Subject
    worker_id: str | None = None
    os_thread_id: int | None = None
    coroutine_id: str | None = None
    task_id: str | None = None
    placement_group_id: str | None = None
    wait: Wait | None = None
    never: Never | None = None
    is_confirmed: bool = False
    unobserved: bool = False
    at_most: tuple[Key, ...] | None = None
    waker_of: CallName | None = None
    child_pid: int | None = None
    absent: AbsentRank | None = None
    is_graph_loop: bool = False
    since: Since | None = None

    @property
    def holder(self) -> Actor | PlacementGroup | None:
        """The actor or placement group whose end or removal it is."""
        if self.subject.what not in ("end of actor", "removal"):
            return None
        holder = self.subject.of[0]
        return holder if isinstance(holder, Actor | PlacementGroup) else None

    @property
    def is_counted(self) -> bool:
        """Whether it is an execution, a pending call, an actor or a placement group.

        Helpers are not counted: room, the end of an actor, unknown vertices, and vertices that represent others. Nor
        are vertices whose wait only passes on to another execution: a call on one of several threads, or a request
        that Serve passes on to the user's method.
        """
        return not isinstance(self.key, _HELPERS) and (self.wait is None or self.wait.kind not in _PASSED_ON)


class FinalBlocker(Model, frozen=True):
    """A vertex that an open chain ends in, with its numbers of direct waiters and of all waiters, without helpers."""

    vertex: Key
    waiters_direct: int
    waiters_total: int


class Step(Model, frozen=True):
    """One sentence of an explanation, with its vertex and line of code, if any."""

    text: str
    vertex: Key | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None


class Entry(Model, frozen=True):
    """One numbered row of a diagram: an execution or pending call, its line of code, and its dependency.

    ``place`` is its actor, rank, process and node, without unknown parts. ``does`` is its dependency, with the numbers
    of other entries, or its activity. ``also`` are further remarks, one per line. An entry that ``is_brief`` is printed
    in one line, in the middle of a long cycle or chain; its place is only what distinguishes it.
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
    """The short form of a finding: a cycle or chain of numbered entries, and what is blocked behind it.

    A row that is no :class:`Entry` is a remark between two of them, such as on entries that are left out. ``remarks``
    are printed after the fix: other members, other final blockers, failures.
    """

    is_cycle: bool = False
    rows: tuple[Entry | Step, ...] = ()
    behind: tuple[Step, ...] = ()
    remarks: tuple[Step, ...] = ()


class FailedBefore(Model, frozen=True):
    """A failed task, dead actor or ended asyncio task that may explain a wait.

    ``name`` is that of the task or actor, ``actor`` is the actor of the task. ``error_type`` is Ray's name of the kind
    of error, or of the reason of a death. ``is_held`` says that a process still holds the task's result, ``is_related``
    that the failure is in a process, actor or class of the wait. An asyncio task has a ``coroutine_id``; it is related
    if its code held what is awaited, and else only of the same process. ``count`` is the number of similar failures;
    the other fields are those of the first. ``ago_s`` is None if unknown or if clocks differ.
    """

    name: str
    error: str
    error_type: str = ""
    task_id: str | None = None
    coroutine_id: str | None = None
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


class LastWords(Model, frozen=True):
    """A line that a process printed, or a traceback in one line, which may say why something waits.

    ``name`` is that of the process, ``writer`` that of the worker for which a driver printed it. ``at`` is when it
    was printed, by dstack's clock, ``before_s`` how long before the wait began; None if unknown. ``count`` is how
    often the text repeats, but for numbers, within ``over_s`` if that is known; ``others`` counts the processes that
    printed the same. The file and line are those of a traceback. With ``silent_before_s``, it is the last line of the
    process that fell silent so long before ``others`` of its kind. ``place`` orders processes by how near to the
    cause they are.
    """

    name: str
    text: str
    kind: LogKind
    stream: LogStream
    path: str
    writer: str = ""
    worker_id: str | None = None
    pid: int | None = None
    at: float | None = None
    before_s: float | None = None
    count: int = 1
    over_s: float | None = None
    is_last: bool = False
    file: str | None = None
    line: int | None = None
    others: int = 0
    silent_before_s: float | None = None
    place: int = 0


MOMENT_S = 3.0
"""Ray's task events are up to a second late: a task that ended so long ago ended a moment ago."""


class Progress(Model, frozen=True):
    """Progress in the jobs of a finding within ``watched_s`` seconds, without polls and calls of libraries.

    ``started``, ``finished`` and ``submitted`` count tasks; ``cpu_s`` is the CPU time of the jobs' processes that were
    read twice. By Ray's task events, the last task of the jobs ended ``idle_s`` ago, at ``last_ended_at``, and
    ``per_s`` tasks ended each second lately; None if unknown.
    """

    watched_s: float
    started: int = 0
    finished: int = 0
    submitted: int = 0
    cpu_s: float | None = None
    idle_s: float | None = None
    last_ended_at: float | None = None
    per_s: float | None = None

    @property
    def has_moved(self) -> bool:
        """Whether a task has started, finished or was submitted."""
        return bool(self.started or self.finished or self.submitted)

    @property
    def is_lively(self) -> bool:
        """Whether tasks move, or ended a moment ago."""
        return self.has_moved or (bool(self.per_s) and self.idle_s is not None and self.idle_s < MOMENT_S)


class Advice(Model, frozen=True):
    """What to do about a finding: a ``fix`` is a change that resolves it, ``next`` is one concrete thing to inspect."""

    kind: Literal["fix", "next"]
    text: str

    @property
    def label(self) -> str:
        """The word before the text."""
        return self.kind.capitalize()

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


CureKind = Literal[
    "plain call",
    "slots",
    "concurrency group",
    "async methods",
    "request limit",
    "await",
    "less resources",
    "more resources",
    "returned ref",
    "lock",
    "barrier",
    "constructor",
    "threads",
    "arguments",
    "channels",
    "stream",
    "pipe",
    "group calls",
    "dropped wait",
]
"""What a change of a program or cluster is about that may free a deadlock."""


class Cure(Model, frozen=True):
    """A change of the program or the cluster, and what it frees by a reduction of the changed wait-for graph.

    ``text`` is the change without a full stop; the file, line and source are those of the code to change, if it is at
    one place. It frees ``freed`` of the ``total`` waits of a finding, which are its members and those behind them;
    ``left`` are the others. ``is_certain`` is false if one of several possible wakers must be the one that it frees.
    ``starts`` are the functions of queued calls that would start, and end if nothing else keeps them. ``same_way`` are
    those whose running calls are stuck: another one would wait in the same way, so the deadlock would only move.
    A cure with several ``kinds`` is so many changes together. ``with_others`` says that some of the waits are also for
    another finding, which counts as resolved.
    """

    kinds: tuple[CureKind, ...]
    text: str
    freed: int
    total: int
    left: tuple[Key, ...] = ()
    is_certain: bool = True
    starts: tuple[str, ...] = ()
    same_way: tuple[str, ...] = ()
    with_others: bool = False
    file: str | None = None
    line: int | None = None
    source: str | None = None

    @property
    def frees_all(self) -> bool:
        """Whether nothing of the finding is left."""
        return self.freed == self.total


class Finding(Model, frozen=True):
    """One conclusion about the waits of the cluster.

    ``members`` are vertex keys: the deadlocked set, with its shortest cycle first and in order, or the waits of an
    open chain. ``blocked_behind`` are waits that depend on the members and can never proceed either. ``helpers`` are
    the vertices between them that are not counted (:attr:`Vertex.is_counted`); ``cycle`` includes its helpers.
    ``polled_by`` are waits with a timeout for any of these: they proceed, without a result. ``waiters_total`` is the
    number of waits outside of the finding that depend on it, ``waiters_direct`` of those that depend on a member
    directly. For an open chain they count all its waits, and the direct ones for its ends. ``jobs`` are the jobs that
    take part, ``watched_s`` is how long the finding was observed without progress, and ``since`` bounds the duration
    of all waits of its members. A finding with ``assumed`` is suspected: two samples agree, but it depends on these
    assumptions. ``cures`` are changes that free a deadlock, or part of it, the smallest first, then those that do not.
    ``progress`` is the progress in its jobs meanwhile, ``failed_before`` are failures that may explain
    its waits, ``last_words`` what its processes printed. ``advice`` is None where nothing is to be done.
    ``difference`` is how the ranks of its process groups first differ. ``doubt`` says why a finding is likely but not
    proven, as a clause. ``explanation`` has a sentence for each member, ``diagram`` is the short form; of waits that
    may end, ``brief`` is a sentence for each final blocker, and ``is_slow`` says that the first one takes longer than
    usual, or that nothing moves.
    """

    kind: FindingKind
    confirmed: bool
    summary: str = ""
    advice: Advice | None = None
    cures: tuple[Cure, ...] = ()
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
    doubt: str = ""
    difference: RankDifference | None = None
    progress: Progress | None = None
    failed_before: tuple[FailedBefore, ...] = ()
    last_words: tuple[LastWords, ...] = ()
    explanation: tuple[Step, ...] = ()
    diagram: Diagram = Diagram()
    brief: tuple[Step, ...] = ()
    is_slow: bool = False


class IdleActors(Model, frozen=True):
    """``count`` actors of one class that are alive and execute nothing.

    Each is a ``unit`` if ``name`` is a part of a library.
    """

    name: str
    count: int
    unit: str = ""


class OutsideWait(Model, frozen=True):
    """Executions of one ``name`` that wait in the same ``call`` at the same line, and do not depend on Ray.

    ``kind`` is the kind of the executions; the line is that of user code, if there is any. ``since`` bounds the
    duration of each of these waits. What ``does`` not wait rests, that is, it sleeps, or polls by sleeping in the
    ``loop``, if there is one; or it runs. ``awaits`` is what ends the call, if that is known.
    """

    name: str
    call: str
    kind: Literal["task", "driver", "thread", "asyncio task"]
    count: int
    file: str | None = None
    line: int | None = None
    since: Since | None = None
    does: Literal["waits", "rests", "runs"] = "waits"
    awaits: Literal["", "a signal", "input at its terminal"] = ""
    loop: LoopBody | None = None


class Ratio(Model, frozen=True):
    """The number of observed nodes or workers, and of all."""

    observed: int
    total: int


class Coverage(Model, frozen=True):
    """The observations behind a diagnosis; ``access`` counts workers by the best way in which they could be read."""

    nodes: Ratio
    workers: Ratio
    access: dict[Access, int] = {}
    failures: tuple[Failure, ...] = ()


class NoSample(Model, frozen=True):
    """A gap: the snapshot has no sample."""


class UnreadWorker(Model, frozen=True):
    """A gap: a worker or driver of which no sample has both state and stacks.

    ``failures`` are the reasons, as far as any are known. ``is_partly_read`` says that a sample has one of both.
    """

    worker_id: str
    is_partly_read: bool = False
    failures: tuple[Failure, ...] = ()


class UnreadMemory(Model, frozen=True):
    """A gap: a worker or driver whose stacks were read, but not what its threads wait for."""

    worker_id: str
    access: Access
    failures: tuple[Failure, ...] = ()


class HidingFailure(Model, frozen=True):
    """A gap: a failure that may hide a wait, though every worker counts as observed."""

    failure: Failure


class UnknownDependency(Model, frozen=True):
    """A gap: the ``waiter`` depends on the vertex ``target``, of which too little was observed."""

    waiter: Key
    target: Key


Gap: TypeAlias = NoSample | UnreadWorker | UnreadMemory | HidingFailure | UnknownDependency
"""Something that was not observed and could change a verdict other than a deadlock."""


class Diagnosis(Model, frozen=True):
    """The verdict on a snapshot, its findings worst first, and the graph behind them.

    ``gaps`` are what was not observed and could hide a wait. With a ``job``, the findings and the verdict are those of
    this job. ``outside`` are waits that are in no finding because they do not depend on Ray, most frequent first, and
    without a finding also executions that run or sleep. Then ``explanation`` has sentences about these, ``idle`` has
    what executes nothing, and ``failed_before`` the failures next to such waits. ``remarks`` are about what sleeping
    loops poll for, as actors by name, and about collectives of process groups. ``progress`` is that of all jobs, or of
    this one; None without a second sample.
    ``dumped`` is what torch dumped of its flight recorders; it is no part of the verdict.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    vertices: dict[Key, Vertex]
    coverage: Coverage
    gaps: tuple[Gap, ...] = ()
    job: str | None = None
    outside: tuple[OutsideWait, ...] = ()
    explanation: tuple[Step, ...] = ()
    remarks: tuple[Step, ...] = ()
    idle: tuple[IdleActors, ...] = ()
    failed_before: tuple[FailedBefore, ...] = ()
    progress: Progress | None = None
    dumped: DumpedRanks | None = None

    @property
    def incomplete(self) -> bool:
        """Whether something that was not observed could change the verdict."""
        return bool(self.gaps) and self.verdict != "deadlock"

    @property
    def is_stuck(self) -> bool:
        """Whether the verdict is a deadlock or a hang, confirmed or suspected."""
        return self.verdict in ("deadlock", "hang")

    @property
    def stuck(self) -> frozenset[Key]:
        """The waits that can never proceed: in a deadlock, for what never comes, or blocked behind these."""
        behind = (key for finding in self.findings for key in finding.blocked_behind)
        members = (key for one in self.findings if one.kind in FAILING["deadlock"] for key in one.members)
        return frozenset((*behind, *members))

    def fails(self, on: FailOn = "deadlock") -> bool:
        """Whether ``check --fail-on`` exits with 1."""
        return any(finding.kind in FAILING[on] for finding in self.findings)


Level = Literal["ok", "limit", "failure"]


@dataclass(frozen=True)
class Check:
    """What was found, and what to do if it is a limit or a failure."""

    level: Level
    text: str
    remedy: str | None = None

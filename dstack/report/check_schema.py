"""The structure of what ``dstack check --json`` prints, and its JSON Schema.

Fields are only ever added to ``dstack.check/2``: readers must ignore fields that they do not know. A failure is in the
document as it was observed. All else is made for the document: executions with names, places and ranks in place of
indices, and conclusions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from dstack.model.diagnosis import CureKind, DifferenceKind, Exactness, FindingKind, Verdict
from dstack.model.prediction import PossibleDeadlock
from dstack.observed.calls import GroupLibrary
from dstack.observed.node import Failure, Gpu, LogKind, LogStream, Xid
from dstack.observed.processes import Access, CudaUse, GpuUse, LoopBody

Json = dict[str, Any]


GapKind = Literal["sample", "worker", "access", "failure", "dependency"]
"""What was not observed: everything, a worker, its waits, what a failure hides, or what a wait depends on."""


class Bounds(TypedDict):
    """For how many seconds something has lasted; null where a bound is unknown."""

    at_least: float | None
    at_most: float | None


class DocumentTarget(TypedDict):
    """One dependency of a wait."""

    execution: Annotated[str, Meta(description="Name of the call, thread, actor or resource that is waited for")]
    ref: Annotated[str | None, Meta(description="ObjectRef through which it is waited for")]
    task_id: str | None
    task_name: str | None
    actor_id: str | None


class DocumentGroupCall(TypedDict):
    """A call on a process group, as of torch.distributed."""

    library: GroupLibrary
    group: Annotated[str, Meta(description="Unique name of the group in its run")]
    description: Annotated[str, Meta(description="Name that the program gives the group")]
    operation: Annotated[str, Meta(description="Name of the call, as all_reduce")]
    rank: Annotated[int, Meta(description="Rank of the caller")]
    peer: Annotated[int | None, Meta(description="The other rank of a send or recv, or the root")]
    ranks: Annotated[list[int], Meta(description="Ranks of all members")]
    inside: Annotated[list[int], Meta(description="Ranks that are in this call")]
    missing: Annotated[list[int], Meta(description="Ranks of which at least one must enter the call")]
    fails_at: Annotated[float | None, Meta(description="Unix time at which the library ends the call with an error")]


class DocumentTimer(TypedDict):
    """An armed timer that ends a wait."""

    name: Annotated[str, Meta(description="The function that it calls, or the scope whose deadline it is")]
    left_s: Annotated[float | None, Meta(description="Seconds until it is due, null if unknown")]
    file: Annotated[str, Meta(description="Where the code is inside the scope; may be empty")]
    line: int


class DocumentWait(TypedDict):
    """A wait, with its dependencies."""

    kind: Annotated[str, Meta(description="How it waits, as ray.get or actor slot")]
    needs: Annotated[int, Meta(description="Number of dependencies that must be satisfied")]
    of: Annotated[int, Meta(description="Number of things that the call asks for")]
    timeout_s: Annotated[float | None, Meta(description="Timeout that the program gave")]
    evidence: Exactness
    inferred: Annotated[str | None, Meta(description="Reason, where the dependencies are inferred")]
    polls: Annotated[str | None, Meta(description="FILE:LINE of a loop that only polls")]
    process_group: DocumentGroupCall | None
    assumed: Annotated[list[str], Meta(description="Assumptions that the wait rests on")]
    resources: Annotated[list[str], Meta(description="Requested resources")]
    targets: Annotated[list[DocumentTarget], Meta(description="The dependencies")]
    timer: Annotated[DocumentTimer | None, Meta(description="The armed timer that ends the wait")]
    cut_short_by: Annotated[list[DocumentTarget], Meta(description="What else may end the wait, as by ray.cancel")]


class Ranked(TypedDict):
    """Ranks and labels of a process in a distributed run."""

    rank: int | None
    local_rank: Annotated[int | None, Meta(description="Rank among the processes of the node")]
    world_size: Annotated[int | None, Meta(description="Number of ranks in the run")]
    world: Annotated[str, Meta(description="Identifies the run that the rank belongs to")]
    dimensions: Annotated[dict[str, int], Meta(description="Rank in each named process group, as tp or dp")]
    labels: Annotated[dict[str, str], Meta(description="Labels given by dstack.label")]


class DocumentMember(Ranked):
    """A call, thread, coroutine, actor or placement group. Fields that do not apply are null."""

    execution: Annotated[str, Meta(description="Name, as Cashier.order or driver train.py")]
    task_id: str | None
    task_name: str | None
    attempt: int | None
    actor_id: str | None
    actor_class: str | None
    actor_name: str | None
    job_id: str | None
    node_id: str | None
    node_ip: str | None
    pid: int | None
    thread: Annotated[str | None, Meta(description="Name of the thread, or of that of the event loop")]
    coroutine: bool
    file: Annotated[str | None, Meta(description="Place of the innermost user frame")]
    line: int | None
    function: str | None
    source: Annotated[str | None, Meta(description="Text of that line")]
    access: Annotated[Access | None, Meta(description="How the process was read")]
    sleeps: Annotated[bool, Meta(description="It is in time.sleep or asyncio.sleep")]
    torn: Annotated[bool, Meta(description="The thread ran during every reading of its stack")]
    never: Annotated[str | None, Meta(description="Reason why this can never be given")]
    since_s: Bounds
    waits_for: list[DocumentWait]
    alike: Annotated[int, Meta(description="Number of similar members that are left out")]


class DocumentBlocker(DocumentMember):
    """A running call at the end of a chain of waits."""

    waiters_direct: int
    waiters_total: int


class DocumentLastWords(TypedDict):
    """A line that a process printed, or a traceback in one line, that may say why something waits."""

    name: Annotated[str, Meta(description="Name of the process")]
    text: str
    kind: Annotated[LogKind, Meta(description="What the line is known to say")]
    stream: LogStream
    path: str
    writer: Annotated[str, Meta(description="Worker for which a driver printed it")]
    worker_id: str | None
    pid: int | None
    at: Annotated[float | None, Meta(description="Unix time at which it was printed")]
    before_s: Annotated[float | None, Meta(description="How long before the wait began")]
    count: Annotated[int, Meta(description="How often the text repeats, but for numbers")]
    over_s: float | None
    is_last: Annotated[bool, Meta(description="Nothing follows it in the log")]
    file: str | None
    line: int | None
    others: Annotated[int, Meta(description="Number of other processes that printed it")]
    silent_before_s: Annotated[float | None, Meta(description="It fell silent so long before the others of its kind")]


class DocumentFailedBefore(TypedDict):
    """A failed task, a dead actor or an ended asyncio task that a wait may depend on."""

    name: str
    error: str
    error_type: str
    task_id: str | None
    coroutine_id: Annotated[str | None, Meta(description="An asyncio task that ended with an exception")]
    actor_id: str | None
    actor: Annotated[str | None, Meta(description="Actor that the task was called on, or whose process it was in")]
    job_id: str | None
    pid: int | None
    node_ip: str | None
    file: str | None
    line: int | None
    source: str | None
    failed_at: Annotated[float | None, Meta(description="Unix time")]
    ago_s: float | None
    is_death: Annotated[bool, Meta(description="An actor died")]
    is_held: Annotated[bool, Meta(description="A process still holds the result of the task")]
    is_related: Annotated[
        bool,
        Meta(description="It shares a process, actor or class with the wait; an asyncio task held what is awaited"),
    ]
    count: Annotated[int, Meta(description="Number of similar failures")]


class DocumentProgress(TypedDict, total=False):
    """What moved in the jobs of a finding; numbers that are 0 and values that are unknown are left out."""

    watched_s: float
    started: int
    finished: int
    submitted: int
    cpu_s: float | None
    idle_s: Annotated[float | None, Meta(description="Seconds since the last task of the jobs ended")]
    last_ended_at: Annotated[float | None, Meta(description="Unix time at which it ended")]
    per_s: Annotated[float | None, Meta(description="Tasks of the jobs that ended each second lately")]


class DocumentAdvice(TypedDict):
    """What to do about a finding."""

    kind: Annotated[Literal["fix", "next"], Meta(description="A change that resolves it, or one thing to inspect")]
    text: Annotated[str, Meta(description="One or more sentences; the wording may change")]


class DocumentCure(TypedDict):
    """A change that frees a deadlock, a part of it, or nothing, by a reduction of the changed wait-for graph."""

    kinds: Annotated[list[CureKind], Meta(description="Several for changes that are enough only together")]
    text: Annotated[str, Meta(description="The change; the wording may change")]
    freed: Annotated[int, Meta(description="Number of waits of the finding that it frees")]
    total: Annotated[int, Meta(description="Number of members and of waits that are blocked behind them")]
    left: Annotated[list[DocumentTarget], Meta(description="The waits that remain, if it frees any")]
    is_certain: Annotated[bool, Meta(description="False if one of several possible wakers must be the one it frees")]
    starts: Annotated[list[str], Meta(description="Queued calls that start and are assumed to end")]
    same_way: Annotated[list[str], Meta(description="Queued calls that start and wait as their like do")]
    with_others: Annotated[bool, Meta(description="Some of the waits are also for another finding")]
    file: str | None
    line: int | None
    source: str | None


class DocumentDifference(TypedDict):
    """How members of a process group first differ in the collectives that they have entered."""

    kind: DifferenceKind
    group: Annotated[str, Meta(description="The program's name of the group, else the library's")]
    ranks: Annotated[list[int], Meta(description="The ranks that differ, in the world")]
    number: Annotated[int, Meta(description="Number of the first collective of the group that differs")]
    shift: Annotated[int, Meta(description="By how many calls they are behind (negative) or ahead")]
    is_clear: Annotated[bool, Meta(description="False if as many ranks are on either side")]
    operation: Annotated[str, Meta(description="The others' collective of this number; empty if unknown")]
    own_operation: Annotated[str, Meta(description="That of the ranks; if they are behind, their last one")]
    file: Annotated[str | None, Meta(description="The place of the others' call")]
    line: int | None
    own_file: Annotated[str | None, Meta(description="The place of the ranks' call")]
    own_line: int | None
    text: Annotated[str, Meta(description="One sentence; the wording may change")]


class DocumentDumped(TypedDict):
    """What torch dumped of the flight recorders of some ranks, as its watchdog does before it ends their processes."""

    written_at: Annotated[float, Meta(description="Unix time of the last of the files")]
    ranks: list[int]
    missing: Annotated[list[int], Meta(description="Ranks without a dump, if the dumps state how many there are")]
    jobs: Annotated[list[str], Meta(description="Ids of the jobs that ran when the files were written")]
    is_of_ray: Annotated[bool, Meta(description="Workers of Ray wrote them; otherwise that is unknown")]
    difference: Annotated[DocumentDifference | None, Meta(description="None if the records do not differ")]
    unreadable: Annotated[list[str], Meta(description="Files with such a name that are no such dump")]
    text: Annotated[str, Meta(description="One sentence; the wording may change")]


class DocumentFinding(TypedDict):
    """One finding."""

    kind: FindingKind
    confirmed: Annotated[bool, Meta(description="Seen unchanged in two samples, without an assumption")]
    assumed: Annotated[list[str], Meta(description="Assumptions; the finding is suspected where there are any")]
    summary: Annotated[str, Meta(description="One sentence; the wording may change")]
    advice: Annotated[DocumentAdvice | None, Meta(description="What to do about it; None where there is nothing")]
    cures: Annotated[list[DocumentCure], Meta(description="Changes that free a deadlock: the smallest first")]
    difference: DocumentDifference | None
    explanation: Annotated[list[str], Meta(description="One sentence per member; the wording may change")]
    resources: list[str]
    jobs: Annotated[list[str], Meta(description="Ids of the jobs that take part")]
    waiters_direct: Annotated[int, Meta(description="Number of waits that depend on a member directly")]
    waiters_total: Annotated[int, Meta(description="Number of all waits that depend on the finding")]
    watched_s: Annotated[float | None, Meta(description="Seconds observed without progress")]
    since_s: Bounds
    since: Annotated[float | None, Meta(description="Unix time before which it cannot have begun")]
    last_progress: Annotated[float | None, Meta(description="Unix time at which the last task of its jobs ended")]
    progress: DocumentProgress | None
    failed_before: list[DocumentFailedBefore]
    last_words: Annotated[list[DocumentLastWords], Meta(description="What its processes printed, if it may say why")]
    members: Annotated[list[DocumentMember], Meta(description="The waits; of a deadlock a shortest cycle first")]
    blocked_behind: Annotated[list[DocumentMember], Meta(description="Waits that depend on the members")]
    polled_by: Annotated[list[DocumentMember], Meta(description="Calls that poll the members with timeouts")]
    final_blockers: Annotated[list[DocumentBlocker], Meta(description="Running calls that the waits end in")]


class DocumentOutside(TypedDict):
    """Executions of the application that wait for something outside of Ray; without a finding, also other ones."""

    name: str
    call: str
    kind: Literal["task", "driver", "thread", "asyncio task"]
    count: int
    file: str | None
    line: int | None
    since_s: Bounds
    does: Annotated[Literal["waits", "rests", "runs"], Meta(description="What rests sleeps, or polls by sleeping")]
    loop: LoopBody | None


class DocumentThread(TypedDict):
    """A thread of a child process."""

    thread: str
    on_cpu: bool
    torn: bool
    waits_in: str | None
    file: str | None
    line: int | None
    function: str | None
    source: str | None


class DocumentChild(Ranked):
    """A process that a worker or driver has started."""

    worker_id: str
    pid: int
    parent_pid: int | None
    name: str
    state: str
    threads: list[DocumentThread]


class DocumentGpuProcess(Ranked):
    """What a worker, driver or child process uses of the GPUs of its node."""

    worker_id: str
    pid: int
    cuda: Annotated[CudaUse, Meta(description="Whether NVML lists it, it has mapped a GPU, or neither")]
    gpus: Annotated[list[GpuUse] | None, Meta(description="The GPUs that it uses; null if unknown")]


class DocumentNodeGpus(TypedDict):
    """The GPUs of one node."""

    node_id: str
    node_ip: str
    gpus: Annotated[list[Gpu] | None, Meta(description="As the driver reports them; null if it did not answer")]
    nvml_silent_s: Annotated[float | None, Meta(description="Seconds for which the driver has not answered")]
    xids: Annotated[list[Xid], Meta(description="The last errors of GPUs in the kernel's log")]
    processes: list[DocumentGpuProcess]


class DocumentRatio(TypedDict):
    """How many of how many were observed."""

    seen: int
    total: int


class DocumentCoverage(TypedDict):
    """What was observed."""

    nodes: DocumentRatio
    workers: DocumentRatio
    access: Annotated[dict[str, int], Meta(description="Number of workers by level of access")]
    failures: list[Failure]


class DocumentPauses(TypedDict):
    """Upper bounds on the time for which processes were paused, in milliseconds."""

    median: float
    max: float


class DocumentTiming(TypedDict):
    """How long the snapshot took."""

    total_s: float
    sample_s: list[float]
    pause_ms: DocumentPauses | None


class DocumentGap(TypedDict):
    """Something that was not observed and could change the verdict; similar ones as one."""

    kind: Annotated[GapKind, Meta(description="What was not observed")]
    text: Annotated[str, Meta(description="What was not observed, why, and what to do; the wording may change")]
    count: Annotated[int, Meta(description="How many are alike")]


class DocumentIdle(TypedDict):
    """Actors of one class, or parts of one library, that are alive and execute nothing."""

    name: str
    count: int


class Document(TypedDict):
    """What ``dstack check --json`` prints."""

    schema: Literal["dstack.check/2"]
    verdict: Verdict
    incomplete: Annotated[bool, Meta(description="Something that was not observed could change the verdict")]
    gaps: Annotated[list[DocumentGap], Meta(description="What was not observed and could hide a wait")]
    job: Annotated[str | None, Meta(description="Value of --job")]
    findings: Annotated[list[DocumentFinding], Meta(description="Worst first")]
    failed_before: Annotated[list[DocumentFailedBefore], Meta(description="Failures, where there is no finding")]
    dumped: Annotated[DocumentDumped | None, Meta(description="What torch dumped of its flight recorders, if it did")]
    explanation: Annotated[list[str], Meta(description="What sleeps or polls, where there is no finding")]
    idle: Annotated[list[DocumentIdle], Meta(description="What executes nothing, where there is no finding")]
    last_progress: Annotated[float | None, Meta(description="Unix time at which the last task of all jobs ended")]
    tasks_per_s: Annotated[float | None, Meta(description="Tasks of all jobs that ended each second lately")]
    outside_ray: list[DocumentOutside]
    child_processes: list[DocumentChild]
    possible_deadlocks: Annotated[
        list[PossibleDeadlock] | None,
        Meta(description="Deadlocks that another order of the same calls could reach; null without a history of tasks"),
    ]
    gpus: Annotated[list[DocumentNodeGpus], Meta(description="Of the nodes that have NVIDIA's driver")]
    coverage: DocumentCoverage
    timing: DocumentTiming


def check_schema() -> Json:
    """The JSON Schema of ``dstack.check/2``."""
    schema = msgspec.json.schema(Document)
    for observed in (Failure, Gpu, Xid):
        shape = schema["$defs"][observed.__name__]
        shape["required"] = list(shape["properties"])  # a document states also those with a default
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

"""The observed values of processes: what a probe reads of them, as it travels and as a snapshot has it.

Each is defined once, here and in :mod:`dstack.observed.node`. Identifiers are lower-case hex strings as Ray prints
them: node and worker 56 digits, actor 32, job 8, task 48, ObjectRef 56. Times that end in ``_at`` are Unix seconds;
``_s`` are seconds, ``_ms`` milliseconds. ``dataclasses.replace`` of such a value takes 3 us, ten times as
long as that of a struct.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Literal, get_args

# These modules travel to nodes without msgspec. Annotations are strings that only the caller evaluates, and the classes
# are pickled by value, so no node imports it. The bounds are checked where answers and files are decoded.
from msgspec import Meta

from dstack.observed.calls import Call, Int, Natural, ProcessGroup, ServeRequest, Timer, UnixTime
from dstack.observed.frozen_dataclass import frozen_dataclass
from dstack.observed.ledgers import MAX_RECORDED, Collective, GroupLedger

Percent = Annotated[float, Meta(ge=0, le=1e12)]
"""A share in percent; of several CPUs it may exceed 100."""
MAX_GPUS = 1_024
"""The most GPUs of one node or process."""

CudaUse = Literal["listed", "mapped", "none"]
"""How a process uses CUDA: NVML lists it, it has only mapped a device of NVIDIA's driver, or not even the library."""
Origin = Literal["user", "library", "ray", "stdlib"]
Role = Literal["task", "loop", "user", "ray"]
StartPhase = Literal["start", "import", "setup hook"]
"""What a worker process does before it takes tasks: its ``worker_process_setup_hook``, an import, anything else."""
HaltKind = Literal["stopped", "traced", "dumps core", "uninterruptible"]
"""What keeps a process from running: a signal, a debugger, the dump of its memory, or a sleep that no signal ends."""
RayLibrary = Literal["Data", "Serve", "Train", "Tune"]
LibraryCount = Literal[
    "running tasks",
    "queued blocks",
    "output blocks",
    "used bytes",
    "replicas",
    "running replicas",
    "failed starts",
    "workers",
    "validations",
    "queued validations",
    "running trials",
    "pending trials",
    "most trials",
]
"""What a library counts of a Data operator, of a Serve deployment, of a Train run, and of the trials of a Tune run."""
Access = Literal[
    "memory", "py-spy", "setuid py-spy", "py-spy via sudo", "text stack", "jstack", "gdb", "kernel", "state only"
]
ACCESSES: tuple[Access, ...] = get_args(Access)
"""How a process was read, best first: with waits of its threads, with stacks only, without stacks."""
OTHER_LANGUAGE_ACCESSES: tuple[Access, ...] = ("jstack", "gdb")
"""How processes in other languages than Python are read."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ActorName:
    """With what code calls ``ray.get_actor``: a name, and the namespace if it gives one, else that of its job.

    With ``is_variable``, ``name`` is the local variable that has the name, see :attr:`Thread.texts`.
    """

    name: str
    namespace: str = ""
    is_variable: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class LoopBody:
    """The lines of a loop, from its source, and what it calls.

    ``calls`` are the first names of functions that it calls, without Python's own, logging and sleeping: ``sleeps``
    says that it calls a function of that name. ``asks_for`` are the actors that it calls ``ray.get_actor`` for, and
    ``catches_full_queue`` says that it handles the exception for a call beyond an actor's ``max_pending_calls``.
    ``over`` is the source text of what it iterates over, and ``until`` that of the first condition that may end it,
    other than by the result of what it polls. Both are empty if there is none. A loop that is proven to only poll ends
    by no such condition, except for one flag: an event of ``threading`` that only code of its process sets.
    """

    first_line: Int
    last_line: Int
    calls: tuple[str, ...] = ()
    sleeps: bool = False
    asks_for: tuple[ActorName, ...] = ()
    catches_full_queue: bool = False
    over: str = ""
    until: str = ""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class StopCall:
    """A call in source code that stops something, by the name that the code calls, as ``ray.cancel``.

    ``ends_process`` says that it may end its own process, or the parent of that, as ``os.kill`` does.
    """

    name: str
    line: Int
    ends_process: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One Python frame. ``origin`` says whether the code is the user's, Ray's, or another library's.

    ``body`` is the innermost loop around the line; None outside of loops, or if the source is unreadable. That loop
    ``only_polls``, or the whole function if there is none, if its source proves that it ends by nothing but the result
    of what it calls in this line, and does nothing else but sleep and log. ``stops`` is the next call by which the
    user's code may cancel or kill something, from the source; ``may_fail`` is False if the source shows that what it
    may still do raises no exception, ``may_stop`` if it shows that this cancels and kills nothing.
    """

    function: str
    file: str
    line: Int
    origin: Origin = "user"
    only_polls: bool = False
    body: LoopBody | None = None
    stops: StopCall | None = None
    may_fail: bool = True
    may_stop: bool = True


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GraphChannel:
    """A channel of a compiled graph (``ray.dag``): one actor writes values to it, which other actors read in turn.

    ``writer`` and ``readers`` are ids of actors. The writer is empty for the driver, the process that compiled the
    graph. As a reader, the driver is represented by a small actor that it created. ``refs`` are objects in shared
    memory that hold the values; both ends of a channel share some of them. ``buffers`` is the maximum number of unread
    values, 0 if unknown.
    """

    writer: str
    readers: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()
    buffers: Natural = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GraphStage:
    """A method that a thread of an actor runs in a compiled graph; with an empty ``method``, the driver of the graph.

    ``os_thread_id`` is that thread, 0 for a driver; ``is_current`` says that the thread is in this stage. ``reader``
    and ``writer`` identify the ends of its channels in the process, see :class:`ChannelCall`. ``reads`` and ``writes``
    count the executions whose input it has read, and whose output it has written. A driver reads the outputs of the
    graph.
    """

    method: str
    os_thread_id: Int
    reader: str
    writer: str
    is_current: bool = False
    inputs: tuple[GraphChannel, ...] = ()
    outputs: tuple[GraphChannel, ...] = ()
    reads: Natural = 0
    writes: Natural = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnd:
    """An end of a vLLM message queue that a process has: the reader with this ``rank``, or None for the writer.

    ``name`` is that of the queue's shared memory, see :class:`QueueCall`.
    """

    name: str
    rank: Natural | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An open span of a thread or coroutine, which the program has entered with ``dstack.span``.

    ``frame`` is the index of the frame that has entered it, leaf first; None if no frame shows that, as for the
    generator of a context manager.
    """

    name: str
    began_at: UnixTime
    frame: Natural | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSpan:
    """A span that has ended; ``os_thread_id`` is its thread, None if that has ended, too."""

    name: str
    began_at: UnixTime
    ended_at: UnixTime
    os_thread_id: Int | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread of a process.

    ``os_thread_id`` is the pid for the thread that runs the program's main function: that of Java is started by the
    first thread, which then only waits for it. ``stack`` is an index into ``Snapshot.stacks``. ``role`` is the purpose
    of the thread: ``task`` executes Ray tasks, ``loop`` runs the event loop of an async actor, ``user`` was started by
    user code (or is the main thread of a driver, or of a worker that is starting), ``ray`` belongs to Ray or to a
    library. ``still`` is true if the thread did not run while its stack and refs were read, as the operating system
    shows: the reading is exact. ``torn`` is true if the thread ran during every reading of its stack: its frames may
    not belong together, and its wait is unknown. ``sleeps`` is true if the thread is in ``time.sleep``, as the kernel
    shows, for ``sleep_left_s`` more. ``slices`` counts how often it has been scheduled: it did not run between equal
    numbers. ``written_bytes`` counts what it has written by ``write(2)`` to files, pipes and sockets; it is read only
    of a thread that wakes by itself. ``exits_in`` is the function in which the interpreter exits on the main thread, as
    ``ray.shutdown``; None while its program runs. ``task_id`` is the Ray task that it runs, None for none; it is valid
    only if ``Process.tasks_read`` is true. ``timer`` is what a ``threading.Timer`` will call that it waits for.
    ``spans`` are its open spans, the outermost first; of a thread that runs, those that two readings show. ``texts``
    are the short texts in local variables of the innermost function that calls ``ray.get_actor``, if it sleeps there.
    """

    os_thread_id: Int
    name: str
    stack: Natural
    role: Role
    on_cpu: bool = False
    still: bool = False
    torn: bool = False
    sleeps: bool = False
    sleep_left_s: float | None = None
    slices: Natural | None = None
    written_bytes: Natural | None = None
    exits_in: str | None = None
    task_id: str | None = None
    call: Call | None = None
    timer: Timer | None = None
    locals: dict[str, dict[str, str]] | None = None
    spans: tuple[Span, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Coroutine:
    """A suspended asyncio task of a process, with its await chain instead of a stack.

    ``coroutine_id`` is the address of the asyncio task, in hex, in a child process with its pid. ``name`` is its name.
    ``stack`` is an index into ``Snapshot.stacks``: the innermost coroutine first. ``os_thread_id`` is the thread that
    runs its event loop, None if there is none or it is unknown. ``task_id`` is the Ray task in whose context it was
    created; ``is_task`` says that it is this task itself, not one that the task started. ``still`` is true if two
    readings agreed, or its event loop did not run meanwhile; only then it has a ``call``. ``request`` is the request to
    a Serve deployment that it executes in a replica. ``cancel_requests`` counts its cancellations, for example by
    ``ray.cancel``, which it may have caught (CPython 3.11 and later). ``spans`` are its open spans and those in which
    it was created, the outermost first.
    """

    coroutine_id: str
    name: str
    stack: Natural
    os_thread_id: Int | None = None
    task_id: str | None = None
    is_task: bool = False
    still: bool = False
    cancel_requests: Natural = 0
    call: Call | None = None
    request: ServeRequest | None = None
    spans: tuple[Span, ...] = ()


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """An asyncio task of a process that ended with an exception or was cancelled, and is still referenced.

    ``coroutine_id`` and ``name`` are as those of :class:`Coroutine`, ``function`` is the qualified name of its
    coroutine's function. ``stack`` has the frames of the exception's traceback, the innermost first; it may be empty.
    ``error`` is the type of the exception, and ``message`` the first line of its text, without secrets. ``held`` are
    the objects that threads and coroutines of the process wait on (:attr:`ProcessObject.object_id`) and that a bounded
    search reached from the locals of these frames: the task may have been what would have ended these waits.
    """

    coroutine_id: str
    name: str
    function: str
    stack: Natural
    error: str
    message: str = ""
    is_cancelled: bool = False
    held: tuple[str, ...] = ()


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What a process uses of the GPU with this ``index``; ``memory_bytes`` is None if unknown."""

    index: Natural
    memory_bytes: Natural | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class EndedChild:
    """A process below a worker or driver that has ended.

    ``exit_code`` is negative for a signal. A zombie has not been reaped by its parent; of another one, its parent's
    objects tell, and ``name`` is the one that these give it.
    """

    pid: Int
    parent_pid: Int
    name: str = ""
    exit_code: Int = 0
    is_zombie: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """What keeps a process, or only its thread ``os_thread_id``, from running, by the state in which the kernel has it.

    ``by`` is the name of the program that traces the process, of the pid ``tracer``; or the function of the kernel in
    which the thread sleeps, empty where the kernel does not show it.
    """

    kind: HaltKind
    by: str = ""
    tracer: Int = 0
    os_thread_id: Int | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class LibraryState:
    """What a part of a library of Ray has decided, as its own objects have it: why it starts no more work.

    ``name`` is a Data operator, or a Serve deployment of the application ``app``. ``state`` is the library's name of
    the state; of a Data operator it is the policy that holds it back, and ``holds_back`` what it may not do.
    ``message`` is the library's own. ``counts`` are without zeros. ``resources`` are those of each worker, or what is
    left of an operator's budget.
    """

    library: RayLibrary
    name: str = ""
    app: str = ""
    state: str = ""
    holds_back: Literal["", "tasks", "outputs"] = ""
    message: str = ""
    counts: dict[LibraryCount, Natural] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process of a worker or driver, or a process below it.

    ``access`` is how its threads were read, if there are any. Figures are 0 if only its stacks are known, as text.
    ``paused_ms`` is the maximum time for which dstack paused it: 0 unless ``--pause`` or ``--native`` was used.
    ``tasks_read`` says whether the task of each thread could be read. ``coroutines_read`` says whether its event loops
    could be read, if it has any: then all of their suspended coroutines are included. ``ended_tasks`` are some of the
    asyncio tasks that failed or were cancelled; they are read only if something in the process waits for an object of
    it. ``timers`` are those of its event loops that end the process, or stop tasks or actors. ``concurrency_groups``
    are those of an actor's methods, by the method's name, as its class declares them; None if unreadable.

    ``children`` are all processes below it, such as those of multiprocessing, in one list; of those that do not run
    Python, only waits in the kernel are known. Their ``parent_pid`` is the process that started each, None for a worker
    or driver, and ``name`` is that of the operating system. They are read in the first sample, and in the second one if
    the wait of a child may matter. ``children_left_out`` counts the other children, which are over the limit;
    ``ended_children`` are those that have ended. ``is_cut_off`` marks a child that was forked from a process connected
    to Ray, without the threads of that connection: Ray does not work in it.

    ``process_groups`` are its memberships, ``ledgers`` what these have counted, and ``collectives`` the distinct ones
    that the ledgers refer to. ``rank``, ``local_rank`` and ``world_size`` are those of its distributed
    run, from its default group or from the environment variables of its launcher. ``labels`` are those that the program
    set with ``dstack.label``. ``graph_stages`` are its stages in compiled graphs, ``queue_ends`` its ends of
    vLLM's message queues, perhaps not all.

    ``cpu_percent`` is its use of CPU, of which 100 is one CPU, over the ``cpu_over_s`` before its reading ended; None
    if it was not measured. ``gpus`` are the GPUs that it uses, by NVIDIA's driver; None if unknown.
    ``cuda`` is whether it has a CUDA context; None if unknown, or without that driver.

    ``starting`` is what a worker does that takes no tasks yet, None for others. ``handled_signals`` are the signals for
    which the program has installed a handler, by name, without those that Ray handles or that end a program.

    ``finished_spans`` are the last spans of ``dstack.span`` that have ended, in the order of their ends. They are read
    with a history, in the first sample. ``halt`` is what keeps it from running, None if nothing does.

    ``library_states`` are those of libraries of Ray whose controllers run in it.
    """

    pid: Int
    started_at: UnixTime
    parent_pid: Int | None = None
    name: str = ""
    access: Access = "memory"
    cpu_s: float = 0.0
    rss_bytes: Int = 0
    num_threads: Int = 0
    state: str = ""
    paused_ms: float = 0.0
    tasks_read: bool = False
    coroutines_read: bool = False
    concurrency_groups: dict[str, str] | None = None
    threads: tuple[Thread, ...] = ()
    coroutines: tuple[Coroutine, ...] = ()
    ended_tasks: tuple[EndedTask, ...] = ()
    timers: tuple[Timer, ...] = ()
    children: tuple[Process, ...] = ()
    children_left_out: Natural = 0
    ended_children: tuple[EndedChild, ...] = ()
    is_cut_off: bool = False
    process_groups: tuple[ProcessGroup, ...] = ()
    ledgers: tuple[GroupLedger, ...] = ()
    collectives: Annotated[tuple[Collective, ...], Meta(max_length=2 * MAX_RECORDED)] = ()
    rank: Natural | None = None
    local_rank: Natural | None = None
    world_size: Natural | None = None
    labels: dict[str, str] = field(default_factory=dict)
    graph_stages: tuple[GraphStage, ...] = ()
    queue_ends: tuple[QueueEnd, ...] = ()
    starting: StartPhase | None = None
    handled_signals: tuple[str, ...] = ()
    cpu_percent: Percent | None = None
    cpu_over_s: float = 0.0
    gpus: Annotated[tuple[GpuUse, ...], Meta(max_length=MAX_GPUS)] | None = None
    cuda: CudaUse | None = None
    finished_spans: tuple[FinishedSpan, ...] = ()
    halt: Halt | None = None
    library_states: tuple[LibraryState, ...] = ()

    @property
    def main_thread(self) -> Thread | None:
        """The thread that it began with, if its stack was read."""
        return next((thread for thread in self.threads if thread.os_thread_id == self.pid), None)

    @property
    def has_sound_ledgers(self) -> bool:
        """Whether its ledgers refer to its groups and collectives."""
        return all(one.fits(len(self.process_groups), len(self.collectives)) for one in self.ledgers)

    @property
    def family(self) -> tuple[Process, ...]:
        """The process itself, and those below it."""
        return (self, *self.children)

    def executions(self) -> tuple[Thread | Coroutine, ...]:
        """Its own threads and coroutines."""
        return (*self.threads, *self.coroutines)

    def calls(self) -> Iterator[Call]:
        """The calls that its own threads and coroutines are blocked in."""
        return (execution.call for execution in self.executions() if execution.call)

    def with_stacks(self) -> Iterator[Thread | Coroutine | EndedTask | Collective]:
        """Everything of the process and of its children that has a stack."""
        for process in self.family:
            yield from process.threads
            yield from process.coroutines
            yield from process.ended_tasks
            yield from process.collectives

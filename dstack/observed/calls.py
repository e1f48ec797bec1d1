"""Blocked calls as they are observed, and what they need: values that travel from the nodes to the snapshot.

Frozen dataclasses of the standard library, since a probe has nothing else. The bounds of numbers and texts are for the
caller, which checks them when it decodes an answer or a file; a node never evaluates them.

Identifiers are lower-case hex strings as Ray prints them. Times that end in ``_at`` are Unix seconds; ``_s`` are
seconds.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated, Literal

from msgspec import Meta

from dstack.observed.frozen_dataclass import frozen_dataclass

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
UnixTime = Annotated[float, Meta(ge=0, lt=253_370_764_800)]
"""Seconds since 1970, before the year 9999, as calendars require."""

CallKind = Literal["ray.get", "ray.wait", "generator", "thread.join", "future", "lock", "await", "other"]
REF_CALLS: tuple[CallKind, ...] = ("ray.get", "ray.wait", "generator")
"""The calls that wait for values of ObjectRefs."""
GroupLibrary = Literal["torch.distributed", "ray.util.collective", "ray.train", "ray.data"]
TORCH: GroupLibrary = "torch.distributed"
RAY: GroupLibrary = "ray.util.collective"
TRAIN: GroupLibrary = "ray.train"
DATA: GroupLibrary = "ray.data"
"""The libraries whose calls on a group of processes end when all members, or one other member, have made them."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """A request to a method of a Ray Serve deployment; ``app`` is the application of the deployment."""

    app: str
    deployment: str
    method: str

    @property
    def name(self) -> str:
        """``Kitchen.cook``: the deployment and the method."""
        return f"{self.deployment}.{self.method}"


MEETINGS = ("init_process_group", "init_collective_group")
"""Operations in which the members of a world meet at its address."""
LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
"""Addresses of any host, on itself."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The membership of a process in a group of processes, read from its memory.

    ``world`` identifies the set of processes that ranks refer to: the rendezvous address of torch.distributed, such as
    ``tcp://10.0.0.1:29500``, or what distinguishes the runs of another library; empty if unknown. ``name`` is unique in
    that world, and ``description`` is the program's name of the group, such as ``default_pg`` or ``mesh_tp``. ``rank``
    is the rank of the process in the world; ``ranks`` are those of all members, in the order of their ranks in the
    group. ``has_left`` says that the process has ended its part of the run, for example because its training function
    returned: it makes no more calls on the group.
    """

    library: GroupLibrary
    world: str
    name: str
    rank: Natural
    ranks: tuple[Natural, ...]
    description: str = ""
    has_left: bool = False

    @property
    def address(self) -> str:
        """``10.0.0.1:29500``, the address at which the members of the world meet; empty if there is none."""
        scheme, _, address = self.world.partition("://")
        return address.partition("/")[0] if scheme == "tcp" else ""


class Need:
    """What must happen before a blocked call ends: exactly one of the classes in :data:`NEEDS`, named by ``kind``."""

    __slots__ = ()
    kind: str


Inference = Literal["queued future", "with block", "async with block", "items", "one of several"]
"""Why a need is inferred, not read exactly: any thread of an executor may run a future that is queued; an execution is
in a block of the lock; items of generators may be available already; one of several futures is enough, and which one
is unknown."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Refs(Need):
    """Values of ObjectRefs: all of ``refs``, or ``count`` of them; for a generator, the ref of the next item.

    ``owners`` are the ids of the workers that own them, in the same order, ``""`` if unknown; or empty.
    """

    kind: Literal["refs"] = "refs"
    refs: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    count: Natural | None = None
    inferred: Inference | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class HeldRefs(Need):
    """Refs that were unreadable, and are among those that the process holds; ``assumed`` is a further assumption."""

    kind: Literal["held refs"] = "held refs"
    assumed: str | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Executions(Need):
    """One of these threads, by their OS ids, or coroutines of the process must proceed.

    They are the joined thread, those that may run the future, or the holders of the lock; ``object_id`` distinguishes
    that future or lock from others of the process.
    """

    kind: Literal["executions"] = "executions"
    threads: tuple[Int, ...] = ()
    coroutines: tuple[str, ...] = ()
    object_id: str | None = None
    inferred: Inference | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Futures(Need):
    """All of several futures: for ``each``, the threads of which one must proceed."""

    kind: Literal["futures"] = "futures"
    each: tuple[tuple[Int, ...], ...] = ()
    inferred: Inference | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Awaitables(Need):
    """All, or ``count``, of refs, coroutines, futures, and ``others``, which counts those that are unknown.

    ``futures`` has for each future the threads that may complete it; ``owners`` are those of the refs. With
    ``fails_fast`` one that fails ends the call, too, as in ``asyncio.gather`` and task groups.
    """

    kind: Literal["awaitables"] = "awaitables"
    refs: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    coroutines: tuple[str, ...] = ()
    futures: tuple[tuple[Int, ...], ...] = ()
    others: Natural = 0
    count: Natural | None = None
    inferred: Inference | None = None
    fails_fast: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Children(Need):
    """One of these processes below this one must end or write."""

    kind: Literal["children"] = "children"
    pids: tuple[Int, ...] = ()


EndKind = Literal[
    "TCP",
    "Unix socket",
    "socket",
    "pipe",
    "eventfd",
    "timer",
    "signal",
    "terminal",
    "file",
    "file lock",
    "directory",
    "process",
    "other",
    "unreadable",
]
"""What a thread waits on in the kernel."""
EndState = Literal["", "connected", "connecting", "refused", "listening", "closed"]
"""The state of a socket. One that is ``refused`` tries to connect to an address of its host where nothing listens."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process of a node, by its pid there.

    ``name`` is that of a process that no job has started, ``cpu_s`` the CPU time that it has used, and ``is_stopped``
    says that a signal or a debugger has stopped it.
    """

    pid: Int
    name: str = ""
    cpu_s: float = 0.0
    is_stopped: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What a thread waits on by one of its file descriptors, and the processes at the other end.

    ``name`` is a path, or the address of the other end, of a listening socket its own. ``identity`` distinguishes it
    from others on the node; of TCP it is the local and the remote address. ``is_write`` says that the thread waits for
    room. ``unread`` are the bytes that are on their way to this end, ``unsent`` those from it. ``holders`` can act at
    the other end: they have it open, or hold the file lock, or are the process that must end. ``through`` is the name
    of the native thread of the waiter's process that waits there itself, and then wakes the waiter.
    """

    what: EndKind
    name: str = ""
    identity: str = ""
    state: EndState = ""
    is_write: bool = False
    unread: Natural = 0
    unsent: Natural = 0
    holders: tuple[Holder, ...] = ()
    through: str = ""

    @property
    def mirrored(self) -> str | None:
        """The identity of the other end of a TCP connection, whose holders another node may know; None for others."""
        is_open = self.what == "TCP" and self.state == "connected" and not self.holders
        return " ".join(reversed(self.identity.split())) if is_open else None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ProcessObject(Need):
    """An object of the process, such as a queue, an event or a lock without a known holder; None if not identified.

    ``reached_by`` are OS ids of other threads of this process, and ``reached_by_coroutines`` ids of its coroutines,
    whose frames hold the object, so they may end the call. ``reached_by_actor`` says that the instance of the actor
    holds it, so its methods may end the call. All three come from a bounded search: they are candidates, perhaps not
    all. ``ends`` are those of the pipes and sockets that a coroutine's event loop watches, by which the call may end.
    """

    kind: Literal["object"] = "object"
    object_id: str | None = None
    reached_by: tuple[Int, ...] = ()
    reached_by_coroutines: tuple[str, ...] = ()
    reached_by_actor: bool = False
    ends: tuple[End, ...] = ()


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """The use of a store of torch.distributed at an address, as ``10.0.0.1:29500``, for which a thread waits.

    It waits until other processes have set these ``keys``; without keys, until the store's server listens, or if it
    ``is_server``, until ``size`` processes have connected, of which ``clients`` have so far.
    """

    address: str
    keys: tuple[str, ...] = ()
    is_server: bool = False
    size: Natural = 0
    clients: Natural = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class KernelObjects(Need):
    """What a thread waits for that sleeps in a system call: one of ``ends``.

    ``is_by_thread`` says that another thread of its process may end the wait, by an eventfd or a futex. ``store`` is
    what it waits for at the other end, if that is a store of torch.distributed.
    """

    kind: Literal["kernel"] = "kernel"
    system_call: str
    ends: tuple[End, ...] = ()
    is_by_thread: bool = False
    store: StoreUse | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class LostOwner(Need):
    """A lock whose owner does not exist in this process: it was held by another thread when the process was forked.

    ``owner`` is the OS id, in the parent process, of the thread that held the RLock; 0 if it is not known.
    """

    kind: Literal["lost owner"] = "lost owner"
    object_id: str
    owner: Natural = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(Need):
    """Unknown: the reason why the dependencies are unreadable."""

    kind: Literal["unreadable"] = "unreadable"
    reason: str


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GroupCall(Need):
    """The dependencies of a blocked call on a process group: the calls of its other members.

    ``operation`` is the library's name of the call, such as ``all_reduce``. ``group`` is the membership of the caller;
    while the group is being created, as in ``init_process_group`` and ``new_group``, its ``ranks`` are those that must
    join. ``peer`` is the other member of a send or recv, or the root of a broadcast, reduce, gather or scatter, by its
    rank in the world. ``transfer`` is the id of the object whose tensors Ray Direct Transport sends or receives in the
    call. ``mark`` changes whenever the thread of the caller runs, so equal marks belong to one call; it is empty if the
    library polls inside the call. ``fails_at`` is when the library will end the call with an error, if readable.
    ``is_refused``: nothing listens at the rendezvous address, which is one of the caller's host. ``listener`` is the
    process of that host which listens there.
    """

    kind: Literal["ranks"] = "ranks"
    operation: str
    group: ProcessGroup
    peer: Natural | None = None
    transfer: str = ""
    mark: str = ""
    fails_at: UnixTime | None = None
    is_refused: bool = False
    listener: Holder | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRequest(Need):
    """A request that waits in a router or replica, until a replica is below its limit of ongoing requests.

    ``replicas`` are the limits (``max_ongoing_requests``) of the replicas that may serve it, by the id of the replica,
    which ends the name of its actor. ``most_replicas`` is the maximum number of replicas of the deployment, None if
    unreadable. No other replica can serve a request that is ``in_replica``. ``made_at`` is its start, by the clock of
    its host.
    """

    kind: Literal["Serve slot"] = "Serve slot"
    request: ServeRequest
    made_at: UnixTime = 0.0
    replicas: dict[str, Natural] = field(default_factory=dict)
    most_replicas: Natural | None = None
    in_replica: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCall(Need):
    """The dependency of a wait in a channel of a compiled graph.

    ``end`` is the ``reader`` or ``writer`` of one :class:`GraphStage` of the process. ``pending`` are the positions of
    its inputs that have no value yet, or of the output that has no room. ``count`` is the number of earlier reads or
    writes there, or for a coroutine the number of the execution whose result it awaits. ``fails_after_s`` is the
    timeout of Ray after which an error ends the wait.
    """

    kind: Literal["channel"] = "channel"
    end: str
    is_write: bool
    count: Natural
    pending: tuple[Natural, ...] = ()
    fails_after_s: float | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class QueueCall(Need):
    """The dependency of a wait at an end of a vLLM message queue, in shared memory of this ``name``.

    ``rank`` is that of the reader that waits, None for the writer. ``ranks`` are those of all readers on the node, and
    ``unread`` how many messages each of them has not read. A writer waits until those in ``late`` have read the chunk
    that it writes next; a reader that ``is_ready`` only has to read its message. ``began`` is the start of the call, by
    a clock of its host that distinguishes any two calls. ``holders`` are the processes of the host that have the memory
    open, with the waiter's. It ``is_unlinked`` if its name was removed, as the end of the writer does.
    ``fails_after_s`` is a timeout after which an error ends the wait.
    """

    kind: Literal["message queue"] = "message queue"
    name: str
    rank: Natural | None = None
    began: float = 0.0
    ranks: tuple[Natural, ...] = ()
    unread: tuple[Natural, ...] = ()
    late: tuple[Natural, ...] = ()
    is_ready: bool = False
    holders: tuple[Holder, ...] = ()
    is_unlinked: bool = False
    fails_after_s: float | None = None


NEEDS: dict[str, type[Need]] = {
    "refs": Refs,
    "held refs": HeldRefs,
    "executions": Executions,
    "futures": Futures,
    "awaitables": Awaitables,
    "object": ProcessObject,
    "children": Children,
    "kernel": KernelObjects,
    "lost owner": LostOwner,
    "ranks": GroupCall,
    "Serve slot": QueuedRequest,
    "channel": ChannelCall,
    "message queue": QueueCall,
    "unreadable": Unreadable,
}
"""The classes of needs by their ``kind``."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """An armed timer: it calls ``name`` in ``left_s`` seconds; None if the remaining time is unreadable.

    ``name`` is a function by its qualified name, or the scope of a library with a deadline, as ``asyncio.timeout`` and
    ``anyio.CancelScope``; ``file`` and ``line`` are where a coroutine is inside that scope. ``stops`` says that the
    function cancels or kills something, by its name or the names that its code uses, and ``ends_process`` that it ends
    its process.
    """

    name: str
    left_s: float | None = None
    stops: bool = False
    ends_process: bool = False
    file: str = ""
    line: Natural = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A blocking call of a thread or coroutine, with what it needs.

    ``site`` is the id of the call site where it blocks, see :mod:`dstack.call_sites`. ``within`` is that of an outer
    function of a library that made the call, by which users know it. ``name`` is the user's name of the call where
    that of the site is not exact, as for a method of a subclass. ``frame`` is the index, from the leaf, of the frame
    that called into Ray or the standard library. ``timer`` is an armed timer that ends it at ``timeout_s``. A coroutine
    is also cancelled when one of the coroutines ``cut_short_by`` fails, or goes on: they are in its task group, or hold
    its asyncio task in code that cancels. The threads ``cut_short_by_threads`` hold it likewise.
    """

    site: str
    frame: Natural
    need: Need
    within: str | None = None
    name: str | None = None
    timeout_s: float | None = None
    timer: Timer | None = None
    cut_short_by: tuple[str, ...] = ()
    cut_short_by_threads: tuple[Int, ...] = ()

    @property
    def refs(self) -> tuple[str, ...]:
        """The refs that it is known to need."""
        return self.need.refs if isinstance(self.need, (Refs, Awaitables)) else ()

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners of the refs, see :class:`Refs`."""
        return self.need.owners if isinstance(self.need, (Refs, Awaitables)) else ()

    @property
    def ends(self) -> tuple[End, ...]:
        """The pipes, sockets and other ends by which the kernel may end it."""
        return self.need.ends if isinstance(self.need, (KernelObjects, ProcessObject)) else ()

    @property
    def coroutines(self) -> tuple[str, ...]:
        """The coroutines that it is known to need, or of which it needs one."""
        return self.need.coroutines if isinstance(self.need, (Executions, Awaitables)) else ()

    @property
    def threads(self) -> tuple[int, ...]:
        """The OS ids of all threads that may end it, or a part of it."""
        match self.need:
            case Executions():
                return self.need.threads
            case Futures():
                return tuple(thread for threads in self.need.each for thread in threads)
            case Awaitables():
                return tuple(thread for threads in self.need.futures for thread in threads)
            case _:
                return ()

    def is_same_as(self, other: Call) -> bool:
        """Whether both are the same wait, regardless of what can end it and of clock differences."""
        return self._without_reach() == other._without_reach()

    def _without_reach(self) -> Call:
        call = replace(self, timeout_s=None, timer=None) if self.timer else self
        call = replace(call, cut_short_by=(), cut_short_by_threads=())
        match self.need:
            case GroupCall():
                return replace(call, need=replace(self.need, fails_at=None))
            case QueueCall(name=name, rank=rank, began=began):  # it polls in frames of its own
                return replace(call, frame=0, need=QueueCall(name=name, rank=rank, began=began))
            case ProcessObject():
                return replace(call, need=ProcessObject(object_id=self.need.object_id))
            case KernelObjects(ends=ends):
                own = tuple(replace(end, unread=0, unsent=0, holders=()) for end in ends if not end.through)
                store = self.need.store and replace(self.need.store, clients=0)
                return replace(call, need=replace(self.need, ends=own, store=store))
            case _:
                return call

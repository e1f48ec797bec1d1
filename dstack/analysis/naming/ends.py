"""The words of waits in the kernel: what is at the other ends of pipes, sockets and locks, and which children ended.

Also those of processes that the kernel does not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstack import words
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import Place, SampleIndex
from dstack.analysis.naming import names
from dstack.model.diagnosis import Vertex
from dstack.observed.calls import End, EndKind, Holder, KernelObjects, StoreUse
from dstack.observed.processes import EndedChild, Halt
from dstack.words import grouped

ALONE: dict[EndKind, str] = {
    "terminal": "for input from a terminal",
    "signal": "for a signal",
    "timer": "for a timer",
    "directory": "for a change of a file",
}
"""What is waited for where there is no other end."""
SHOWN_ENDED = 3
SIGNALS = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)
"""Linux's signals from 1 on, on x86-64 and aarch64; the system that shows a file may number them otherwise."""


def ends_in_words(index: SampleIndex, vertex: Vertex, need: KernelObjects) -> str:
    """What a wait in the kernel is for, as the end of a sentence; empty if nothing is known."""
    if need.store is not None:
        return _of_store(need.store, need.ends, _holders(index, vertex, need.ends))
    own = [end for end in need.ends if not end.through and end.what != "eventfd"]
    through = [end for end in need.ends if end.through]
    parts = list(dict.fromkeys(_end(index, vertex, end) for end in own))
    if through and vertex.coroutine_id is not None:
        return _by_loop(index, vertex, through)
    if through:
        parts.append(_by_threads(index, vertex, through))
    elif not own and need.is_by_thread:
        parts.append("for a thread of its process that runs no Python")
    return f" {words.shortly(list(filter(None, parts)), ' or ')}" if parts else ""


def _of_store(store: StoreUse, ends: Sequence[End], others: str) -> str:
    """Where the store of a wait is, unless its call says so, and which process serves it."""
    if store.is_server:
        return f" at {store.address} ({words.plural(store.clients, 'connection')} so far)"
    at = "" if store.keys else f" at {store.address}"
    if any(end.state == "refused" for end in ends):
        return f"{at}, where nothing listens"
    return f"{at}, served by {others}" if others else at


def full_pipe_in_words(index: SampleIndex, vertex: Vertex) -> str:
    """The pipe that a thread writes to and that is full, and its readers; empty for any other wait."""
    kernel = vertex.wait.kernel if vertex.wait else None
    is_full = kernel is not None and any(end.what == "pipe" and end.is_write and end.holders for end in kernel.ends)
    return ends_in_words(index, vertex, kernel) if kernel and is_full else ""


def _end(index: SampleIndex, vertex: Vertex, end: End) -> str:
    """One end that the thread itself waits on."""
    if end.what in ALONE:
        return ALONE[end.what]
    others = _holders(index, vertex, [end])
    match end.what:
        case "pipe" if end.is_write:
            return f"for room in a full pipe that only {others} can read" if others else "for room in a pipe"
        case "pipe":
            return f"for a pipe that only {others} can write to" if others else "for a pipe"
        case "file lock":
            return f"for the lock file {end.name}, held by {others or 'no process that has it open'}"
        case "process":
            return f"for the end of {others}"
        case "TCP" | "Unix socket" | "socket":
            return _socket(end, others)
        case _:
            return f"for {end.name}" if end.name.startswith("/") else ""


def _socket(end: End, others: str) -> str:
    where = f" at {end.name}" if end.name else ""
    match end.state:
        case "listening":
            return f"for a connection{where}"
        case "refused":
            return f"for a connection to {end.name}, where nothing listens"
        case "connecting":
            return f"for {others or 'an answer'} to accept its connection{where}"
    if end.is_write:
        return f"until {others or 'the other end'} reads from its socket{where}"
    return f"for {others}, which is at the other end of its socket{where}" if others else f"for its socket{_to(end)}"


def _to(end: End) -> str:
    return f" to {end.name}" if end.name else ""


def _by_threads(index: SampleIndex, vertex: Vertex, ends: Sequence[End]) -> str:
    """What the native threads wait for, by which the waiter is woken."""
    connected = [end for end in ends if end.state == "connected"]
    threads = words.shortly(list(dict.fromkeys(end.through for end in connected or ends)))
    leads = _leads(index, vertex, connected)
    if not leads:
        listening = [end.name for end in ends if end.state == "listening"]
        return f"(thread {threads} listens at {words.shortly(listening)})" if listening else f"(by thread {threads})"
    return f"for {leads}, by the sockets of thread {threads}{_quiet(connected)}"


def _by_loop(index: SampleIndex, vertex: Vertex, ends: Sequence[End]) -> str:
    """What the event loop of a coroutine is connected to, by which the coroutine may be woken."""
    connected = [end for end in ends if end.state == "connected"]
    leads = _leads(index, vertex, connected)
    return f"; its event loop is connected to {leads}{_quiet(connected)}" if leads else ""


def _leads(index: SampleIndex, vertex: Vertex, connected: Sequence[End]) -> str:
    """The processes at the other ends of these sockets, or the addresses of those that are not known."""
    known = _holders(index, vertex, connected)
    unknown = (end.name for end in connected if not index.places_of(vertex.worker_id or "", end))
    return words.shortly([*([known] if known else []), *unknown])


def _quiet(connected: Sequence[End]) -> str:
    return "" if any(end.unread or end.unsent for end in connected) else ", with nothing unread or unsent"


def _holders(index: SampleIndex, vertex: Vertex, ends: Sequence[End]) -> str:
    """The processes at these ends: those of jobs by what they are, others by the name of their program."""
    places = (place for end in ends for place in index.places_of(vertex.worker_id or "", end))
    return words.shortly(list(dict.fromkeys(_holder(index, vertex, *place) for place in places)), " or ")


def _holder(index: SampleIndex, vertex: Vertex, holder: Holder, place: Place | None) -> str:
    if place is None:
        return f"{holder.name or 'process'} (pid {holder.pid}{', which is stopped' if holder.is_stopped else ''})"
    worker_id, child_pid = place
    if child_pid is not None:
        return names.child_process(child_pid)
    if worker_id == vertex.worker_id and vertex.child_pid is None:
        return "its own process"
    return names.process(subjects.process(index, worker_id, with_pid=True))


def halt_in_words(halt: Halt) -> str:
    """``stopped by a signal until SIGCONT``: what keeps a process or thread from running."""
    match halt.kind:
        case "stopped":
            return "stopped by a signal until SIGCONT"
        case "traced":
            return f"stopped by {halt.by or 'a process'} (pid {halt.tracer}), which traces it"
        case "dumps core":
            return "writing a core dump: it has crashed"
        case "uninterruptible":
            return f"in uninterruptible sleep{f' in {halt.by}' if halt.by else ''} of the kernel"


def ended_children(index: SampleIndex, vertex: Vertex) -> list[list[EndedChild]]:
    """The child processes that have ended, alike ones together, of a wait to which they may belong."""
    process = index.process(vertex.worker_id or "")
    if process is None or vertex.wait is None or not _may_need_children(vertex):
        return []
    pid = vertex.child_pid or process.pid
    own = [child for child in process.ended_children if child.parent_pid == pid]
    return list(grouped(((one.exit_code, one.is_zombie), one) for one in own).values())[:SHOWN_ENDED]


def _may_need_children(vertex: Vertex) -> bool:
    assert vertex.wait is not None, "of waits"
    return vertex.wait.kernel is not None or vertex.wait.site.is_of_children


def ended_in_words(children: Sequence[EndedChild], parent: str = "its ") -> str:
    """``its child process (pid 7) has ended with exit code 1``, of children that ended alike."""
    first = children[0]
    pids = ", ".join(str(child.pid) for child in children[: words.SHOWN])
    more = f" and {len(children) - words.SHOWN} more" if len(children) > words.SHOWN else ""
    named = f" {first.name}" if first.name and len(children) == 1 else ""
    which = f"{parent}child process" if len(children) == 1 else f"{len(children)} of {parent}child processes"
    verb = words.word(len(children), "has ended", "have ended")
    zombie = " (a zombie)" if first.is_zombie else ""
    return f"{which}{named} (pid {pids}{more}) {verb} {_how(first.exit_code)}{zombie}"


def _how(exit_code: int) -> str:
    """``with exit code 1``, ``by signal SIGKILL``."""
    if exit_code >= 0:
        return f"with exit code {exit_code}"
    is_named = -exit_code <= len(SIGNALS)
    return f"by signal {f'SIG{SIGNALS[-exit_code - 1]}' if is_named else -exit_code}"

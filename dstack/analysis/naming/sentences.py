"""One sentence for each vertex of the graph: its name and place, and what it does or waits for.

``PREDICATES`` has one row for each kind of wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from dstack import words
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, in_words, limit_in_words, lock_in_words, operand_in_words
from dstack.analysis.naming.ends import ends_in_words, halt_in_words
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.call_sites import EVENT_LOOP, UNTIL_COMPLETE, site_of
from dstack.libraries.compiled_graphs import OF_DRIVER
from dstack.model.diagnosis import GroupWait, Step, Vertex, Wait, WaitKind
from dstack.model.vertex_keys import Key, UnknownKey
from dstack.observed.calls import GroupCall, Timer
from dstack.observed.processes import Coroutine, Thread

OR = " or "
TORN_STACK = "stack may be inconsistent: the thread ran while it was read"
Vertices = Mapping[Key, Vertex]
NameOf = Callable[[Vertex], str]


def sentence(index: SampleIndex, vertices: Vertices, vertex: Vertex) -> Step:
    """The sentence about a vertex, with its line of code."""
    details = details_of(index, vertex)
    comma = "," if vertex.kind == "lifetime" and vertex.holder else ""  # its label ends in a clause
    verb = f"{cancellation(index, vertex)}{predicate(index, vertices, vertex, details)}"
    text = f"{subject(vertex, details)}{comma} {verb}"
    is_in_router = vertex.wait is not None and vertex.wait.kind == "Serve slot"  # its line of code is in Serve
    return Step(text=text, vertex=vertex.key) if is_in_router else step_at(text, details, vertex)


def cancellation(index: SampleIndex, vertex: Vertex) -> str:
    """``was cancelled but has not ended: it``, empty for other tasks."""
    return "was cancelled but has not ended: it " if is_cancelled(index, vertex) else ""


def is_cancelled(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether it is a task that was cancelled, by ``ray.cancel`` or by a library in it, but has not ended."""
    execution = index.execution_of(vertex) if vertex.task_id else None
    return isinstance(execution, Coroutine) and execution.cancel_requests > 0


def predicate(
    index: SampleIndex, vertices: Vertices, vertex: Vertex, details: VertexDetails, name_of: NameOf | None = None
) -> str:
    """The sentence without its subject: what a vertex does, what it waits for, or why it can never complete.

    ``name_of`` names its dependencies, in place of :func:`name`.
    """
    if vertex.never is not None:
        return in_words(vertex.never)
    if vertex.wait is None:
        return activity(vertex, details)
    if timer := timer_of(index, vertex):
        return f"is a timer that calls {timer.name or 'a function'} {_at_most(timer)}"
    waits = _waits(index, vertices, vertex.wait, name_of or partial(name, index))
    ends = ends_in_words(index, vertex, vertex.wait.kernel) if vertex.wait.kernel else ""
    halt = f"; it is {halt_in_words(details.halt)}" if details.halt else ""
    return f"{waits}{ends}{_cut_short(index, vertices, vertex.wait)}{halt}"


def timer_of(index: SampleIndex, vertex: Vertex) -> Timer | None:
    """The timer of a ``threading.Timer`` that a thread runs."""
    execution = index.execution_of(vertex) if vertex.kind == "execution" else None
    return execution.timer if isinstance(execution, Thread) else None


def _at_most(timer: Timer) -> str:
    return "at some time" if timer.left_s is None else f"in at most {words.duration(timer.left_s)}"


def name(index: SampleIndex, vertex: Vertex) -> str:
    """The name of a dependency, with its actor if another actor of the class could be meant."""
    if vertex.waker_of:
        return site_of(vertex.waker_of.site).ended_by or f"whatever ends {vertex.waker_of}"
    if vertex.kind == "lifetime" and vertex.holder is None:
        return describe(vertex)
    if vertex.kind in ("unknown", "lifetime") or vertex.subject.what == "starting worker":
        return f"the {describe(vertex)}"
    actor = index.actor_of_call(vertex.task_id)
    return names.call_of(describe(vertex), actor) if actor else describe(vertex)


def subject(vertex: Vertex, details: VertexDetails) -> str:
    """``Left.ping (actor Left "l", pid 3000, node 10.0.0.2)``."""
    place = details.place
    if vertex.child_pid is not None:  # its label has the pid
        node = f"node {details.node_ip}" if details.node_ip else ""
        place = ", ".join(part for part in (details.ranks.in_words, node) if part)
    return f"{describe(vertex)} ({place})" if place else describe(vertex)


def activity(vertex: Vertex, details: VertexDetails) -> str:
    """What an execution does that does not wait."""
    if isinstance(vertex.key, UnknownKey) and vertex.key.what == "timer":
        return "is armed"
    if vertex.kind != "execution":
        return "is not known to wait"
    if details.imports:
        return details.imports
    is_call = vertex.subject.what == "task" and vertex.wait is None
    since = vertex.since.at_most_s if vertex.since and is_call else None
    age = f"; its task has run for {words.duration(since)}" if since is not None else ""
    if details.halt:
        return f"is {halt_in_words(details.halt)}{age}"
    if details.sleeps:
        return f"is sleeping{age}"
    if vertex.coroutine_id is not None:
        return f"is sleeping, or ready to run{age}"
    return f"is running{'' if details.on_cpu else ', off CPU (sleeping, or in a call outside Python)'}{age}"


def reason(vertex: Vertex) -> str:
    """Why a vertex can never complete, as a predicate."""
    if vertex.never is None:
        return "cannot proceed"
    why = in_words(vertex.never)
    return f"never completes: {why}" if vertex.never.is_orphaned else why


def step_at(text: str, details: VertexDetails, vertex: Vertex) -> Step:
    """The sentence about a vertex, with its line of code."""
    return Step(text=text, vertex=vertex.key, file=details.file, line=details.line, source=details.source)


def fails_in(index: SampleIndex, call: GroupCall) -> str:
    """``; the call times out in 29 min``, empty if it has no timeout or clocks differ."""
    if call.fails_at is None or not index.snapshot.has_one_time:
        return ""
    left_s = call.fails_at - index.began_at
    return f"; the call times out in {words.duration(left_s)}" if left_s > 0 else ""


@dataclass(frozen=True, slots=True)
class _NamedWait:
    """A wait with the vertices that it depends on, and a function that names them."""

    wait: Wait
    targets: tuple[Vertex, ...]
    name_of: NameOf

    def __str__(self) -> str:
        """The names of the targets: ``Right.ping and Left.ping`` if all are needed, ``a or b`` if any is enough."""
        known = [target for target in self.targets if not target.waker_of] or self.targets
        return words.shortly(list(dict.fromkeys(map(self.name_of, known))), joint_of(self.wait))


def joint_of(wait: Wait) -> str:
    """The word between the targets of a wait: whether it needs all of them, any, or some (then there is none)."""
    choices = [group.needs for group in wait.groups if group.needs < len({one.vertex for one in group.targets})]
    if not choices:
        return " and "
    return OR if 1 in choices else ", "


def _waits(index: SampleIndex, vertices: Vertices, wait: Wait, name_of: NameOf) -> str:
    if wait.loop is not None:
        own = tuple(group for group in wait.groups if wait.loop not in {target.vertex for target in group.targets})
        if own and wait.of_group is None:
            first = _waits(index, vertices, replace(wait, groups=own, loop=None), name_of)
            loop = vertices[wait.loop]
            return f"{first}, and for {describe(loop)} {_frees([loop])}"
    targets = tuple(vertices[key] for key in dict.fromkeys(target.vertex for target in wait.targets))
    named = _NamedWait(wait, targets, name_of)
    if wait.of_group is not None:
        return _in_group(index, named, wait.of_group)
    return _polls(named) if wait.polls is not None else PREDICATES[wait.kind](named)


def _cut_short(index: SampleIndex, vertices: Vertices, wait: Wait) -> str:
    """What may end a wait besides its dependencies: ``; a timer of anyio (client.py:31) cancels it in 28 s``."""
    parts = []
    if wait.timer is not None:
        left_s = wait.timer.left_s
        place = f"{words.base_name(wait.timer.file)}:{wait.timer.line}" if wait.timer.file else ""
        when = f" in {words.duration(left_s)}" if left_s is not None else ""
        parts.append(f"a timer ({', '.join(filter(None, (wait.timer.name, place)))}) ends the wait{when}")
    if wait.cut_short_by:
        others = list(dict.fromkeys(name(index, vertices[target.vertex]) for target in wait.cut_short_by))
        parts.append(f"{words.shortly(others, OR)} may end the wait")
    return "".join(f"; {part}" for part in parts)


def _in_group(index: SampleIndex, named: _NamedWait, of_group: GroupWait) -> str:
    """A call on a process group: the rank, the ranks that are not in the call, and what these do."""
    call, group = of_group.call, of_group.call.group
    place = f"waits in {call.operation} of {names.process_group(group)} as rank {group.rank}"
    error = fails_in(index, call)
    if not of_group.missing:
        others = [rank for rank in of_group.inside if rank != group.rank]
        return f"{place}{f', like {names.ranks(others)}' if others else ''}{error}"
    return f"{place} for {names.ranks(of_group.missing)}: {named}{error}"


def _polls(named: _NamedWait) -> str:
    wait = named.wait
    where = f"in the loop at {wait.polls}" if wait.polls else "in a loop"
    if wait.kernel is not None or all(target.waker_of for target in named.targets):
        return f"waits in {wait.call} {where}{_timeout(wait)}"
    if wait.timeout_s == 0.0:
        return f"{wait.kind_name} {where}; only {named} can change the result"
    return f"polls {named} {where} ({wait.call}, timeout {wait.timeout_s:g} s)"


# The kinds of wait


def _plain(named: _NamedWait) -> str:
    return f"waits for {named}"


def _await(named: _NamedWait) -> str:
    wait = named.wait
    is_plain = wait.called is None and wait.timeout_s is None
    verb = "awaits" if is_plain else f"{_waits_in(wait.call, wait)} for"
    return f"{verb} {_count(wait)}{named}{_inferred(wait)}"


def _in_call(named: _NamedWait) -> str:
    return f"{_waits_in(named.wait.call, named.wait)} for {named}{_inferred(named.wait)}"


def _lock(named: _NamedWait) -> str:
    return f"waits for {lock_in_words(named.wait.site.id)}, held by {named}{_inferred(named.wait)}"


def _serve_slot(named: _NamedWait) -> str:
    limit = named.wait.limit
    return f"is queued behind {named}: {limit_in_words(limit)} is reached" if limit else _plain(named)


def _queued(named: _NamedWait, rest: str = "") -> str:
    """A call is queued behind other calls, or waits for something that was not observed."""
    is_for_unknown = any(isinstance(vertex.key, UnknownKey) for vertex in named.targets)
    return _plain(named) if is_for_unknown else f"is queued behind {named}{rest}"


def _in_channel(named: _NamedWait, dependency: str) -> str:
    """A wait in a channel of a compiled graph; a stage makes the call in its loop, so the call is left out."""
    wait = named.wait
    call = f" in {wait.call}{_timeout(wait)}" if wait.site.id in OF_DRIVER else ""
    return f"waits{call} {dependency}{_failing(wait)}"


def _in_queue(named: _NamedWait, dependency: str) -> str:
    """A wait at an end of a message queue, with what each of its readers has read."""
    queue = named.wait.of_queue
    own = "" if queue is None or queue.rank is None else f" as rank {queue.rank}"
    return f"waits in {named.wait.call}{own} {dependency}{queue_in_words(named.wait)}{_failing(named.wait)}"


def _is_open(named: _NamedWait) -> bool:
    """Whether nothing is known that may end the wait, or its message is there."""
    is_ready = named.wait.of_queue is not None and named.wait.of_queue.is_ready
    return is_ready or all(target.waker_of for target in named.targets)


def queue_in_words(wait: Wait) -> str:
    """`` (queue psm_1: ranks 0, 2-3 have read all, rank 1 has 4 unread)``; empty for a wait at no queue."""
    if wait.of_queue is None:
        return ""
    by_count = words.grouped(zip(wait.of_queue.unread, wait.of_queue.ranks, strict=True))
    read = (
        f"{names.ranks(ranks)} {words.word(len(ranks), 'has', 'have')} {f'{unread} unread' if unread else 'read all'}"
        for unread, ranks in sorted(by_count.items())
    )
    return f" (queue {wait.of_queue.name}: {', '.join(read)})"


def _failing(wait: Wait) -> str:
    return f" (fails after {wait.fails_after_s:g} s)" if wait.fails_after_s is not None else ""


def _kept(named: _NamedWait) -> str:
    return _in_channel(named, f"for room in a channel of its compiled graph: {named} still refers to a value in it")


def _other(named: _NamedWait) -> str:
    wait = named.wait
    if wait.kernel is not None:
        return f"waits in {wait.call}{_timeout(wait)}"
    if any(vertex.child_pid for vertex in named.targets):
        return f"{_waits_in(wait.call, wait)} for {named}{_inferred(wait)}"
    if any(vertex.waker_of for vertex in named.targets):
        waker = wait.site.ended_by
        return f"{_waits_in(wait.call, wait)} for {waker}" if waker else f"waits in {wait.call}{_timeout(wait)}"
    return f"{_waits_in(wait.call, wait)} for {named}" if wait.assumed else _plain(named)


def _resources(named: _NamedWait) -> str:
    wait, found = named.wait, named.targets
    labels = [operand_in_words(vertex.holder) if vertex.holder else named.name_of(vertex) for vertex in found]
    what = f"waits for {words.listed(wait.resources) or 'room'}"
    if labels and not wait.resources and all(isinstance(vertex.key, UnknownKey) for vertex in found):
        return f"waits for {words.shortly(labels, OR)}"
    if not found or any(vertex.kind in ("room", "unknown") for vertex in found):
        return f"{what}: {words.shortly(labels, OR)}"
    many = f"{wait.needed} of " if 1 < wait.needed < wait.total else ""
    return f"{what}, held by {many}{words.shortly(labels, joint_of(wait))}"


PREDICATES: Mapping[WaitKind, Callable[[_NamedWait], str]] = {
    "await": _await,
    "future": _in_call,
    "generator": lambda named: f"{_waits_in('next', named.wait)} for the next value of {named}",
    "lock": _lock,
    "other": _other,
    "ray.get": _in_call,
    "ray.wait": lambda named: f"{_waits_in('ray.wait', named.wait)} for {_count(named.wait)}{named}",
    "thread.join": lambda named: f"{_waits_in('Thread.join', named.wait)} for {named}",
    "actor creation": lambda named: "waits for its actor to be created",
    "actor slot": _queued,
    "arguments": lambda named: f"waits for its argument, produced by {named}{_inferred(named.wait)}",
    "backpressure": lambda named: f"is paused by backpressure until {named} consumes a value{_inferred(named.wait)}",
    "channel read": lambda named: _in_channel(named, f"for an output of {named} in its compiled graph"),
    "channel write": lambda named: _in_channel(named, f"until {named} reads a value of its compiled graph"),
    "coroutine": _plain,
    "event loop": lambda named: f"waits for {named} {_frees(named.targets)}",
    "executor": _plain,
    "kept value": _kept,
    "lifetime": lambda named: f"depends on {named}",
    "next call": lambda named: f"enters the call only after {named}",
    "order": partial(_queued, rest=", which was submitted first and waits for its arguments"),
    "perhaps ray.get": lambda named: f"may wait for {named}{_inferred(named.wait)}",
    "placement group": _plain,
    "queue read": lambda named: _in_queue(named, "for a message" if _is_open(named) else f"for a message from {named}"),
    "queue write": lambda named: _in_queue(named, "for room" if _is_open(named) else f"until {named} reads a message"),
    "ranks": _plain,
    "resources": _resources,
    "retry": _plain,
    "runtime environment": _plain,
    "scheduler": _plain,
    "Serve request": lambda named: f"passes the request on to {named}",
    "Serve slot": _serve_slot,
    "step": _plain,
    "thread": _plain,
}


def _count(wait: Wait) -> str:
    """``1 of 3: ``, empty if all are needed."""
    return f"{wait.needed} of {wait.total}: " if wait.needed < wait.total else ""


def _frees(loops: Sequence[Vertex]) -> str:
    """What a thread must do that blocks an event loop: return from the code that it runs there, or end its call."""
    return "to free the event loop" if any(loop.task_id or loop.wait for loop in loops) else "to become free"


def _waits_in(call: str, wait: Wait) -> str:
    """``waits in ray.get``, with the timeout if there is one."""
    call = "its event loop" if wait.site in (EVENT_LOOP, UNTIL_COMPLETE) else call
    return f"waits in {call}" + (f"{_timeout(wait)}," if wait.is_timed else "")


def _timeout(wait: Wait) -> str:
    return f", timeout {wait.timeout_s:g} s" if wait.timeout_s is not None and wait.timer is None else ""


def _inferred(wait: Wait) -> str:
    return f" (inferred: {in_words(wait.inferred)})" if wait.inferred else ""

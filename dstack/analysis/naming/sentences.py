"""One sentence for each thing in the graph: who it is and where, what it waits for, and from whom.

A new kind of wait gets its verb here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from dstack import words
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.task_assignment import IDLE_LOOP
from dstack.analysis.naming import names
from dstack.analysis.naming.vertex_details import VertexDetails, details_of, execution_of
from dstack.diagnosis import GroupWait, Step, Target, Vertex, Wait
from dstack.model import Coroutine, GroupCall
from dstack.vertex_keys import Key, UnknownKey

SHOWN_TARGETS = 3
OR = " or "
TORN_STACK = "stack may be inconsistent: the thread ran while it was read"
ENDED_BY = {
    "Event.wait": "a call of Event.set",
    "Condition.wait": "a call of Condition.notify",
    "Barrier.wait": "the other parties of the barrier",
    "Semaphore.acquire": "a release of the semaphore",
    "Queue.get": "an item in the queue",
    "Queue.put": "room in the queue",
    "Queue.join": "Queue.task_done for each item",
}
"""What ends a call of the standard library, by the end of its name."""
Vertices = Mapping[Key, Vertex]
NameOf = Callable[[Vertex], str]


def sentence(index: SampleIndex, vertices: Vertices, vertex: Vertex) -> Step:
    """The sentence about a vertex, with the line it is at."""
    who = details_of(index, vertex)
    comma = "," if vertex.kind == "lifetime" and vertex.holder else ""  # its label ends in a clause
    text = f"{subject(vertex, who)}{comma} {cancellation(index, vertex)}{predicate(index, vertices, vertex, who)}"
    return Step(text=text, vertex=vertex.key) if _is_in_router(vertex) else step_at(text, who, vertex)


def cancellation(index: SampleIndex, vertex: Vertex) -> str:
    """``was cancelled but has not ended: it``, of a task that has not ended though it was cancelled."""
    return "was cancelled but has not ended: it " if is_cancelled(index, vertex) else ""


def is_cancelled(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether it is a task that has not ended though it was asked to: by ``ray.cancel``, or by a library in it."""
    execution = execution_of(index, vertex) if vertex.task_id else None
    return isinstance(execution, Coroutine) and execution.cancel_requests > 0


def _is_in_router(vertex: Vertex) -> bool:
    """Whether it is a queued request, at a line of Serve's that tells its user nothing."""
    return vertex.wait is not None and vertex.wait.kind == "Serve slot"


def predicate(
    index: SampleIndex, vertices: Vertices, vertex: Vertex, who: VertexDetails, name_of: NameOf | None = None
) -> str:
    """The sentence without its subject: what a vertex does, waits for, or why it can never be given.

    ``name_of`` names what it waits for, in place of :func:`name`.
    """
    if vertex.never is not None:
        return vertex.never
    if vertex.wait is None:
        return activity(vertex, who)
    return _waits(index, vertices, vertex.wait, name_of or partial(name, index))


def name(index: SampleIndex, vertex: Vertex) -> str:
    """A target by name, with its actor where another actor of the class could be meant."""
    if vertex.waker_of:
        return ended_by(vertex.waker_of) or f"whatever ends {vertex.waker_of}"
    if vertex.kind == "lifetime" and vertex.holder is None:
        return vertex.label
    if vertex.kind in ("unknown", "lifetime"):
        return f"the {vertex.label}"
    actor = names.actor_of(index, vertex.task_id) if vertex.task_id else None
    return names.call_of(vertex.label, actor) if actor else vertex.label


def ended_by(call: str) -> str | None:
    """``a call of Event.set``: what ends a call, where it is known what does."""
    function = call.partition(" of ")[0]
    return next((text for name, text in ENDED_BY.items() if function.endswith(name)), None)


def subject(vertex: Vertex, who: VertexDetails) -> str:
    """``Left.ping (actor Left "l", pid 3000, node 10.0.0.2)``."""
    place = who.place
    if vertex.child_pid is not None:  # its label has the pid
        place = ", ".join(part for part in (who.ranks.in_words, f"node {who.node_ip}" if who.node_ip else "") if part)
    return f"{vertex.label} ({place})" if place else vertex.label


def activity(vertex: Vertex, who: VertexDetails) -> str:
    """What an execution does that does not wait."""
    if vertex.kind != "execution":
        return "is not known to wait"
    if who.sleeps:
        return "is sleeping"
    if vertex.coroutine_id is not None:
        return "is sleeping, or ready to run"
    return "is running" if who.on_cpu else "is running, off CPU (sleeping, or in a call outside Python)"


def reason(vertex: Vertex) -> str:
    """Why something can never be given, as a verb of its own."""
    if vertex.never is None:
        return "cannot proceed"
    return f"never completes: {vertex.never}" if vertex.never_kind == "orphaned" else vertex.never


def step_at(text: str, who: VertexDetails, vertex: Vertex) -> Step:
    """The sentence about a vertex, at the line where it is."""
    return Step(text=text, vertex=vertex.key, file=who.file, line=who.line, source=who.source)


def _waits(index: SampleIndex, vertices: Vertices, wait: Wait, name_of: NameOf) -> str:
    """The predicate of the sentence: what this vertex waits for."""
    if wait.of_group is not None:
        return _in_group(index, vertices, wait, wait.of_group, name_of)
    if wait.loop is not None:
        own = tuple(group for group in wait.groups if wait.loop not in {target.vertex for target in group.targets})
        if own:
            first = _waits(index, vertices, replace(wait, groups=own, loop=None), name_of)
            return f"{first}, and {_loop(vertices, wait.loop)}"
    targets = _targets(vertices, wait, name_of)
    if wait.polls is not None:
        return _polls(wait, targets)
    match wait.kind:
        case "await":
            return _await(wait, targets)
        case "ray.get":
            return f"{_lasting(wait.what or 'ray.get', wait)} for {targets}" + _inferred(wait)
        case "perhaps ray.get":
            return f"may wait for {targets}" + _inferred(wait)
        case "ray.wait":
            return f"{_lasting('ray.wait', wait)} for {_some(wait)}{targets}"
        case "thread.join":
            return f"{_lasting('Thread.join', wait)} for {targets}"
        case "generator":
            return f"{_lasting('next', wait)} for the next value of {targets}"
        case "future":
            return f"{_lasting(wait.what or 'Future.result', wait)} for {targets}" + _inferred(wait)
        case "lock":
            return f"waits for {names.lock_in_words(wait.what)}, held by {targets}" + _inferred(wait)
        case "Serve slot":
            full = f"is queued behind {targets}: {wait.what} is reached"
            return full if wait.what else f"waits for {targets}"
        case "Serve request":
            return f"passes the request on to {targets}"
        case "actor slot" | "order" if _is_for_unknown(wait):
            return f"waits for {targets}"
        case "actor slot":
            return f"is queued behind {targets}"
        case "event loop":
            loops = [vertices[target.vertex] for group in wait.groups for target in group.targets]
            return f"waits for {targets} {_frees(loops)}"
        case "order":
            return f"is queued behind {targets}, which was submitted first and waits for its arguments"
        case "arguments":
            return f"waits for its argument, produced by {targets}" + _inferred(wait)
        case "resources":
            return _resources(vertices, wait, name_of)
        case "lifetime":
            return f"depends on {targets}"
        case "backpressure":
            return f"is paused by backpressure until {targets} consumes a value" + _inferred(wait)
        case "channel read":
            return f"waits{_in_call(wait)} for an output of {targets} in its compiled graph{_failing(wait)}"
        case "channel write":
            return f"waits{_in_call(wait)} until {targets} reads a value of its compiled graph{_failing(wait)}"
        case "kept value":
            return (
                f"waits{_in_call(wait)} for room in a channel of its compiled graph: {targets} still refers to a value "
                f"in it{_failing(wait)}"
            )
        case "next call":
            return f"enters the call only after {targets}"
        case "actor creation":
            return "waits for its actor to be created"
        case _ if any(vertices[target.vertex].child_pid for group in wait.groups for target in group.targets):
            return f"{_lasting(wait.kind, wait)} for {targets}" + _inferred(wait)
        case _ if any(vertices[target.vertex].waker_of for group in wait.groups for target in group.targets):
            awaited = ended_by(wait.kind)
            return f"{_lasting(wait.kind, wait)} for {awaited}" if awaited else f"waits in {wait.kind}{_timeout(wait)}"
        case _ if wait.assumed:
            return f"{_lasting(wait.kind, wait)} for {targets}"
        case _:
            return f"waits for {targets}"


def _is_for_unknown(wait: Wait) -> bool:
    """Whether one of the targets is no call that was observed."""
    return any(isinstance(target.vertex, UnknownKey) for group in wait.groups for target in group.targets)


def _in_group(index: SampleIndex, vertices: Vertices, wait: Wait, of_group: GroupWait, name_of: NameOf) -> str:
    """In which call of which group, as which rank, which ranks are not in it, and what they do."""
    call, group = of_group.call, of_group.call.group
    place = f"waits in {call.operation} of {names.process_group(group)} as rank {group.rank}"
    error = fails_in(index, call)
    if not of_group.missing:
        others = [rank for rank in of_group.inside if rank != group.rank]
        return f"{place}{f', like {names.ranks(others)}' if others else ''}{error}"
    targets = _targets(vertices, wait, name_of)
    return f"{place} for {names.ranks(of_group.missing)}: {targets}{error}"


def fails_in(index: SampleIndex, call: GroupCall) -> str:
    """``; the call times out in 29 min``, where clocks agree."""
    if call.fails_at is None or not index.snapshot.has_one_time:
        return ""
    left_s = call.fails_at - index.began_at
    return f"; the call times out in {words.duration(left_s)}" if left_s > 0 else ""


def _in_call(wait: Wait) -> str:
    """`` in CompiledDAGRef.get, timeout 5 s``; empty for a stage, whose loop makes the call."""
    return f" in {wait.what}{_timeout(wait)}" if wait.what and wait.what.startswith("CompiledDAG") else ""


def _failing(wait: Wait) -> str:
    return f" (fails after {wait.fails_after_s:g} s)" if wait.fails_after_s is not None else ""


def _polls(wait: Wait, targets: str) -> str:
    """What a loop does that only polls, and for what."""
    where = f"in the loop at {wait.polls}" if wait.polls else "in a loop"
    if wait.timeout_s == 0.0:
        return f"{wait.kind} {where}; only {targets} can change the result"
    return f"polls {targets} {where} ({wait.what or wait.kind}, timeout {wait.timeout_s:g} s)"


def _await(wait: Wait, targets: str) -> str:
    """In which call it awaits, how many of what, and with which timeout, if any."""
    some = _some(wait) if wait.needed < wait.total else ""
    plainly = wait.what is None and wait.timeout_s is None
    return (f"awaits {some}{targets}" if plainly else f"{_lasting(wait.what or 'await', wait)} for {some}{targets}") + (
        _inferred(wait)
    )


def _some(wait: Wait) -> str:
    """``1 of 3: ``, empty where there is but one."""
    return f"{wait.needed} of {wait.total}: " if wait.total > 1 else ""


def _loop(vertices: Vertices, key: Key) -> str:
    return f"for {vertices[key].label} {_frees([vertices[key]])}"


def _frees(loops: Sequence[Vertex]) -> str:
    """What a thread must do that blocks an event loop, whether it is called by what it runs or as the loop."""
    return "to free the event loop" if any(loop.task_id or loop.wait for loop in loops) else "to become free"


def _lasting(call: str, wait: Wait) -> str:
    """``waits in ray.get``, and with which timeout, if any."""
    call = "its event loop" if call == IDLE_LOOP else call
    return f"waits in {call}" + (f"{_timeout(wait)}," if wait.is_timed else "")


def _timeout(wait: Wait) -> str:
    return f", timeout {wait.timeout_s:g} s" if wait.timeout_s is not None else ""


def _resources(vertices: Vertices, wait: Wait, name_of: NameOf) -> str:
    """What is missing and who has it, or where there would be room."""
    found = [vertices[key] for key in dict.fromkeys(t.vertex for group in wait.groups for t in group.targets)]
    labels = [vertex.holder or name_of(vertex) for vertex in found]
    what = f"waits for {words.listed(wait.resources) or 'room'}"
    if labels and not wait.resources and all(isinstance(vertex.key, UnknownKey) for vertex in found):
        return f"waits for {words.shortly(labels, SHOWN_TARGETS, OR)}"
    if not found or any(vertex.kind in ("room", "unknown") for vertex in found):
        return f"{what}: {words.shortly(labels, SHOWN_TARGETS, OR)}"
    many = f"{wait.needed} of " if 1 < wait.needed < wait.total else ""
    return f"{what}, held by {many}{words.shortly(labels, SHOWN_TARGETS, OR if wait.needed < wait.total else ' and ')}"


def _targets(vertices: Vertices, wait: Wait, name_of: NameOf) -> str:
    targets: list[Target] = list(dict.fromkeys(t for group in wait.groups for t in group.targets))
    labels = list(dict.fromkeys(name_of(vertices[target.vertex]) for target in targets))
    is_all = (wait.kind == "ray.get" and not wait.inferred) or (wait.kind == "await" and wait.needed == wait.total)
    return words.shortly(labels, SHOWN_TARGETS, " and " if is_all else OR)


def _inferred(wait: Wait) -> str:
    return f" (inferred: {wait.inferred})" if wait.inferred else ""

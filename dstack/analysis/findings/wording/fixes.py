"""The fix for a deadlock, by the shape of its cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack import words
from dstack.analysis.graph.in_process_links import BARRIER
from dstack.analysis.graph.pending.actor_queues import is_queued
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Vertex, WaitKind
from dstack.model import REF_CALLS, actor_of_task
from dstack.vertex_keys import AnyKey, Key

LET_GO = (
    "End an actor that is done (drop its last handle, or ray.kill), remove a placement group, create fewer of them, "
    "let them ask for less (num_cpus=0), or add resources."
)
"""The fix where resources are held until their holder is ended."""

SHOWN_HOLDERS = 3


def way_out(cycle: Sequence[Vertex], members: Sequence[Vertex]) -> str:
    """The fix: where the cycle is best broken."""
    kinds = {vertex.wait.kind for vertex in members if vertex.wait}
    if requests := [
        vertex for vertex in cycle if vertex.wait and vertex.wait.kind == "Serve slot" and vertex.is_counted
    ]:
        return _of_requests(requests)
    queued = [vertex for vertex in cycle if vertex.wait and vertex.kind == "task"]
    callers = [vertex for vertex in cycle if vertex.kind == "execution"]
    is_of_lifetimes = any(vertex.kind == "lifetime" for vertex in members)
    if is_of_lifetimes and any(vertex.wait and vertex.wait.resources for vertex in members):
        return _of_lifetimes(members)
    if kinds & {"channel read", "channel write", "kept value"}:
        return _of_graphs(kinds, cycle, members)
    if kinds & {"resources", "placement group"}:
        return _of_resources({name for vertex in members if vertex.wait for name in vertex.wait.resources}, members)
    if any(vertex.wait and vertex.wait.what == BARRIER for vertex in cycle):
        return (
            "Let all parties reach the barrier before they wait for each other's calls: make the call on the same side "
            "of the barrier in all of them, or give the called actor max_concurrency=2."
        )
    if fix := _of_constructor(cycle):
        return fix
    is_loop_blocked = _is_loop_blocked(cycle)
    if "lock" in kinds:
        return _of_locks(cycle, is_loop_blocked)
    if is_loop_blocked:
        return _of_loop(cycle)
    if callers and queued and all(vertex.coroutine_id for vertex in callers):
        return _of_slots(queued, callers)
    if len(callers) == 1 and queued and _actor_of(queued[0]) == _actor_of(callers[0]):
        return (
            f"Call {queued[0].label} as a plain method (self.{queued[0].label.rpartition('.')[2]}()) instead of "
            "through the actor's own handle, or let the actor run both: raise max_concurrency, or make both async."
        )
    if "order" in kinds or "arguments" in kinds:
        return (
            "Create the argument before submitting the call that needs it, or pass its ObjectRef inside a list: then "
            "the call starts without waiting for the value."
        )
    if queued:
        return _of_queued(queued, callers, kinds)
    if kinds == {"future"} and len(cycle) == 1 and not any(vertex.wait and vertex.wait.inferred for vertex in cycle):
        return (
            f"Make {_first_label(callers)} async def and await the coroutine or its future (asyncio.wrap_future): a "
            "blocking wait stops the event loop that must run it."
        )
    if kinds == {"future"} and len(cycle) == 1:
        return (
            f"Do not wait in {_first_label(callers)} for another task of the same executor: give the executor more "
            "threads (max_workers), or submit that task to another executor."
        )
    if kinds & {"thread.join", "future"}:
        return (
            f"Do not wait in {_first_label(callers)} for a thread that itself waits for it: start the thread, return, "
            "and join it later; in an async method, await asyncio.to_thread(...)."
        )
    if releasing := _queued_beside(cycle, members):
        return let_queued_run(words.shortly(releasing, SHOWN_HOLDERS, " or "))
    if callers and not any(vertex.task_id for vertex in callers):
        labels = words.shortly(sorted({vertex.label for vertex in callers}), SHOWN_HOLDERS)
        return f"Remove one of the waits between {labels}: each needs the result of the other."
    got = "awaiting" if callers and all(vertex.coroutine_id for vertex in callers) else "getting"
    return f"Pass the ObjectRef on in one of these calls instead of {got} it."


def _of_constructor(cycle: Sequence[Vertex]) -> str | None:
    """Where a call waits for its actor to be created, and the actor's constructor is in the same cycle."""
    created = {_actor_of(vertex) for vertex in cycle if vertex.wait and vertex.wait.kind == "actor creation"}
    for vertex, following in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True):
        if vertex.kind == "execution" and _actor_of(vertex) in created - {None}:
            return (
                f"Do not wait in {vertex.label} for {following.label}, which depends on this actor: make that call "
                "after the constructor has ended, or pass its result in as an argument."
            )
    return None


def _of_queued(queued: Sequence[Vertex], callers: Sequence[Vertex], kinds: set[WaitKind]) -> str:
    """How the calls that are queued on actors in the cycle can run; an async actor has no threads for them."""
    labels = words.listed(sorted({vertex.label for vertex in queued}), " or ")
    async_actors = {_actor_of(vertex) for vertex in callers if vertex.coroutine_id}
    is_async = all(_actor_of(vertex) in async_actors for vertex in queued)
    run = ["raise max_concurrency", "give it its own concurrency group", *["make both methods async"] * (not is_async)]
    if "backpressure" in kinds:
        streams = sorted({vertex.label for vertex in callers if vertex.wait and vertex.wait.kind == "backpressure"})
        return (
            f"Read the stream of {words.listed(streams)} to its end before waiting for {labels}; or let {labels} run "
            f"meanwhile: {words.listed(run, ' or ')}."
        )
    return (
        f"Let {labels} run while its actor waits: {words.listed(run, ' or ')}; or return the ObjectRef instead of "
        "getting it."
    )


def _queued_beside(cycle: Sequence[Vertex], members: Sequence[Vertex]) -> list[str]:
    """The calls among the members that are queued on an actor behind a call in the cycle."""
    inside = {vertex.key for vertex in cycle}
    return sorted({one.label for one in members if is_queued(one) and not inside.isdisjoint(targets_of(one))})


def let_queued_run(label: str) -> str:
    """The fix where a call that is queued may be what would end a wait."""
    return (
        f"If {label}, which is queued, would end the wait, let it run: raise max_concurrency of its actor, or give it "
        "a concurrency group."
    )


def _of_graphs(kinds: set[WaitKind], cycle: Sequence[Vertex], members: Sequence[Vertex]) -> str:
    """Compiled graphs: values that are kept, an actor in two graphs, a stage that waits for its own graph."""
    if "kept value" in kinds:
        held = {
            key for vertex in cycle if vertex.wait and vertex.wait.kind == "kept value" for key in targets_of(vertex)
        }
        keeping = sorted({vertex.label for vertex in cycle if vertex.key in held and vertex.kind == "execution"})
        where = f" in {words.listed(keeping)}" if keeping else ""
        return (
            f"Copy the arrays that you keep{where} from a compiled graph (array.copy(), copy.deepcopy), or drop them "
            "before the next execute: they take up room in its channels."
        )
    if any(vertex.is_graph_loop for vertex in members):
        return (
            "Give each compiled graph its own actors, or call teardown() of the first graph before compiling the "
            "second: an actor runs the loop of one graph at a time."
        )
    if queued := sorted({vertex.label for vertex in cycle if is_queued(vertex)}):
        return (
            f"Let {words.listed(queued, ' or ')} run while its actor waits for the compiled graph (max_concurrency=2 "
            "or a concurrency group), or pass the value into the graph as an input."
        )
    return (
        "Do not wait in a stage of a compiled graph for a value that the same graph produces later: pass it in as an "
        "input, and fetch results (ray.get) before the channels are full."
    )


def _is_loop_blocked(cycle: Sequence[Vertex]) -> bool:
    """Whether a member of the cycle waits for an event loop that another one blocks."""
    keys = {vertex.key for vertex in cycle}
    return any(vertex.wait and (vertex.wait.kind == "event loop" or vertex.wait.loop in keys) for vertex in cycle)


def _of_loop(cycle: Sequence[Vertex]) -> str:
    """The fix for a blocking call on an event loop, by the method that makes it."""
    loops = {key for vertex in cycle for key in _loops_of(vertex)}
    label = _first_label([vertex for vertex in cycle if vertex.key in loops])
    kinds = {vertex.wait.kind for vertex in cycle if vertex.wait}
    if kinds & set(REF_CALLS):
        return f"In {label}, await the ObjectRef (await ref) instead of ray.get: ray.get blocks the whole event loop."
    return (
        f"Make {label} async def and await there (asyncio.Event, asyncio.wrap_future or asyncio.to_thread): a blocking "
        "wait stops the event loop that would end it."
    )


def _of_locks(cycle: Sequence[Vertex], is_loop_blocked: bool) -> str:
    waiting = [vertex for vertex in cycle if vertex.wait and vertex.wait.kind == "lock"]
    held = {key for vertex in waiting for key in targets_of(vertex)}
    holders = words.shortly(sorted({vertex.label for vertex in cycle if vertex.key in held}), SHOWN_HOLDERS)
    wanting = words.shortly(sorted({vertex.label for vertex in waiting}), SHOWN_HOLDERS)
    if is_loop_blocked:
        return (
            f"Release the lock in {holders} before awaiting, or use an asyncio.Lock: waiting for a threading.Lock in "
            "an async method blocks the event loop that must run the lock's holder."
        )
    if len(waiting) == len(cycle):
        return f"Take the locks in the same order in {holders}."
    return (
        f"Do not hold a lock in {holders} while waiting for a value or a call: {wanting} needs that lock. Get the "
        "value first, then take the lock."
    )


def _loops_of(vertex: Vertex) -> Iterator[Key]:
    """The threads that block the event loop which a vertex needs."""
    if vertex.wait is not None and vertex.wait.loop is not None:
        yield vertex.wait.loop
    elif vertex.wait is not None and vertex.wait.kind == "event loop":
        yield from targets_of(vertex)


def _first_label(callers: Sequence[Vertex]) -> str:
    return callers[0].label if callers else "the method"


def _of_slots(queued: Sequence[Vertex], callers: Sequence[Vertex]) -> str:
    labels = words.listed(sorted({vertex.label for vertex in queued}), " or ")
    gets = any(vertex.wait and vertex.wait.kind == "await" and not vertex.wait.assumed for vertex in callers)
    rest = "; or return the ObjectRef instead of awaiting it" if gets else ""
    return (
        f"Let {labels} start while its actor awaits: raise max_concurrency or give it its own concurrency group{rest}."
    )


def _of_requests(queued: Sequence[Vertex]) -> str:
    """What lets a queued request of Serve start, or its caller proceed without it."""
    labels = words.listed(sorted({vertex.label for vertex in queued}), " or ")
    if not all(vertex.wait and vertex.wait.what for vertex in queued):
        return (
            f"Do not wait for {labels} in a constructor that the called deployment needs to start: make the call in "
            "the first request, or in a task that the constructor does not await."
        )
    limits = words.listed(sorted({vertex.wait.what for vertex in queued if vertex.wait and vertex.wait.what}), " or ")
    return (
        f"Raise {limits}, so that {labels} can start; or make that call without waiting for its response; or move the "
        "called method to a deployment that calls none of these."
    )


def _of_resources(resources: set[str], members: Sequence[Vertex]) -> str:
    wanting = sorted(
        {vertex.label for vertex in members if vertex.wait and vertex.wait.resources and vertex.is_counted}
    )
    if resources <= {"CPU"}:
        holders = sorted({vertex.label for vertex in members if vertex.kind == "execution" and vertex.task_id})
        what = words.shortly(wanting, SHOWN_HOLDERS) or "the pending tasks"
        return (
            f"Let {words.shortly(holders, SHOWN_HOLDERS) or 'the waiting tasks'} ask for less (num_cpus=0 for a task "
            f"that only waits), return ObjectRefs instead of waiting, or add CPUs: {what} "
            f"{words.word(len(wanting), 'needs', 'need')} the CPUs that are held there."
        )
    what = words.shortly(wanting, SHOWN_HOLDERS, " or ") or "a task"
    return (
        f"Do not hold {words.listed(sorted(resources))} while waiting for {what}, which needs it too: start that "
        "first, let it ask for less, return its ObjectRef instead of getting it, or add resources."
    )


def _of_lifetimes(members: Sequence[Vertex]) -> str:
    """What is held until an actor ends or a placement group is removed, and what needs it."""
    requests = (vertex for vertex in members if vertex.wait and vertex.wait.resources)
    wanting = sorted({vertex.label for vertex in requests if vertex.task_id or vertex.placement_group_id})
    needed = sorted({name for vertex in members if vertex.wait for name in vertex.wait.resources})
    lifetimes = [vertex for vertex in members if vertex.kind == "lifetime" and vertex.holder]
    holders = sorted({vertex.holder for vertex in lifetimes if vertex.holder})
    if not wanting or not holders:
        return LET_GO
    hold = words.word(len(holders), "holds", "hold")
    return (
        f"Leave {words.listed(needed)} for {words.shortly(wanting, SHOWN_HOLDERS, ' or ')}: "
        f"{words.shortly(holders, SHOWN_HOLDERS)} {hold} it {until(lifetimes)}. Start fewer of them, let them ask for "
        "less, reserve a bundle, or add resources."
    )


def until(lifetimes: Sequence[Vertex]) -> str:
    """``until it ends``, or of placement groups ``until they are removed``."""
    is_one = len(lifetimes) == 1
    if all(isinstance(vertex.key, AnyKey) and vertex.key.what == "removal" for vertex in lifetimes):
        return "until it is removed" if is_one else "until they are removed"
    return "until it ends" if is_one else "until they end"


def _actor_of(vertex: Vertex) -> str | None:
    return actor_of_task(vertex.task_id) if vertex.task_id else None

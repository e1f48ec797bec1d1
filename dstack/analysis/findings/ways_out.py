"""Ways out of a deadlock, by the shape of its circle."""

from __future__ import annotations

from collections.abc import Sequence

from dstack import words
from dstack.analysis.channels import KEPT, LOOP, READ, WRITE
from dstack.analysis.links import BARRIER
from dstack.analysis.serve_requests import SLOT
from dstack.diagnosis import Vertex
from dstack.model import REF_CALLS, actor_of_task

LET_GO = (
    "End an actor that is done (drop its last handle, or ray.kill) or remove a placement group, let those that hold "
    "something for life ask for less (num_cpus=0), create fewer of them"
)
"""What helps against what is held until somebody ends it."""

SHOWN_HOLDERS = 3


def way_out(cycle: Sequence[Vertex], members: Sequence[Vertex]) -> str:
    """One piece of advice: where the circle is best broken."""
    kinds = {vertex.wait.kind for vertex in members if vertex.wait}
    if requests := [vertex for vertex in cycle if vertex.wait and vertex.wait.kind == SLOT and vertex.is_counted]:
        return _of_requests(requests)
    queued = [vertex for vertex in cycle if vertex.wait and vertex.kind == "task"]
    callers = [vertex for vertex in cycle if vertex.kind == "execution"]
    is_of_lifetimes = any(vertex.kind == "lifetime" for vertex in members)
    if is_of_lifetimes and any(vertex.wait and vertex.wait.resources for vertex in members):
        return _of_lifetimes(members)
    if kinds & {READ, WRITE, KEPT}:
        return _of_graphs(kinds, cycle)
    if kinds & {"resources", "placement group"}:
        return _of_resources({name for vertex in members if vertex.wait for name in vertex.wait.resources})
    if any(vertex.wait and vertex.wait.kind == BARRIER for vertex in cycle):
        return (
            "Let all parties come to the barrier before they wait for each other's calls: make the call before it or "
            "after it on all of them, or let the called actor answer meanwhile (max_concurrency=2)."
        )
    is_loop_blocked = _is_loop_blocked(cycle)
    if "lock" in kinds:
        return _of_locks(members, is_loop_blocked)
    if is_loop_blocked:
        return _of_loop({vertex.wait.kind for vertex in cycle if vertex.wait})
    if callers and queued and all(vertex.coroutine_id for vertex in callers):
        return _of_slots(queued)
    if len(callers) == 1 and queued and _actor_of(queued[0]) == _actor_of(callers[0]):
        return (
            f"Call {queued[0].label} directly (self.method()) instead of through the actor's own handle, "
            "or make the actor able to run both: max_concurrency=2 or async methods."
        )
    if "order" in kinds or "arguments" in kinds:
        return (
            "Break the circle at one place: make what is passed as an argument before the call that needs it is sent, "
            "or pass it in a list, which the call receives as an ObjectRef, at once."
        )
    if queued:
        labels = words.listed(sorted({vertex.label for vertex in queued}), " or ")
        return (
            f"Break the circle at one place: let {labels} run while its actor waits (async method, "
            "max_concurrency=2 or a concurrency group for it), or return the ObjectRef instead of getting it."
        )
    if kinds == {"future"} and len(cycle) == 1 and not any(vertex.wait and vertex.wait.inferred for vertex in cycle):
        return (
            "Make the method async def and await the coroutine there, or its future (asyncio.wrap_future): waiting for "
            "it blocks the thread of its loop."
        )
    if kinds & {"thread.join", "future"}:
        return (
            "Do not wait for the thread in what the thread itself waits for: start it, return, and join it later; in "
            "an async method, await asyncio.to_thread(...)."
        )
    got = "awaiting" if callers and all(vertex.coroutine_id for vertex in callers) else "getting"
    return f"Break the circle at one place: pass the ObjectRef on instead of {got} it inside."


def _of_graphs(kinds: set[str], cycle: Sequence[Vertex]) -> str:
    """Compiled graphs: values that are kept, an actor in two graphs, a stage that waits for what its graph holds up."""
    if KEPT in kinds:
        return (
            "Copy what is kept of a compiled graph's values (array.copy(), copy.deepcopy), or drop it before more is "
            "executed: arrays are not copied out of the graph, and take up room in its channels until they are dropped."
        )
    if any(vertex.kind == "task" and vertex.label.endswith(LOOP) for vertex in cycle):
        return (
            "Give each compiled graph actors of its own, or call teardown() of the first before compiling the second: "
            "an actor runs the loop of one graph at a time."
        )
    if queued := sorted({v.label for v in cycle if v.kind == "task" and v.wait and v.wait.kind == "actor slot"}):
        return (
            f"Let {words.listed(queued, ' or ')} run while its actor waits for the compiled graph (max_concurrency=2 "
            "or a concurrency group for it), or pass what the stage asks for into the graph as an input."
        )
    return (
        "Do not wait in a stage of a compiled graph for what can only come when the graph goes on: pass it in as an "
        "input, and take results (ray.get) before more is executed than the channels hold."
    )


def _is_loop_blocked(cycle: Sequence[Vertex]) -> bool:
    """Whether somebody in the circle waits for an event loop that somebody else in it keeps to itself."""
    keys = {vertex.key for vertex in cycle}
    return any(vertex.wait and (vertex.wait.kind == "event loop" or vertex.wait.loop in keys) for vertex in cycle)


def _of_loop(kinds: set[str]) -> str:
    if kinds & set(REF_CALLS):
        return "Await the ObjectRef (await ref) instead of ray.get in an async method: ray.get holds up the whole loop."
    return (
        "Make the method async def and await there (asyncio.Event, asyncio.wrap_future or asyncio.to_thread): a wait "
        "of threads blocks the event loop, and so what would end it."
    )


def _of_locks(members: Sequence[Vertex], is_loop_blocked: bool) -> str:
    waits = [vertex.wait for vertex in members if vertex.wait and vertex.wait.kind == "lock"]
    if any((wait.what or "").startswith("asyncio.") for wait in waits):
        return (
            "Take the locks in the same order everywhere, and hold none while awaiting a value or a call: "
            "release it first, then await."
        )
    if is_loop_blocked:
        return (
            "Release the lock before awaiting, or use an asyncio.Lock: who waits for a lock of threads in an async "
            "method holds up the whole loop, and so whoever would release it."
        )
    return (
        "Take the locks in the same order everywhere, and hold none while waiting for a value or a call: "
        "get it first, then take the lock."
    )


def _of_slots(queued: Sequence[Vertex]) -> str:
    labels = words.listed(sorted({vertex.label for vertex in queued}), " or ")
    return (
        f"Break the circle at one place: let {labels} begin while its actor awaits, by more slots (a higher "
        "max_concurrency) or in another concurrency group, or return the ObjectRef instead of awaiting it."
    )


def _of_requests(queued: Sequence[Vertex]) -> str:
    """What lets a queued request of Serve begin, or its caller proceed without it."""
    labels = words.listed(sorted({vertex.label for vertex in queued}), " or ")
    if not all(vertex.wait and vertex.wait.what for vertex in queued):
        return (
            f"Wait for {labels} in no constructor that the called deployment needs to start: make that call in the "
            "first request instead, or in a task that the constructor does not await."
        )
    limits = words.listed(sorted({vertex.wait.what for vertex in queued if vertex.wait and vertex.wait.what}), " or ")
    return (
        f"Break the circle at one place: raise {limits}, so that {labels} can begin; make that call without waiting "
        "for its response; or move the called method to a deployment that calls none of these."
    )


def _of_resources(resources: set[str]) -> str:
    if resources <= {"CPU"}:
        return (
            "Let the waiting tasks ask for less (num_cpus=0 for those that only wait), end them before they wait, "
            "or add resources: what they hold is what the others need."
        )
    return (
        f"Do not hold {words.listed(sorted(resources))} while waiting for who needs the same: start that one first, "
        "let it ask for less, return its ObjectRef instead of getting it, or add resources."
    )


def _of_lifetimes(members: Sequence[Vertex]) -> str:
    """What is held until an actor ends or a placement group is removed, and what needs it."""
    requests = (vertex for vertex in members if vertex.wait and vertex.wait.resources)
    wanting = sorted({vertex.label for vertex in requests if vertex.task_id or vertex.placement_group_id})
    needed = sorted({name for vertex in members if vertex.wait for name in vertex.wait.resources})
    holders = sorted({vertex.holder for vertex in members if vertex.kind == "lifetime" and vertex.holder})
    if not wanting or not holders:
        return f"{LET_GO}, or add resources."
    shown = [*holders[:SHOWN_HOLDERS], *([f"{len(holders) - SHOWN_HOLDERS} more"] * (len(holders) > SHOWN_HOLDERS))]
    return (
        f"Leave {words.listed(needed)} for {words.listed(wanting, ' or ')}: {words.listed(shown)} keep"
        f"{'s' * (len(holders) == 1)} it until {'it ends' if len(holders) == 1 else 'they end'}. Start fewer of them, "
        "give them less (num_cpus=0, a smaller placement group), reserve a bundle for it, or add resources."
    )


def _actor_of(vertex: Vertex) -> str | None:
    return actor_of_task(vertex.task_id) if vertex.task_id else None

"""The fix for a deadlock: an ordered list of rules, of which the first that fits is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from dstack import words
from dstack.analysis.findings.finding_facts import DeadlockedWaits
from dstack.analysis.findings.resource_changes import STORE, settings_of
from dstack.analysis.graph.pending_tasks import is_queued
from dstack.analysis.naming.descriptions import any_of, describe, labels_of, limit_in_words, operand_in_words
from dstack.analysis.solve.requirements import targets_of
from dstack.call_sites import BARRIER
from dstack.model.diagnosis import Cure, CureKind, Vertex
from dstack.model.snapshot import actor_of_task
from dstack.model.vertex_keys import AnyKey, Key
from dstack.observed.calls import REF_CALLS, End

Rule = Callable[[DeadlockedWaits], "str | None"]
WITH_AMOUNTS: tuple[CureKind, ...] = ("slots", "request limit", "less resources", "more resources")
"""The cures that say how much is enough, which the rules do not."""


def fix_for(waits: DeadlockedWaits, cures: Sequence[Cure] = ()) -> str:
    """Where a deadlock is best broken, and the smallest change that is enough."""
    fix = next(fix for rule in RULES if (fix := rule(waits)))
    return " ".join((fix, *_smallest(cures)))


def _smallest(cures: Sequence[Cure]) -> Iterator[str]:
    """The first cure if it has an amount; that one more slot or request may only move the deadlock."""
    if cures and cures[0].frees_all and WITH_AMOUNTS.count(cures[0].kinds[0]):
        yield f"Smallest change: {cures[0].text}, which {'' if cures[0].is_certain else 'probably '}frees all."
    moving = (cure for cure in cures if cure.same_way and not cure.freed)
    if cure := next(moving, None):
        yield f"One more is not enough if another {cure.same_way[0]} waits in the same way."


def _serve_slots(waits: DeadlockedWaits) -> str | None:
    """Raise the limit that is reached, or do not wait for the response; None without queued requests."""
    queued = [vertex for vertex in waits.in_cycle("Serve slot") if vertex.is_counted]
    if not queued:
        return None
    labels = any_of(queued)
    if not all(vertex.wait and vertex.wait.limit for vertex in queued):
        return (
            f"Do not wait for {labels} in a constructor that the called deployment needs to start: make the call in "
            "the first request, or in a task that the constructor does not await."
        )
    limits = words.listed(
        sorted({limit_in_words(vertex.wait.limit) for vertex in queued if vertex.wait and vertex.wait.limit}), " or "
    )
    return (
        f"Raise {limits}, so that {labels} can start; or make that call without waiting for its response; or move the "
        "called method to a deployment that calls none of these."
    )


# Resources that are held


def _held_until_released(waits: DeadlockedWaits) -> str | None:
    """Leave room beside resources that are held until an actor ends or a placement group is removed."""
    lifetimes = [vertex for vertex in waits.members if vertex.kind == "lifetime"]
    if not lifetimes or not waits.draft.resources:
        return None
    requests = (vertex for vertex in waits.members if vertex.wait and vertex.wait.resources)
    requested = sorted({describe(vertex) for vertex in requests if vertex.task_id or vertex.placement_group_id})
    holders = {operand_in_words(vertex.holder): vertex.holder for vertex in lifetimes if vertex.holder}
    what = words.listed(waits.draft.resources)
    if not requested or not holders:
        ways = ("start fewer actors and placement groups", "let them ask for less", *_more(waits, what))
        return f"{words.capitalised(words.listed(ways, ' or '))}."
    hold, until = words.word(len(holders), "holds", "hold"), until_released([one for one in lifetimes if one.holder])
    settings = settings_of(waits.draft.reduced.index, holders.values())
    it = words.word(len(holders), "it", "them")
    less = f"let {it} ask for less{f' ({settings})' if settings else ''}"
    ways = (f"start fewer of {it}" if len(holders) > 1 else "", less, *_more(waits, what))
    return (
        f"Leave {what} for {words.shortly(requested, ' or ')}: {words.shortly(sorted(holders))} {hold} it {until}. "
        f"{words.capitalised(words.listed(list(filter(None, ways)), ' or '))}."
    )


def until_released(lifetimes: Sequence[Vertex]) -> str:
    """``until it ends``, or of placement groups ``until they are removed``."""
    is_one = len(lifetimes) == 1
    if all(isinstance(vertex.key, AnyKey) and vertex.key.what == "removal" for vertex in lifetimes):
        return "until it is removed" if is_one else "until they are removed"
    return "until it ends" if is_one else "until they end"


def _held_while_waiting(waits: DeadlockedWaits) -> str | None:
    """Release resources while waiting for a task that needs them."""
    if not waits.kinds & {"resources", "placement group"}:
        return None
    requested = labels_of(one for one in waits.members if one.wait and one.wait.resources and one.is_counted)
    if set(waits.draft.resources) <= {"CPU"}:
        found = labels_of(vertex for vertex in waits.members if vertex.kind == "execution" and vertex.task_id)
        holders = words.shortly(found) or "the waiting tasks"
        less = f"let {holders} ask for less (num_cpus=0 for a task that only waits)"
        ways = words.listed((less, "return ObjectRefs instead of waiting", *_more(waits, "CPUs")), " or ")
        what, need = words.shortly(requested) or "the pending tasks", words.word(len(requested), "needs", "need")
        return f"{words.capitalised(ways)}: {what} {need} the CPUs that are held there."
    what = words.shortly(requested, " or ") or "a task"
    if waits.draft.resources == STORE:
        return (
            f"Arguments in the object store are held until their task ends. Pass less data as arguments, start {what} "
            "first, return its ObjectRef instead of getting it, or give the nodes a larger object store."
        )
    scarce = words.listed(waits.draft.resources)
    changes = ("start that first", "let it ask for less", "return its ObjectRef instead of getting it")
    return (
        f"Do not hold {scarce} while waiting for {what}, which needs it too: "
        f"{words.listed([*changes, *_more(waits, scarce)], ' or ')}."
    )


def _more(waits: DeadlockedWaits, what: str) -> Sequence[str]:
    """More of a resource, where that helps.

    A task in a placement group can only use the bundles of its group. Where a node has enough free already, as for a
    task with affinity to another one, more of it does not help.
    """
    index = waits.draft.reduced.index
    requests = [vertex for vertex in waits.members if vertex.wait and vertex.wait.resources]
    tasks = [index.tasks[vertex.task_id] for vertex in requests if vertex.task_id in index.tasks]
    if any(task.placement_group_id for task in tasks):
        return (f"reserve another bundle with {what}",)
    free = list(index.sample.available.values())
    if any(_fits(task.required_resources, node) for task in tasks for node in free):
        return ()
    return (f"add {what}",)


def _fits(request: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return bool(request) and all(free.get(name, 0.0) >= amount for name, amount in request.items())


# Compiled graphs


def _kept_arrays(waits: DeadlockedWaits) -> str | None:
    """Copy arrays from a compiled graph, which occupy its channels while they are kept."""
    if "kept value" not in waits.kinds:
        return None
    held = {key for vertex in waits.in_cycle("kept value") for key in targets_of(vertex)}
    keeping = labels_of(vertex for vertex in waits.callers if vertex.key in held)
    where = f" in {words.listed(keeping)}" if keeping else ""
    return (
        f"Copy the arrays that you keep{where} from a compiled graph (array.copy(), copy.deepcopy), or drop them "
        "before the next execute: they take up room in its channels."
    )


def _full_channels(waits: DeadlockedWaits) -> str | None:
    """An actor in two compiled graphs, a call behind a stage, or a stage that waits for its own graph."""
    if not waits.kinds & {"channel read", "channel write"}:
        return None
    if any(vertex.is_graph_loop for vertex in waits.members):
        return (
            "Give each compiled graph its own actors, or call teardown() of the first graph before compiling the "
            "second: an actor runs the loop of one graph at a time."
        )
    if queued := [vertex for vertex in waits.cycle if is_queued(vertex)]:
        return (
            f"Let {any_of(queued)} run while its actor waits for the compiled graph (max_concurrency=2 "
            "or a concurrency group), or pass the value into the graph as an input."
        )
    return (
        "Do not wait in a stage of a compiled graph for a value that the same graph produces later: pass it in as an "
        "input, and fetch results (ray.get) before the channels are full."
    )


# Calls, locks and loops


def _barrier(waits: DeadlockedWaits) -> str | None:
    if not any(vertex.wait and vertex.wait.site is BARRIER for vertex in waits.cycle):
        return None
    return (
        "Let all parties reach the barrier before they wait for each other's calls: make the call on the same side "
        "of the barrier in all of them, or give the called actor max_concurrency=2."
    )


def _constructor(waits: DeadlockedWaits) -> str | None:
    cycle = waits.cycle
    created = {_actor_of(vertex) for vertex in waits.in_cycle("actor creation")}
    for vertex, following in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True):
        if vertex.kind == "execution" and _actor_of(vertex) in created - {None}:
            return (
                f"Do not wait in {describe(vertex)} for {describe(following)}, which depends on this actor: make that "
                "call after the constructor has ended, or pass its result in as an argument."
            )
    return None


def _locks(waits: DeadlockedWaits) -> str | None:
    if "lock" not in waits.kinds:
        return None
    acquiring = waits.in_cycle("lock")
    held = {key for vertex in acquiring for key in targets_of(vertex)}
    holders = words.shortly(labels_of(vertex for vertex in waits.cycle if vertex.key in held))
    if waits.is_loop_blocked:
        return (
            f"Release the lock in {holders} before awaiting, or use an asyncio.Lock: waiting for a threading.Lock in "
            "an async method blocks the event loop that must run the lock's holder."
        )
    if len(acquiring) == len(waits.cycle):
        return f"Take the locks in the same order in {holders}."
    names = words.shortly(labels_of(acquiring))
    return (
        f"Do not hold a lock in {holders} while waiting for a value or a call: {names} needs that lock. Get the "
        "value first, then take the lock."
    )


def _in_kernel(waits: DeadlockedWaits) -> str | None:
    """What to do about pipes, sockets and file locks, and about children that are waited for."""
    members = [vertex for vertex in waits.cycle if _ends_of(vertex)]
    waiters = words.shortly(labels_of(members))
    if not members:
        return None
    if any(end.what == "file lock" for vertex in members for end in _ends_of(vertex)):
        return f"Do not wait for another process while holding a file lock that {waiters} needs."
    if writers := [one for one in members if any(end.is_write for end in _ends_of(one))]:
        return (
            f"Read what {words.shortly(labels_of(writers))} writes before waiting for anything else, as "
            "Popen.communicate does, or let it write to a file: a pipe that is full stops its writer."
        )
    return f"Give the wait in {waiters} a timeout, or let one side send first."


def _ends_of(vertex: Vertex) -> Sequence[End]:
    return vertex.wait.ends if vertex.wait else ()


def _event_loop(waits: DeadlockedWaits) -> str | None:
    if not waits.is_loop_blocked:
        return None
    loops = {key for vertex in waits.cycle for key in _loops_of(vertex)}
    label = _first_of([vertex for vertex in waits.cycle if vertex.key in loops])
    if any(vertex.wait and vertex.wait.kind in REF_CALLS for vertex in waits.cycle):
        return f"In {label}, await the ObjectRef (await ref) instead of ray.get: ray.get blocks the whole event loop."
    return (
        f"Make {label} async def and await there (asyncio.Event, asyncio.wrap_future or asyncio.to_thread): a blocking "
        "wait stops the event loop that would end it."
    )


def _loops_of(vertex: Vertex) -> Iterator[Key]:
    """The threads that block the event loop which a vertex needs."""
    if vertex.wait is not None and vertex.wait.loop is not None:
        yield vertex.wait.loop
    elif vertex.wait is not None and vertex.wait.kind == "event loop":
        yield from targets_of(vertex)


def _async_slots(waits: DeadlockedWaits) -> str | None:
    if not waits.callers or not waits.pending or not all(vertex.coroutine_id for vertex in waits.callers):
        return None
    has_await = any(one.wait and one.wait.kind == "await" and not one.wait.assumed for one in waits.callers)
    or_return = "; or return the ObjectRef instead of awaiting it" if has_await else ""
    return (
        f"Let {any_of(waits.pending)} start while its actor awaits: raise max_concurrency or give it its own "
        f"concurrency group{or_return}."
    )


def _own_actor(waits: DeadlockedWaits) -> str | None:
    task_id = (waits.pending[0].task_id if waits.pending else None) or ""
    call = waits.draft.reduced.index.request_of_task.get(task_id) or waits.draft.reduced.index.tasks.get(task_id)
    if len(waits.callers) != 1 or call is None or _actor_of(waits.pending[0]) != _actor_of(waits.callers[0]):
        return None
    return (
        f"Call {describe(waits.pending[0])} as a plain method (self.{call.method}()) instead of "
        "through the actor's own handle, or let the actor run both: raise max_concurrency, or make both async."
    )


def _arguments(waits: DeadlockedWaits) -> str | None:
    if not waits.kinds & {"order", "arguments"}:
        return None
    return (
        "Create the argument before submitting the call that needs it, or pass its ObjectRef inside a list: then "
        "the call starts without waiting for the value."
    )


def _queued_calls(waits: DeadlockedWaits) -> str | None:
    """Let the queued calls of the cycle run; an async actor has no threads for them."""
    if not waits.pending:
        return None
    labels = any_of(waits.pending)
    async_actors = {_actor_of(vertex) for vertex in waits.callers if vertex.coroutine_id}
    is_async = all(_actor_of(vertex) in async_actors for vertex in waits.pending)
    ways = ["raise max_concurrency", "give it its own concurrency group"]
    ways += ["make both methods async"] if waits.is_in_python and not is_async else []
    if "backpressure" in waits.kinds:
        streams = labels_of(one for one in waits.callers if one.wait and one.wait.kind == "backpressure")
        return (
            f"Read the stream of {words.listed(streams)} to its end before waiting for {labels}; or let {labels} run "
            f"meanwhile: {words.listed(ways, ' or ')}."
        )
    return (
        f"Let {labels} run while its actor waits: {words.listed(ways, ' or ')}; or return the ObjectRef instead of "
        "getting it."
    )


def _own_future(waits: DeadlockedWaits) -> str | None:
    if waits.kinds != {"future"} or len(waits.cycle) != 1:
        return None
    if not any(vertex.wait and vertex.wait.inferred for vertex in waits.cycle):
        return (
            f"Make {_first_of(waits.callers)} async def and await the coroutine or its future (asyncio.wrap_future): "
            "a blocking wait stops the event loop that must run it."
        )
    return (
        f"Do not wait in {_first_of(waits.callers)} for another task of the same executor: give the executor more "
        "threads (max_workers), or submit that task to another executor."
    )


def _threads(waits: DeadlockedWaits) -> str | None:
    if not waits.kinds & {"thread.join", "future"}:
        return None
    return (
        f"Do not wait in {_first_of(waits.callers)} for a thread that itself waits for it: start the thread, return, "
        "and join it later; in an async method, await asyncio.to_thread(...)."
    )


def _queued_behind(waits: DeadlockedWaits) -> str | None:
    inside = {vertex.key for vertex in waits.cycle}
    queued = (one for one in waits.members if is_queued(one) and not inside.isdisjoint(targets_of(one)))
    labels = words.shortly(labels_of(queued), " or ")
    return let_queued_run(labels) if labels else None


def let_queued_run(label: str) -> str:
    """The fix where a queued call may be what would end a wait."""
    return (
        f"If {label}, which is queued, would end the wait, let it run: raise max_concurrency of its actor, or give it "
        "a concurrency group."
    )


def _without_tasks(waits: DeadlockedWaits) -> str | None:
    if not waits.callers or any(vertex.task_id for vertex in waits.callers):
        return None
    labels = words.shortly(labels_of(waits.callers))
    return f"Remove one of the waits between {labels}: each needs the result of the other."


def _pass_ref(waits: DeadlockedWaits) -> str:
    is_async = bool(waits.callers) and all(vertex.coroutine_id for vertex in waits.callers)
    return f"Pass the ObjectRef on in one of these calls instead of {'awaiting' if is_async else 'getting'} it."


RULES: tuple[Rule, ...] = (
    _serve_slots,
    _held_until_released,
    _kept_arrays,
    _full_channels,
    _held_while_waiting,
    _barrier,
    _constructor,
    _locks,
    _in_kernel,
    _event_loop,
    _async_slots,
    _own_actor,
    _arguments,
    _queued_calls,
    _own_future,
    _threads,
    _queued_behind,
    _without_tasks,
    _pass_ref,
)
"""From the most specific rule to the one that fits every deadlock."""


def _actor_of(vertex: Vertex) -> str | None:
    return actor_of_task(vertex.task_id) if vertex.task_id else None


def _first_of(vertices: Sequence[Vertex]) -> str:
    """The name of the first of these, if there is one."""
    return describe(vertices[0]) if vertices else "the method"

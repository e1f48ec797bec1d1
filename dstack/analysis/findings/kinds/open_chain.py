"""What all findings about open chains share: their final blockers, and the sentences about these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings import collectives, meetings
from dstack.analysis.findings.actor_starts import start_steps
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.finding_facts import FindingFacts, node_lost_by
from dstack.analysis.findings.narration import Narrator, group_by_step, more
from dstack.analysis.findings.node_room import scattered
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.shared_calls import shared_call_steps
from dstack.analysis.index.ray_libraries import library_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.naming.ends import full_pipe_in_words, halt_in_words
from dstack.analysis.naming.library_states import library_state_in_words
from dstack.analysis.naming.sentences import activity, cancellation, queue_in_words, step_at, subject
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.app_threads import call_in_words
from dstack.model.diagnosis import FinalBlocker, FindingKind, Step, Vertex
from dstack.model.snapshot import Actor, Node
from dstack.model.vertex_keys import AnyKey, DriverKey, Key, UnknownKey
from dstack.observed.node import Task
from dstack.words import grouped

SORTS = {
    "driver": "drivers",
    "task": "tasks",
    "thread": "threads",
    "asyncio task": "asyncio tasks",
    "child process": "child processes",
    "placement group": "placement groups",
}
"""What can wait, with its plural, in the order of a summary."""
DIED = ("WORKER_DIED", "ACTOR_DIED", "OWNER_DIED")
"""Ray's types of errors of which a dead process is the cause, Ray 2.46 to 2.60."""
SHOWN_STATES = 6
"""Sentences about what libraries have decided."""
MAX_TARGETS = 20
"""Followed targets of each lifetime."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A member of a finding, and the call that it waits in."""

    vertex: Vertex
    call: str


def draft_of(reduced: ReducedGraph, kind: FindingKind, chain: OpenChain) -> Draft:
    """The finding about an open chain: known final blockers first, then helpers, then unknown wakers.

    Machinery of libraries is behind the wakers of the user's code.
    """
    own = filter(reduced.is_in_users_code, chain.waiters)
    of_users = {target for key in own for target in targets_of(reduced.vertices[key])}

    def place(blocker: FinalBlocker) -> tuple[bool, bool, bool]:
        vertex = reduced.vertices[blocker.vertex]
        is_apart = reduced.is_machinery(vertex.key) or (bool(vertex.waker_of) and vertex.key not in of_users)
        return is_apart, bool(vertex.waker_of), vertex.kind == "lifetime" and reduced.is_helper(vertex.key)

    blockers = sorted(chain.blockers, key=lambda blocker: bool(reduced.vertices[blocker.vertex].waker_of))
    blockers = sorted([*blockers, *_blockers_behind_lifetimes(reduced, blockers)], key=place)
    waits = tuple(chain.waiters)
    resources = reduced.resources(waits)
    return Draft(reduced, kind, waits, is_open=True, final_blockers=tuple(blockers), resources=resources)


def _blockers_behind_lifetimes(reduced: ReducedGraph, blockers: list[FinalBlocker]) -> list[FinalBlocker]:
    """The running executions that can end a lifetime; all waiters for the lifetime depend on them."""
    found: dict[Key, FinalBlocker] = {blocker.vertex: blocker for blocker in blockers}
    for blocker in blockers[: words.SHOWN]:
        for key in _behind_lifetime(reduced, blocker.vertex):
            found.setdefault(key, replace(blocker, vertex=key))
    return [one for one in found.values() if one not in blockers]


def _behind_lifetime(reduced: ReducedGraph, key: Key) -> Iterator[Key]:
    """The first executions behind a lifetime, and behind the lifetimes that it needs, that do not wait."""
    pending, visited = [key], {key}
    while pending:
        vertex = reduced.vertices[pending.pop()]
        if vertex.kind == "lifetime":
            targets = set(targets_of(vertex)) - visited
            visited |= targets
            pending += sorted(targets, key=str)[:MAX_TARGETS]
        elif vertex.kind == "execution" and vertex.wait is None:
            yield vertex.key


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """What the driver waits for, else how many wait; and on which final blocker all depend, at which line."""
    if not facts.ends:
        return _without_ends(facts, narrator)
    first, waiter = facts.ends[0], _lone_waiter(facts)
    if not facts.own_members:
        library = library_of(narrator.index, facts.members[0]) or "a library"
        return f"{_blocker_in_words(facts, narrator, first)}; {library} waits for it"
    last = waiter_of(facts, first)
    if last and facts.reduced.is_machinery(first.key):
        through = f" through {library}" if (library := library_of(narrator.index, first)) else ""
        return f"{narrator.name(last.vertex)} waits in {last.call}{narrator.line(last.vertex)}{through}"
    if last and last.vertex is waiter and (pipe := full_pipe_in_words(narrator.index, waiter)):
        return f"{describe(waiter)} waits in {last.call}{narrator.line(waiter)}{pipe}"
    scarce = _scarce(facts, first)
    if waiter and not scarce and _are_ends(facts, waiter):
        return f"{describe(waiter)} waits for {_awaited(facts, narrator, waiter)}{_in_queue(facts, first)}"
    waits = f"{_waiters(facts)} {words.word(len(facts.own_members), 'waits', 'wait')}"
    if waiter:
        waits = f"{describe(waiter)} waits{_for_targets(narrator, waiter)}"
    if last and first.waker_of and facts.draft.final_blockers[0].waiters_direct > 1:
        return f"{waits}; the chains end in {last.call}, as in {narrator.name(last.vertex)}{narrator.line(last.vertex)}"
    if come := meetings.come(facts, narrator):
        return f"{waits}{scarce}; {come}"
    at_stores = f"; {found}" if (found := meetings.at_stores(facts)) and not first.waker_of else ""
    return f"{waits}{scarce}{at_stores}; {_depends_on(facts, narrator, first)}{_in_queue(facts, first)}"


def _in_queue(facts: FindingFacts, end: Vertex) -> str:
    """What the readers of a message queue have read, if this is one that is late."""
    waits = (one.wait for one in facts.waits if one.wait and end.key in targets_of(one))
    return next((queue_in_words(wait) for wait in waits if wait.kind == "queue write"), "")


def _depends_on(facts: FindingFacts, narrator: Narrator, first: Vertex) -> str:
    """``they depend on 3 x Clerk.stamp, running at app.py:12, and 1 other``."""
    ends = _alike_ends(facts, narrator)
    others = f", and {words.plural(len(ends) - 1, 'other')}" if len(ends) > 1 else ""
    depend = "they depend" if others else "all depends" if facts.draft.waiters_total > 1 else "it depends"
    blocker = _blocker_in_words(facts, narrator, first)
    if ends and len(ends[0]) > 1 and first in ends[0]:
        count = words.times_of(describe(first), len(ends[0]))
        blocker = f"{count}{_doing(narrator, first)}{_line(facts, narrator, first)}"
    return f"{depend} on {blocker}{others}"


def _are_ends(facts: FindingFacts, waiter: Vertex) -> bool:
    """Whether a vertex waits only for the final blockers, and for calls of the same functions that have not begun."""
    targets, ends = facts.reduced.vertices_of(targets_of(waiter)), set(facts.draft.ends)
    if any(end.waker_of for end in facts.ends) or {*map(describe, targets)} != {*map(describe, facts.ends)}:
        return False
    return all(target.key in ends or target.worker_id is None for target in targets)


def _lone_waiter(facts: FindingFacts) -> Vertex | None:
    """The only member, or the main thread of the only driver among the members: what a reader asks about first."""
    if len(facts.own_members) == 1:
        return facts.own_members[0]
    drivers = [one for one in facts.own_members if facts.reduced.is_driver(one)]
    return drivers[0] if len(drivers) == 1 else None


def _awaited(facts: FindingFacts, narrator: Narrator, waiter: Vertex) -> str:
    """``Clerk.stamp, sleeping at app.py:12``; of several ``12 transform and 2 load, all on their way``."""
    targets = facts.reduced.vertices_of(dict.fromkeys(targets_of(waiter)))
    if len(targets) == 1 and targets[0].key == facts.ends[0].key:
        return _blocker_in_words(facts, narrator, facts.ends[0])
    return f"{_counted(targets)}, {'on its way' if len(targets) == 1 else 'all on their way'}"


def _for_targets(narrator: Narrator, waiter: Vertex) -> str:
    """`` for 12 transform``: what a wait depends on, without vertices that only represent others."""
    targets = [narrator.vertices[key] for key in dict.fromkeys(targets_of(waiter))]
    reduced = narrator.reduced
    own = (one for one in targets if one.is_counted and not reduced.is_machinery(one.key))
    shown = [one for one in own if one.kind not in ("unknown", "lifetime", "room")]
    if not shown:
        libraries = (library_of(narrator.index, one) for one in targets)
        library = next(filter(None, libraries), None)
        call = f" in {waiter.wait.call}" if waiter.wait and waiter.wait.called else ""
        return f" through {library}" if library else call
    return f" for {narrator.name(shown[0]) if len(shown) == 1 else _counted(shown)}"


def _counted(vertices: Sequence[Vertex]) -> str:
    """``12 transform and load``."""
    counts = Counter(map(describe, vertices))
    return words.shortly([f"{count:,} {name}" if count > 1 else name for name, count in counts.most_common()])


def is_start(vertex: Vertex) -> bool:
    """Whether it is a worker process that is starting: its lease holds resources, for the task that it starts for."""
    return vertex.subject.what == "starting worker"


def _without_ends(facts: FindingFacts, narrator: Narrator) -> str:
    """What ends the waits for each other of a chain without final blockers: the first timeout."""
    waits = f"{_waiters(facts)} {words.word(facts.draft.waiters_total, 'waits', 'wait')}"
    timed = _first_timeout(facts)
    if timed is None or timed.wait is None:
        return f"{waits} for each other"
    call = f"{timed.wait.call}{narrator.line(timed)}"
    return (
        f"{waits}; a timeout of {words.duration(timed.wait.timeout_s or 0.0)} in {describe(timed)} ends that ({call})"
    )


def _scarce(facts: FindingFacts, first: Vertex) -> str:
    """`` because not enough GPU is free``, if resources that are not free, or not on one node, are waited for."""
    if not facts.draft.resources or isinstance(first.key, UnknownKey) or is_start(first):
        return ""
    return f" because {scattered(facts) or f'not enough {words.listed(facts.draft.resources)} is free'}"


def _waiters(facts: FindingFacts) -> str:
    """``1 driver and 3 tasks``; a single one by its name."""
    if len(facts.own_members) == 1:
        return describe(facts.own_members[0])
    counts = Counter(_sort(vertex, facts.reduced) for vertex in facts.own_members)
    return words.listed([words.plural(counts[sort], sort, SORTS[sort]) for sort in SORTS if sort in counts])


def _sort(vertex: Vertex, reduced: ReducedGraph) -> str:
    """What a waiter is, as one of the sorts."""
    if reduced.is_driver(vertex) or isinstance(vertex.key, DriverKey):
        return "driver"
    if vertex.placement_group_id and not vertex.task_id:
        return "placement group"
    if vertex.task_id:
        return "task"
    if vertex.child_pid is not None:
        return "child process"
    return "asyncio task" if vertex.coroutine_id else "thread"


def _blocker_in_words(facts: FindingFacts, narrator: Narrator, blocker: Vertex) -> str:
    """``Clerk.stamp (rank 3), running at app.py:12``; of an unknown waker, its waiter."""
    is_any_code = bool(blocker.waker_of) or facts.reduced.is_any_code(blocker.key)
    if is_any_code and (waiter := waiter_of(facts, blocker)):
        line = _line(facts, narrator, waiter.vertex)
        pipe = full_pipe_in_words(narrator.index, waiter.vertex)
        return f"{narrator.name(waiter.vertex)}, which waits in {waiter.call}{line}{pipe}"
    if blocker.holder:
        return f"the end of {operand_in_words(blocker.holder)}"
    rank = narrator.details(blocker).ranks.rank
    of_rank = f" (rank {rank})" if rank is not None and blocker.kind == "execution" else ""
    return f"{narrator.name(blocker)}{of_rank}{_doing(narrator, blocker)}{_line(facts, narrator, blocker)}"


def _line(facts: FindingFacts, narrator: Narrator, vertex: Vertex) -> str:
    """`` at app.py:12``; `` at line 12`` if it is in the script of the driver that the headline names."""
    waiter, details = _lone_waiter(facts), narrator.details(vertex)
    is_there = waiter is not None and facts.reduced.is_driver(waiter) and waiter.key != vertex.key
    if waiter and is_there and details.file and details.file == narrator.details(waiter).file:
        return f" at line {details.line}"
    return narrator.line(vertex)


def _doing(narrator: Narrator, blocker: Vertex) -> str:
    """``, sleeping`` or ``, running``; nothing for what is no thread."""
    details = narrator.details(blocker)
    if details.halt:
        return f", {halt_in_words(details.halt)}"
    if details.imports:
        return f", which {details.imports}"
    if blocker.kind != "execution":
        return ""
    return ", sleeping" if details.sleeps else "" if details.coroutine else ", running"


def brief(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The final blockers, those alike as one: at which line, since when, and how long that usually takes.

    Without any, the wait whose timeout ends first; without a line of the user's code, that of the waiter.
    """
    waiter = _lone_waiter(facts) or next(
        (one for one in facts.own_members if facts.reduced.is_in_users_code(one.key)), None
    )
    shown = list(_brief(facts, narrator))
    own = [step for step in shown if step.file and step.vertex and facts.reduced.is_in_users_code(step.vertex)]
    if waiter is not None and not own:
        yield step_at(describe(waiter), narrator.details(waiter), waiter)
    if any(end.key in starts.described for starts in facts.actor_starts for end in facts.own_ends):
        yield from start_steps(facts.actor_starts)
    yield from shown
    yield from library_steps(facts)


def _brief(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    for same in _alike_ends(facts, narrator)[: words.SHOWN]:
        first = max(same, key=lambda end: facts.age_s(end) or 0.0)
        if first.kind in ("unknown", "placement group") and len(same) == 1:
            continue  # the headline says all that is known of it
        text = _holding(facts, first) if first.holder else _alike(facts, narrator, first, len(same))
        yield step_at(text, narrator.details(first), first)
    if not facts.ends and (timed := _first_timeout(facts)):
        yield narrator.step(timed)


def _alike_ends(facts: FindingFacts, narrator: Narrator) -> list[list[Vertex]]:
    """The final blockers that are known, those of one function at one line together."""
    names_of = ((end, "" if is_start(end) else describe(end)) for end in facts.known_ends)
    return list(grouped(((name, narrator.line(end)), end) for end, name in names_of).values())


def _alike(facts: FindingFacts, narrator: Narrator, vertex: Vertex, count: int) -> str:
    """``Clerk.stamp of "clerk", sleeping for 3 min (usually 1.1 s, by 40 calls), pid 7 on 10.0.0.1``."""
    details = narrator.details(vertex)
    name = words.times_of(describe(vertex), count) if count > 1 else narrator.name(vertex)
    age = f"{'; the oldest' if count > 1 else ''} {age}" if (age := age_in_words(facts, vertex)) else ""
    process = details.process if vertex.child_pid is None else f"on {details.node_ip}"
    where = (details.ranks.in_words, process) if count == 1 and vertex.kind in ("execution", "unknown") else ()
    doing = f", running{age}{_doing(narrator, vertex)}" if details.halt else f"{_doing(narrator, vertex)}{age}"
    return ", ".join(filter(None, (f"{name}{doing}", *where)))


def age_in_words(facts: FindingFacts, vertex: Vertex) -> str:
    """``for 3 min (usually 1.1 s, by 40 calls)``: for how long its task has run."""
    age_s = facts.age_s(vertex)
    if age_s is None:
        return ""
    usual = facts.usual(vertex)
    calls = f", by {words.plural(usual.calls, 'call')}" if usual else ""
    return f"for {words.duration(age_s)}{f' (usually {words.short_duration(usual.usual_s)}{calls})' if usual else ''}"


def _holding(facts: FindingFacts, lifetime: Vertex) -> str:
    """``actor Trainer "t" holds 1 GPU, for at most 4 min, and executes nothing``."""
    index, (holder, amounts) = facts.reduced.index, lifetime.subject.of[:2]
    held = f"{operand_in_words(holder)} holds {operand_in_words(amounts)}"
    if not isinstance(holder, Actor):
        return held
    process = index.process(holder.worker_id or "")
    age_s = index.snapshot.taken_at - process.started_at if process and index.snapshot.has_one_time else None
    age = f", for at most {words.duration(max(0.0, age_s))}" if age_s is not None else ""
    sample = index.worker_samples.get(holder.worker_id or "")
    ran = sample.running_task_ids if sample else None
    does = (
        "" if ran is None else f", and executes {words.plural(len(ran), 'task')}" if ran else ", and executes nothing"
    )
    return f"{held}{age}{does}"


def _first_timeout(facts: FindingFacts) -> Vertex | None:
    """The member whose timeout ends first."""
    timed = ((one.wait.timeout_s, one) for one in facts.members if one.wait and one.wait.timeout_s is not None)
    return min(timed, key=lambda pair: pair[0], default=(0.0, None))[1]


def waiter_of(facts: FindingFacts, blocker: Vertex) -> Waiter | None:
    """A member that waits for this blocker; instead of library code, the nearest of the user's that waits for it."""
    before = grouped((target, one) for one in facts.waits for target in targets_of(one))
    reached = {one.key: one for one in before.get(blocker.key, ())}
    level = list(reached.values())
    while level and not any(facts.reduced.is_in_users_code(one.key) for one in level):
        new = {one.key: one for waiter in level for one in before.get(waiter.key, ()) if one.key not in reached}
        reached |= new
        level = list(new.values())
    waiters = [one for one in level if facts.reduced.is_in_users_code(one.key)] or list(reached.values())
    if not waiters:
        return None
    shown = waiters[0].wait
    if shown is not None and shown.kind == "await":  # what is awaited says more
        named = (one.wait for one in reached.values() if one.wait and one.wait.called and one.wait.timeout_s != 0.0)
        shown = shown if shown.called else next(named, shown)
    return Waiter(waiters[0], shown.call if shown else describe(blocker))


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The calls in which chains end with their executions, then other final blockers and possible wakers."""
    yield from collectives.steps(facts, narrator)
    yield from shared_call_steps(facts.shared_calls, narrator)
    yield from start_steps(facts.actor_starts)
    absent = {vertex.key for call in facts.shared_calls if call.is_most for vertex in call.absent}
    ends = zip(facts.draft.final_blockers, facts.ends, strict=True)
    yield from blocker_steps([one for one, end in ends if not end.waker_of and end.key not in absent], narrator)
    yield from restart_steps(facts)
    yield from other_side_steps(facts, narrator, facts.draft.members)
    yield from _possible_wakers(facts, narrator)
    yield from caller_steps(facts, narrator)


def blocker_steps(blockers: Sequence[FinalBlocker], narrator: Narrator) -> Iterator[Step]:
    """The first final blockers, those in the same words as one, and the number of others."""
    shown = list(group_by_step(blockers, lambda blocker: _blocker_step(blocker, narrator)))[: words.SHOWN]
    for step, similar in shown:
        yield replace(step, text=f"{step.text}{words.alike(len(similar))}")
    yield from more(len(blockers) - sum(len(similar) for _, similar in shown), "at the end of a chain")


def _blocker_step(blocker: FinalBlocker, narrator: Narrator) -> Step:
    vertex = narrator.vertices[blocker.vertex]
    details = narrator.details(vertex)
    total = blocker.waiters_total
    count = f"{names.waiting(total)} {words.word(total, 'depends', 'depend')} on it"
    if vertex.kind == "lifetime":
        step = narrator.step(vertex)
        return replace(step, text=f"{'the ' if vertex.holder else ''}{step.text}; {count}")
    if vertex.kind == "unknown":
        wait, place = _wait_of_child(narrator, vertex), "; it is at" if details.file else ""
        return step_at(f"the {describe(vertex)}{wait}; {count}{place}", details, vertex)
    state = f"{cancellation(narrator.index, vertex)}{activity(vertex, details)}"
    return step_at(f"{subject(vertex, details)} {state}; {count}", details, vertex)


def _wait_of_child(narrator: Narrator, vertex: Vertex) -> str:
    """``, which waits in multiprocessing.Queue.get``, of a child process in such a call."""
    thread = narrator.index.execution_of(vertex) if vertex.child_pid is not None else None
    call = call_in_words(thread.call) if thread else ""
    return f", which waits in {call}" if call else ""


def other_side_steps(facts: FindingFacts, narrator: Narrator, described: Container[Key]) -> Iterator[Step]:
    """What waits while it holds an object that a chain ends in, without what is ``described`` already."""
    others = [vertex for vertex in facts.other_sides if vertex.key not in described]
    yield from narrator.similar_steps(others, "Holds what is awaited: ")


def _possible_wakers(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The running executions of the jobs, if all chains end in calls with unknown wakers."""
    if facts.shared_calls and all(end.waker_of for end in facts.ends):
        jobs = facts.reduced.jobs_that_reach(facts.draft.members)
        wakers = (vertex for vertex in facts.reduced.possible_wakers(jobs) if not vertex.unobserved)
        others = [vertex for vertex in wakers if vertex.key not in facts.draft.members]
        yield from narrator.similar_steps(others, "Running, and could end the wait: ")


def caller_steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The drivers of other jobs that are not at rest and may call an actor of the chain, which would end the wait."""
    reduced = facts.reduced
    if not facts.ends or not all(end.waker_of for end in facts.ends):
        return
    others = set(reduced.jobs_that_reach(facts.draft.members)).difference(facts.draft.jobs)
    active = {job for job in others if not reduced.are_at_rest((job,))}
    vertices = narrator.vertices.values() if active else ()
    drivers = [vertex for vertex in vertices if reduced.is_driver(vertex) and reduced.job_of(vertex) in active]
    yield from narrator.similar_steps(drivers, "May end the wait by a call, from another job: ")


def restart_steps(facts: FindingFacts) -> Iterator[Step]:
    """How often the actors of a finding were restarted and its calls retried, with the last error."""
    for actor in facts.restarted[: words.SHOWN]:
        yield Step(text=f"{names.actor(actor)} {names.restarts(actor)}")
    for vertex, task in facts.retried[: words.SHOWN]:
        yield Step(text=_retries(facts.reduced.index, vertex, task), vertex=vertex.key)


def lost_with(index: SampleIndex, node: Node, task: Task) -> str:
    """``its value was lost with node 10.0.0.7, which had 1 spot and ended at 03:12:40 (received SIGTERM)``."""
    behind_s = next((one.clock_ahead_s or 0.0 for one in index.snapshot.nodes if one.is_head and one.alive), 0.0)
    ended = f"ended at {words.time_of_day(node.ended_at - behind_s)}" if node.ended_at is not None else "is dead"
    cause = f" ({node.death_cause})" if node.death_cause else ""
    what = "its value was lost" if index.refs.was_lost(task.task_id) else "its last attempt ended"
    alive = [one.resources for one in index.snapshot.nodes if one.alive]
    most = {name: max((one.get(name, 0.0) for one in alive), default=0.0) for name in task.required_resources}
    only = {
        name: node.resources[name]
        for name in most
        if most[name] < task.required_resources[name] <= node.resources.get(name, 0.0)
    }
    had = f"had {names.amounts(only)} and " if only else ""
    return f"{what} with {names.node(node)}, which {had}{ended}{cause}"


def memory_kills(facts: FindingFacts) -> Iterator[Step]:
    """How many processes the kernel has killed for lack of memory, where Ray may not know why one has died."""
    is_orphaned = any(vertex.never and vertex.never.is_orphaned for vertex in facts.members)
    has_died = any(failed.error_type in DIED for failed in facts.failed_before)
    if not (facts.restarted or facts.retried or is_orphaned or has_died):
        return
    for node in facts.reduced.index.snapshot.nodes:
        if kills := node.host.oom_kills:
            count = words.plural(kills, "process", "processes")
            text = f"The kernel has killed {count} of {names.node(node)} for lack of memory since its cgroup was made"
            yield Step(text=text)


def library_steps(facts: FindingFacts) -> Iterator[Step]:
    """What the controllers of Ray's libraries have decided, in the processes of a finding or of its deployments."""
    known = facts.reduced.index.library_states
    if not known:
        return
    vertices = (*facts.waits, *facts.ends, *facts.behind)
    workers, classes = {vertex.worker_id for vertex in vertices}, set(_classes(facts.reduced.index, vertices))
    states = [
        library_state_in_words(state)
        for worker_id, states in known.items()
        for state in states
        if (f"ServeReplica:{state.app}:{state.name}" in classes if state.library == "Serve" else worker_id in workers)
    ]
    yield from (Step(text=text) for text in states[:SHOWN_STATES])
    yield from more(len(states) - SHOWN_STATES, "decided by libraries")


def _classes(index: SampleIndex, vertices: Sequence[Vertex]) -> Iterator[str]:
    """The classes of the actors of these vertices, and of the deployments whose replicas they need."""
    for vertex in vertices:
        actor = index.actor_of_call(vertex.task_id) or index.actor_of_worker(vertex.worker_id)
        if actor is not None:
            yield actor.class_name
        if isinstance(vertex.key, UnknownKey | AnyKey) and len(vertex.key.ids) > 1:
            yield f"ServeReplica:{vertex.key.ids[0]}:{vertex.key.ids[1]}"


def _retries(index: SampleIndex, vertex: Vertex, task: Task) -> str:
    if (node := node_lost_by(index, task)) is not None:
        return f"{describe(vertex)} runs again (attempt {task.attempt + 1:,}): {lost_with(index, node, task)}"
    failed = (one for one in index.snapshot.failed_tasks if one.task_id == task.task_id)
    error = next((f"; its last error: {one.error_type} {one.error}".rstrip() for one in failed), "")
    first = "the first" if task.attempt == 1 else f"the first {task.attempt:,}"
    return f"{describe(vertex)} is at attempt {task.attempt + 1:,}: {first} failed{error}"

"""What all findings about waits that may still end share: their final blockers, and the sentences about these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from dstack import words
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.stall_evidence import possible_wakers
from dstack.analysis.findings.wording import collectives
from dstack.analysis.findings.wording.narration import Narrator, alike_steps, more
from dstack.analysis.findings.wording.restarts import restart_steps
from dstack.analysis.findings.wording.shared_calls import SharedCall, shared_call_steps, shared_calls
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import activity, cancellation, step_at, subject
from dstack.analysis.naming.vertex_details import execution_of
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.app_threads import call_in_words
from dstack.diagnosis import FinalBlocker, Finding, FindingKind, Step, Vertex
from dstack.vertex_keys import DriverKey, Key, Unknown, UnknownKey

SHOWN_BLOCKERS = 3
SORTS = ("driver", "task", "thread", "asyncio task", "placement group")
"""What can wait, in the order of a summary."""
MAX_ENDERS = 20
"""So many of those who can end something are looked at, of each thing that only stands for others."""


OF_UNKNOWN: dict[Unknown, str] = {
    "scheduler": (
        "The resources are free, yet it is not placed: check its node affinity, label selector and runtime environment "
        "(it may be in setup), and the raylet's log"
    ),
    "slot": (
        "Find out why the actor does not start the call: native code may hold its GIL, or the arguments are still in "
        "transfer"
    ),
    "executor": "Find out why the worker that received the call does not run it, and take another snapshot",
    "retry": "Find out why the call fails: Ray is about to run it again",
}
"""What to inspect where a chain ends in something that is no execution, by what it is."""


def finding_of(reduced: ReducedGraph, kind: FindingKind, chain: OpenChain) -> Finding:
    """The finding of an open knot, with its known final blockers first, and those that stand for others behind them."""

    def place(blocker: FinalBlocker) -> tuple[bool, bool]:
        vertex = reduced.vertices[blocker.vertex]
        return bool(vertex.waker_of), vertex.kind == "lifetime" and reduced.is_helper(vertex.key)

    blockers = sorted(chain.blockers, key=lambda blocker: place(blocker)[0])
    blockers = sorted([*blockers, *_enders(reduced, blockers)], key=place)
    return Finding(
        kind=kind,
        confirmed=False,
        members=tuple(filter(reduced.is_counted, chain.waiters)),
        helpers=tuple(key for key in chain.waiters if not reduced.is_counted(key)),
        final_blockers=tuple(blockers),
        resources=reduced.resources(chain.waiters),
        waiters_direct=_direct(reduced, chain),
        waiters_total=sum(map(reduced.is_counted, chain.waiters)),
        watched_s=reduced.watched_s,
    )


def _direct(reduced: ReducedGraph, chain: OpenChain) -> int:
    """How many wait for an end of the knot, or for a helper that does."""
    inside = set(chain.waiters)
    helpers = [key for key in chain.waiters if not reduced.is_counted(key)]
    leading: set[Key] = set()

    def leads_out(key: Key) -> bool:
        return any(target not in inside or target in leading for target in targets_of(reduced.vertices[key]))

    while new := {key for key in helpers if key not in leading and leads_out(key)}:
        leading |= new
    return sum(reduced.is_counted(key) and leads_out(key) for key in chain.waiters)


def _enders(reduced: ReducedGraph, blockers: list[FinalBlocker]) -> list[FinalBlocker]:
    """Those who run and can end what holds resources for life; for them wait all who wait for that."""
    found: dict[Key, FinalBlocker] = {blocker.vertex: blocker for blocker in blockers}
    for blocker in blockers[:SHOWN_BLOCKERS]:
        for key in _behind_lifetime(reduced, blocker.vertex):
            found.setdefault(key, msgspec.structs.replace(blocker, vertex=key))
    return [ender for key, ender in found.items() if ender not in blockers]


def _behind_lifetime(reduced: ReducedGraph, key: Key) -> Iterator[Key]:
    """The first executions that do not wait, behind all that only stands for others."""
    ahead, seen = [key], {key}
    while ahead:
        vertex = reduced.vertices[ahead.pop()]
        if vertex.kind == "lifetime":
            targets = set(targets_of(vertex)) - seen
            seen |= targets
            ahead += sorted(targets, key=str)[:MAX_ENDERS]
        elif vertex.kind == "execution" and vertex.wait is None:
            yield vertex.key


def summary(finding: Finding, narrator: Narrator) -> str:
    """How many wait, and for which final blocker, at which line."""
    blockers = finding.final_blockers
    waits = f"{_waiters(finding, narrator)} {words.word(finding.waiters_total, 'waits', 'wait')}"
    if not blockers:
        return f"{waits} for each other's timeouts"
    first = narrator.vertices[blockers[0].vertex]
    rest = f", and {words.plural(len(blockers) - 1, 'other')}" if len(blockers) > 1 else ""
    scarce = _scarce(finding, first)
    if finding.waiters_total == 1:
        return f"{waits}{scarce} for {blocker_in_words(finding, narrator, first)}{rest}"
    if first.waker_of and blockers[0].waiters_direct > 1 and (waiter := waiter_of(finding, narrator, first)):
        where = f"{narrator.name(waiter.vertex)}{narrator.spot(waiter.vertex)}"
        return f"{waits}; the chains end in {waiter.call}, as in {where}{rest}"
    depend = "they depend" if rest else "all depend"
    return f"{waits}{scarce}; {depend} on {blocker_in_words(finding, narrator, first)}{rest}"


def _scarce(finding: Finding, first: Vertex) -> str:
    """`` because not enough GPU is free``, where resources are waited for that are not free."""
    if not finding.resources or isinstance(first.key, UnknownKey):
        return ""
    return f" because not enough {words.listed(finding.resources)} is free"


def _waiters(finding: Finding, narrator: Narrator) -> str:
    """``1 driver and 3 tasks``; one by its name."""
    members = narrator.vertices_of(finding.members)
    if len(members) == 1:
        return members[0].label
    counts = Counter(_sort(vertex, narrator) for vertex in members)
    return words.listed([words.plural(counts[sort], sort) for sort in SORTS if sort in counts])


def _sort(vertex: Vertex, narrator: Narrator) -> str:
    """What a waiter is, as one word."""
    if narrator.reduced.is_driver(vertex) or isinstance(vertex.key, DriverKey):
        return "driver"
    if vertex.placement_group_id and not vertex.task_id:
        return "placement group"
    if vertex.task_id:
        return "task"
    return "asyncio task" if vertex.coroutine_id else "thread"


def blocker_in_words(finding: Finding, narrator: Narrator, blocker: Vertex) -> str:
    """``Clerk.stamp, running at app.py:12 (pid 7, node 10.0.0.1)``; of an unknown waker the call that it must end."""
    if blocker.waker_of and (waiter := waiter_of(finding, narrator, blocker)):
        return f"{narrator.name(waiter.vertex)}, which waits in {waiter.call}{narrator.spot(waiter.vertex)}"
    who = narrator.member(blocker)
    is_running = blocker.kind == "execution" and not who.coroutine
    state = ", sleeping" if who.sleeps else ", running" if is_running else ""
    return f"{narrator.name(blocker)}{state}{narrator.spot(blocker)}"


class Waiter(NamedTuple):
    """A member of a finding, and the call that it waits in."""

    vertex: Vertex
    call: str


def waiter_of(finding: Finding, narrator: Narrator, blocker: Vertex) -> Waiter | None:
    """A member that waits for this blocker; where that is a library's code, what waits for it in the user's."""
    members = narrator.vertices_of(finding.members)
    last = next((one for one in members if blocker.key in targets_of(one)), None)
    if last is None:
        return None
    own = (one for one in members if narrator.reduced.is_in_users_code(one.key))
    shown = last
    if not narrator.reduced.is_in_users_code(last.key):
        shown = next((one for one in own if last.key in targets_of(one) and one.wait and one.wait.what), last)
    return Waiter(shown, (shown.wait.what or shown.wait.kind) if shown.wait else blocker.label)


def to_inspect(finding: Finding, narrator: Narrator) -> str:
    """``Find out why Clerk.stamp does not leave app.py:12: it sleeps there, or ...``, by what the blocker does."""
    first = narrator.vertices[finding.final_blockers[0].vertex]
    who = first.label if first.kind == "execution" else narrator.name(first)
    if first.waker_of:
        waiter = waiter_of(finding, narrator, first)
        where = f"{waiter.call} in {waiter.vertex.label}{narrator.line(waiter.vertex)}" if waiter else first.waker_of
        return f"Find out what should end {where}, and why it did not"
    if isinstance(first.key, UnknownKey) and first.key.what in OF_UNKNOWN:
        line = narrator.line(first)
        return f"{OF_UNKNOWN[first.key.what]}{f'; it is{line}' if line else ''}"
    if first.unobserved:
        return f"Run dstack again. If the report is the same, inspect the {first.label}"
    if first.kind == "lifetime" and first.holder is None:
        return f"Find out what should end the wait: only {who} can"
    if first.kind != "execution":
        return f"Find out what delays {who}{narrator.line(first)}"
    return f"Find out why {who} takes long{narrator.line(first)}: {_doing(narrator, first)}"


def _doing(narrator: Narrator, blocker: Vertex) -> str:
    """What a final blocker does at its line."""
    who = narrator.member(blocker)
    if who.sleeps:
        return "it sleeps there"
    if who.coroutine:
        return "it sleeps there, or is ready to run"
    return "it is computing there" if who.on_cpu else "it sleeps there, or waits outside Python (network, file, C code)"


def steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """The calls in which chains end, what is in them and what alike is not; then the other final blockers."""
    yield from collectives.steps(finding, narrator)
    groups = shared_calls(finding, narrator)
    yield from shared_call_steps(groups, narrator)
    absent = {vertex.key for group in groups if group.is_most for vertex in group.absent}
    blockers = [b for b in finding.final_blockers if b.vertex not in absent and not _is_other_side(b, narrator)]
    yield from _blocker_steps(blockers, narrator)
    yield from restart_steps(finding, narrator)
    yield from _candidates(finding, groups, narrator)


def _is_other_side(blocker: FinalBlocker, narrator: Narrator) -> bool:
    return narrator.vertices[blocker.vertex].waker_of is not None


def _blocker_steps(blockers: Sequence[FinalBlocker], narrator: Narrator) -> Iterator[Step]:
    """The first of them, those in the same words as one, and how many others there are."""
    shown = list(alike_steps(blockers, lambda blocker: _blocker_step(blocker, narrator)))[:SHOWN_BLOCKERS]
    for step, alike in shown:
        count = f" ({len(alike):,} alike)" if len(alike) > 1 else ""
        yield msgspec.structs.replace(step, text=f"{step.text}{count}")
    yield from more(len(blockers) - sum(len(alike) for _, alike in shown), "at the end of a chain")


def _blocker_step(blocker: FinalBlocker, narrator: Narrator) -> Step:
    vertex = narrator.vertices[blocker.vertex]
    who = narrator.member(vertex)
    total = blocker.waiters_total
    count = f"{names.waiting(total)} {words.word(total, 'depends', 'depend')} on it"
    if vertex.kind == "lifetime":
        step = narrator.step(vertex.key)
        return msgspec.structs.replace(step, text=f"{'the ' if vertex.holder else ''}{step.text}; {count}")
    if vertex.kind == "unknown":
        waits = _wait_in_child(narrator, vertex)
        return step_at(f"the {vertex.label}{waits}; {count}" + ("; it is at" if who.file else ""), who, vertex)
    state = f"{cancellation(narrator.index, vertex)}{activity(vertex, who)}"
    return step_at(f"{subject(vertex, who)} {state}; {count}", who, vertex)


def _wait_in_child(narrator: Narrator, vertex: Vertex) -> str:
    """``, which waits in multiprocessing.Queue.get``, of a child process in such a call."""
    thread = execution_of(narrator.index, vertex) if vertex.child_pid is not None else None
    call = call_in_words(thread.call) if thread else ""
    return f", which waits in {call}" if call else ""


def _candidates(finding: Finding, groups: list[SharedCall], narrator: Narrator) -> Iterator[Step]:
    """Where all chains end in calls that somebody unknown must end: those of the job who run, and so might."""
    if groups and all(_is_other_side(blocker, narrator) for blocker in finding.final_blockers):
        able = (vertex.key for vertex in possible_wakers(narrator.reduced, finding.jobs) if not vertex.unobserved)
        members = set(finding.members)
        yield from narrator.alike([key for key in able if key not in members], "Running, and could end the wait: ")

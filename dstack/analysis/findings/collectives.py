"""The words of findings about calls on process groups: which ranks are in which call, and which are elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dstack.analysis import names, placing
from dstack.analysis.findings.failures import RAISED, SHOWN_ERROR
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.telling import Teller, more
from dstack.analysis.members import execution_of
from dstack.analysis.process_groups.calls import BY_CALLS, SENDS, GroupId, group_id, is_between_two
from dstack.analysis.requirements import targets_of
from dstack.analysis.sentences import at, fails_in
from dstack.diagnosis import Finding, GroupWait, Step, Vertex
from dstack.model import DATA, FailedTask, GroupCall, actor_of_task
from dstack.vertex_keys import Key

SHOWN_PARTS = 4
SHOWN_CALLS = 8
FOLLOWED = 6
"""So many steps from what a rank waits for to another rank are followed."""


class Gathering(NamedTuple):
    """The ranks that are in the same call of a group, in the order of their ranks."""

    call: GroupCall
    inside: list[Vertex]

    @property
    def ranks(self) -> list[int]:
        """The ranks that are in it."""
        return [_of(vertex).call.group.rank for vertex in self.inside]

    @property
    def operation(self) -> str:
        """``all_reduce``, or ``recv from rank 1``."""
        return operation_in_words(self.call)


def operation_in_words(call: GroupCall) -> str:
    """``all_reduce``; of a send or receive with the other rank: ``recv from rank 1``."""
    if call.peer is None or not is_between_two(call):
        return call.operation
    return f"{call.operation} {'to' if call.operation in SENDS else 'from'} rank {call.peer}"


def has_lost_rank(situation: Situation, keys: Iterable[Key]) -> bool:
    """Whether one of these stands for a rank that has died, or whose last call failed, and that no call reaches."""
    vertices = (situation.vertices[key] for key in keys)
    return any(vertex.absent and (vertex.absent.is_dead or _failure(situation, vertex)) for vertex in vertices)


def gatherings(finding: Finding, teller: Teller) -> list[Gathering]:
    """The calls that members are in, each with the ranks in it; the largest group first."""
    members = teller.vertices_of(finding.members)
    if any(vertex.absent and vertex.never for vertex in members):
        members += teller.vertices_of(finding.blocked_behind)
    of_members = {_id(_of(vertex).call) for vertex in members if _is_in_group(vertex)}
    several: dict[object, list[Vertex]] = defaultdict(list)
    for vertex in teller.vertices_of((*finding.members, *finding.blocked_behind)):
        if _is_in_group(vertex) and _id(_of(vertex).call) in of_members:
            several[_id(_of(vertex).call)].append(vertex)
    found = [Gathering(_of(some[0]).call, sorted(some, key=_rank)) for some in several.values()]
    sizes: dict[GroupId, int] = defaultdict(int)
    for one in found:
        sizes[group_id(one.call.group)] += len(one.inside)
    return sorted(found, key=lambda one: (-sizes[group_id(one.call.group)], group_id(one.call.group), one.ranks[:1]))


def headline(finding: Finding, teller: Teller) -> str | None:
    """``ranks 0-2 are in all_reduce of group dp; rank 3 is in ray.get on Reward.score, which calls rank 0``."""
    found = gatherings(finding, teller)
    if not found:
        return None
    absent = _absent(finding, teller)
    if lost := [text for vertex in absent if (text := _why_lost(teller, vertex))]:
        return "; ".join((*lost, *_calls_in_words(found, ("waits", "wait"))))
    idle = (text for vertex in absent if (text := _why_idle(teller, vertex)))
    parts = [*_calls_in_words(found, ("is", "are")), *_elsewhere(finding, teller), *idle]
    rest = f"; and {len(parts) - SHOWN_PARTS} more" if len(parts) > SHOWN_PARTS else ""
    return "; ".join(parts[:SHOWN_PARTS]) + rest


def described(finding: Finding, teller: Teller) -> set[Key]:
    """The vertices that the steps about calls on groups tell of."""
    inside = [vertex for one in gatherings(finding, teller) for vertex in one.inside]
    return {vertex.key for one in inside for vertex in (one, _caller(teller, one))}


def steps(finding: Finding, teller: Teller) -> Iterator[Step]:
    """Each call with the ranks in it and where the first of them is, then the ranks that are lost or idle."""
    found = [one for one in gatherings(finding, teller) if _of(one.inside[0]).missing]
    yield from (_step_inside(one, teller) for one in found[:SHOWN_CALLS])
    yield from more(len(found) - SHOWN_CALLS, "such calls")
    for vertex in _absent(finding, teller):
        if text := _why_lost(teller, vertex) or _why_idle(teller, vertex):
            yield _step_of_absent(teller, vertex, text)


def late_executions(finding: Finding, teller: Teller) -> list[Key]:
    """The executions among the members that belong to a missing rank."""
    return [vertex.key for vertex, _ in _others(finding, teller)]


def with_ranks(finding: Finding, teller: Teller, steps_: Iterable[Step]) -> Iterator[Step]:
    """The steps, with the ranks of executions that others wait for in a call on a group."""
    ranks = {vertex.key: rank for vertex, rank in _others(finding, teller)}
    for step in steps_:
        rank = ranks.get(step.vertex) if step.vertex else None
        yield step if rank is None else replace(step, text=f"Rank {rank}: {step.text}")


def without_told(finding: Finding, teller: Teller) -> Finding:
    """The finding without those behind it that the steps about calls on groups tell of."""
    known = described(finding, teller)
    return replace(finding, blocked_behind=tuple(key for key in finding.blocked_behind if key not in known))


def advice(finding: Finding, teller: Teller) -> str | None:
    """How to make the ranks come together; None where no member is in a call of a group."""
    found = gatherings(finding, teller)
    if not found:
        return None
    lost = [vertex for vertex in _absent(finding, teller) if _why_lost(teller, vertex)]
    if lost:
        return _advice_for_lost(lost)
    if fix := _advice_for_data({one.call.group.library for one in found}):
        return fix
    if any(one.call.transfer for one in found):
        return (
            "Have one process ask for all transfers between these actors, or wait for one before asking for the next: "
            "an actor makes its transfers in the order in which they arrive there, and that of two callers may differ."
        )
    is_for_calls = bool(_others(finding, teller)) and not _are_mixed(found)
    return _advice_for_calls(finding, teller, found) if is_for_calls else _advice_for_order(found)


def _are_mixed(found: Sequence[Gathering]) -> bool:
    """Whether members of one group are in several calls of it."""
    return len({group_id(one.call.group) for one in found}) < len(found)


def _advice_for_data(libraries: set[str]) -> str | None:
    """Where readers of Data wait for each other, or for ranks that wait in another library."""
    if libraries == {DATA}:
        return (
            "Read all splits at the same time: start every reader before waiting for one of them (ray.get of all calls "
            "together), and let no reader wait for another before it iterates."
        )
    if DATA in libraries:
        return "Let all ranks read their data and make their collective calls, as ray.train.report, in the same order."
    return None


def _advice_for_lost(lost: Sequence[Vertex]) -> str:
    if any(vertex.never for vertex in lost):
        return (
            "Make the same calls on all ranks, the same number of times: look for a branch on the rank, an early "
            "return or a loop of another length in the training function."
        )
    if any(vertex.absent and vertex.absent.is_dead for vertex in lost):
        return (
            "Start all ranks of the group again: a rank that has died never joins. Fetch the results of all ranks as "
            "they come (ray.wait), so that the first error ends the run, and set a shorter timeout for the group."
        )
    return (
        "Fetch the results of all ranks as they come (ray.wait returns a failed call first), and on an error end the "
        "others (ray.kill, or abort their process group): they wait for the failed rank until their timeout."
    )


def _advice_for_order(found: Sequence[Gathering]) -> str:
    """All ranks of a group must make the same calls in the same order."""
    if all(is_between_two(one.call) for one in found):
        return (
            "Let one rank send while the other receives: order both by rank, or begin both at once with isend and "
            "irecv (batch_isend_irecv) and wait for them afterwards."
        )
    if _are_mixed(found):
        return (
            "Make all ranks of a group call the same collectives in the same order: look for a branch on the rank, an "
            "exception, or a loop of another length, before the lines above."
        )
    if len(found) > 1:
        return (
            "Call the collectives of the groups in the same order on all ranks: of two groups that share a rank, the "
            "same one must come first everywhere."
        )
    return (
        "Find out why not all ranks came: all must make the same calls in the same order, so look for an early return, "
        "an error that was handled, or a shorter loop on the rank that is not there."
    )


def _advice_for_calls(finding: Finding, teller: Teller, found: Sequence[Gathering]) -> str:
    """A call to a rank that is in a collective waits until that ends."""
    workers = {vertex.worker_id for one in found for vertex in one.inside}
    queued = {
        v.label for v in teller.vertices_of(finding.members) if v.worker_id is None and _worker_of(teller, v) in workers
    }
    what = names.listed(sorted(queued), " or ")
    if not what:
        return "Let no rank wait for what others do only after the collective that it has not entered: enter it first."
    return (
        f"Do not wait for {what} while its rank is in a collective that needs the caller: fetch the value before, or "
        "let it run meanwhile (a concurrency group for it, or a thread of its own)."
    )


# The ranks in the calls


def _calls_in_words(found: Sequence[Gathering], verbs: tuple[str, str]) -> list[str]:
    """``ranks 0-1 are in all_reduce and ranks 2-3 in broadcast of group default_pg``, for each group."""
    by_group: dict[GroupId, list[Gathering]] = defaultdict(list)
    for one in found:
        by_group[group_id(one.call.group)].append(one)
    words = [names.process_group(some[0].call.group) for some in by_group.values()]
    texts = []
    for name, some in zip(words, by_group.values(), strict=True):
        of = f"{name} ({names.ranks(some[0].call.group.ranks)})" if words.count(name) > 1 else name
        if some[0].call.group.library == DATA:
            texts.append(_split_in_words(some[0]))
            continue
        first = f"{names.ranks(some[0].ranks)} {verbs[len(some[0].ranks) > 1]} in {some[0].operation}"
        rest = (f"{names.ranks(one.ranks)} in {one.operation}" for one in some[1:])
        texts.append(f"{names.listed([first, *rest])} of {of}")
    return texts


def _split_in_words(one: Gathering) -> str:
    """``split 0 of streaming_split waits until all 2 splits are read; split 1 is not``."""
    group = one.call.group
    missing = [rank for rank in group.ranks if rank not in one.ranks]
    waits, are = "wait" + "s" * (len(one.ranks) == 1), "are" if len(missing) > 1 else "is"
    return (
        f"{names.ranks(one.ranks, group)} of streaming_split {waits} until all {len(group.ranks)} splits are read, "
        f"and {names.ranks(missing, group)} {are} not"
    )


def _step_inside(one: Gathering, teller: Teller) -> Step:
    """``Ranks 0-2 are in all_reduce of group dp, and wait for rank 3``, and where the first of them is."""
    is_one, missing = len(one.inside) == 1, _of(one.inside[0]).missing
    first = _caller(teller, one.inside[0])
    who = teller.member(first)
    ranks, members = names.ranks(one.ranks, one.call.group).capitalize(), one.call.group.ranks
    of = f" of {len(members)}" if members == tuple(range(len(members))) else ""
    parts = (
        f"{ranks}{of} {'is' if is_one else 'are'} in ",
        f"{one.operation} of {names.process_group(one.call.group)}",
        f", and wait{'s' * is_one} for {names.ranks(missing, one.call.group)}" if missing else "",
        fails_in(teller.observed, one.call),
        f"; {'it is' if is_one else 'the first of them is'} {first.label}",
        f" ({who.place})" if who.place else "",
    )
    return at("".join(parts), who, first)


def _caller(teller: Teller, vertex: Vertex) -> Vertex:
    """The execution of the user's that is in a call on a group by calling an actor, in which this one stands for it.

    That is the one that has made the call, or where a library's thread has, the one that waits for this thread.
    """
    if _of(vertex).call.group.library not in BY_CALLS:
        return vertex
    level, seen = [vertex.key], {vertex.key}
    for _ in range(FOLLOWED):
        before = [one for one in _waiters(teller, level) if one.key not in seen]
        for one in before:
            execution = execution_of(teller.observed, one)
            if execution is not None and placing.is_users(teller.observed, execution):
                return one
        level = [one.key for one in before]
        seen.update(level)
    return vertex


def _waiters(teller: Teller, keys: Collection[Key]) -> list[Vertex]:
    """The executions that wait for one of these."""
    executions = (one for one in teller.vertices.values() if one.kind == "execution")
    return [one for one in executions if not set(targets_of(one)).isdisjoint(keys)]


# The ranks that are elsewhere


def _others(finding: Finding, teller: Teller) -> list[tuple[Vertex, int]]:
    """The executions among the members that are in no call of these groups, though they belong to a missing rank."""
    waits = [_of(vertex) for vertex in teller.vertices_of(finding.members) if _is_in_group(vertex)]
    ranks = {(wait.call.group.library, wait.call.group.world, rank) for wait in waits for rank in wait.missing}
    late = {
        target: vertex.absent.rank
        for vertex in _absent(finding, teller)
        if vertex.absent
        for target in targets_of(vertex)
    }
    known = described(finding, teller)
    found = []
    for vertex in teller.vertices_of(finding.members):
        if vertex.kind != "execution" or vertex.key in known:
            continue
        execution = execution_of(teller.observed, vertex)
        if execution and vertex.task_id is None and not placing.is_users(teller.observed, execution):
            continue
        process = teller.observed.process(vertex.worker_id or "")
        own = [g.rank for g in (process.process_groups if process else ()) if (g.library, g.world, g.rank) in ranks]
        rank = own[0] if own else late.get(vertex.key)
        if rank is not None:
            found.append((vertex, rank))
    return found


def _elsewhere(finding: Finding, teller: Teller) -> Iterator[str]:
    """``rank 3 is in ray.get on Reward.score, which calls rank 0``; ranks in the same words as one."""
    routes = _Routes(finding, teller)
    alike: dict[str, list[int]] = defaultdict(list)
    for vertex, rank in _others(finding, teller):
        alike[routes.in_words(vertex)].append(rank)
    for words, ranks in alike.items():
        yield f"{names.ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} in {words}"


class _Routes:
    """From what the other ranks wait for to the ranks that are in the calls."""

    def __init__(self, finding: Finding, teller: Teller) -> None:
        self._teller = teller
        self._keys = {*finding.members, *finding.helpers, *finding.blocked_behind}
        found = gatherings(finding, teller)
        self._ranks = {vertex.worker_id: _rank(vertex) for one in found for vertex in one.inside}

    def in_words(self, vertex: Vertex) -> str:
        """``ray.get on Reward.score, which calls rank 0``."""
        assert vertex.wait is not None, "members of a finding wait"
        call = vertex.wait.what or vertex.wait.kind
        first = self._next(vertex)
        if first is None:
            return call
        reached = self._reached(first)
        if reached is None:
            return f"{call} on {first.label}"
        other, count, is_call = reached
        if count == 0:
            return f"{call} on {first.label}, {'queued on' if is_call else 'which is'} rank {other}"
        how = "calls" if is_call and count == 1 else "waits for" if count == 1 else "in the end waits for"
        return f"{call} on {first.label}, which {how} rank {other}"

    def _reached(self, first: Vertex) -> tuple[int, int, bool] | None:
        """The first rank in a call on the way from here, after how many steps, and whether by a queued call."""
        vertex: Vertex | None = first
        for count in range(FOLLOWED):
            if vertex is None:
                return None
            worker_id = _worker_of(self._teller, vertex)
            if worker_id in self._ranks:
                return self._ranks[worker_id], count, vertex.worker_id is None
            vertex = self._next(vertex)
        return None

    def _next(self, vertex: Vertex) -> Vertex | None:
        """What a vertex waits for, of what takes part in the finding."""
        return next((self._teller.vertices[key] for key in targets_of(vertex) if key in self._keys), None)


def _worker_of(teller: Teller, vertex: Vertex) -> str | None:
    """The worker of an execution, or that of the actor that a call is queued on."""
    if vertex.worker_id is not None:
        return vertex.worker_id
    actor = teller.observed.actors.get(actor_of_task(vertex.task_id) or "" if vertex.task_id else "")
    return actor.worker_id if actor else None


# The ranks that run nothing


def _absent(finding: Finding, teller: Teller) -> list[Vertex]:
    """What stands for ranks that no execution brings to the call; each rank once."""
    keys = dict.fromkeys((*finding.members, *finding.helpers))
    vertices = [vertex for vertex in teller.vertices_of(keys) if vertex.absent]
    return sorted(vertices, key=lambda vertex: (vertex.absent.rank if vertex.absent else 0, str(vertex.key)))


def _failure(situation: Situation, vertex: Vertex) -> FailedTask | None:
    """The last failed call of an actor that runs nothing."""
    absent = vertex.absent
    if absent is None or not absent.is_idle or absent.actor_id is None:
        return None
    failed = [task for task in situation.observed.snapshot.failed_tasks if task.actor_id == absent.actor_id]
    return max(failed, key=lambda task: task.failed_at or 0.0, default=None)


def _why_lost(teller: Teller, vertex: Vertex) -> str | None:
    """``rank 1's execute_model raised RuntimeError: ..., and its result was never fetched``."""
    absent = vertex.absent
    if absent is None:
        return None
    if vertex.never:
        return f"{vertex.label} {vertex.never}"
    if absent.is_dead:
        actor = teller.observed.actors.get(absent.actor_id or "")
        cause = ((actor.death_cause if actor else None) or "").partition(". ")[0].removesuffix(".")
        who = f" ({names.actor(actor)})" if actor else ""
        return f"rank {absent.rank}{who} has died{f': {cause[:SHOWN_ERROR]}' if cause else ''}"
    failed = _failure(teller.situation, vertex)
    if failed is None:
        return None
    verb = "raised" if failed.error_type == RAISED else "failed:"
    fetched = ", and its result was never fetched" if failed.is_held else ""
    return f"rank {absent.rank}'s {failed.name} {verb} {(failed.error or failed.error_type)[:SHOWN_ERROR]}{fetched}"


def _why_idle(teller: Teller, vertex: Vertex) -> str | None:
    if vertex.absent is None or not vertex.absent.is_idle:
        return None
    return f"{_name_of(teller, vertex)} runs nothing, and all that could call it waits for the others"


def _step_of_absent(teller: Teller, vertex: Vertex, text: str) -> Step:
    failed = _failure(teller.situation, vertex)
    text = f"{text[0].upper()}{text[1:]}"
    return Step(
        text=text,
        vertex=vertex.key,
        file=failed.file if failed else None,
        line=failed.line if failed else None,
        source=failed.source if failed else None,
    )


def _name_of(teller: Teller, vertex: Vertex) -> str:
    """``rank 2 (actor Rank "b")``."""
    absent = vertex.absent
    assert absent is not None, "it stands for a rank"
    actor = teller.observed.actors.get(absent.actor_id or "")
    return f"rank {absent.rank}{f' ({names.actor(actor)})' if actor else ''}"


def _is_in_group(vertex: Vertex) -> bool:
    return vertex.wait is not None and vertex.wait.of_group is not None


def _of(vertex: Vertex) -> GroupWait:
    assert vertex.wait is not None, "only waits are in groups"
    assert vertex.wait.of_group is not None, "only those in calls on groups are"
    return vertex.wait.of_group


def _rank(vertex: Vertex) -> int:
    return _of(vertex).call.group.rank


def _id(call: GroupCall) -> tuple[object, ...]:
    """What is one call in all that are in it; a send or receive is for one other rank."""
    return (*group_id(call.group), call.operation, (call.group.rank, call.peer) if is_between_two(call) else None)

"""The words of findings about calls on process groups: which ranks are in which call, and which are elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings.wording.failures import RAISED, SHOWN_ERROR
from dstack.analysis.findings.wording.group_ranks import (
    CollectiveCall,
    GroupRanks,
    failure_of,
    group_wait,
    has_lost_rank,
    rank_of,
    ranks_in,
)
from dstack.analysis.findings.wording.narration import Narrator, more
from dstack.analysis.graph.process_groups.calls import GroupId, is_between_two
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import fails_in, step_at
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Finding, Step, Vertex
from dstack.model import DATA, actor_of_task
from dstack.vertex_keys import Key

__all__ = [
    "advice",
    "described",
    "has_lost_rank",
    "headline",
    "late_executions",
    "steps",
    "with_ranks",
    "without_described",
]
SHOWN_PARTS = 4
SHOWN_CALLS = 8
FOLLOWED = 6
"""So many steps from what a rank waits for to another rank are followed."""


def described(finding: Finding, narrator: Narrator) -> set[Key]:
    """The vertices that the steps about calls on groups describe."""
    return ranks_in(finding, narrator).described


def headline(finding: Finding, narrator: Narrator) -> str | None:
    """``ranks 0-2 are in all_reduce of group dp; rank 3 is in ray.get for Reward.score, which calls rank 0``."""
    group_ranks = ranks_in(finding, narrator)
    found = group_ranks.calls
    if not found:
        return None
    if lost := [text for vertex in group_ranks.absent if (text := _why_lost(narrator, vertex))]:
        return "; ".join((*lost, *_calls_in_words(found, ("waits", "wait"))))
    idle = (text for vertex in group_ranks.absent if (text := _why_idle(narrator, vertex)))
    parts = [*_calls_in_words(found, ("is", "are")), *_elsewhere(finding, narrator, group_ranks), *idle]
    rest = f"; and {len(parts) - SHOWN_PARTS} more" if len(parts) > SHOWN_PARTS else ""
    return "; ".join(parts[:SHOWN_PARTS]) + rest


def steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """Each call with the ranks in it and where the first of them is, then the ranks that are lost or idle."""
    group_ranks = ranks_in(finding, narrator)
    found = [one for one in group_ranks.calls if group_wait(one.inside[0]).missing]
    yield from (_step_inside(one, group_ranks.caller(one.inside[0]), narrator) for one in found[:SHOWN_CALLS])
    yield from more(len(found) - SHOWN_CALLS, "such calls")
    yield from absent_steps(finding, narrator)


def absent_steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """The ranks that are lost or idle, and why."""
    for vertex in ranks_in(finding, narrator).absent:
        if text := _why_lost(narrator, vertex) or _why_idle(narrator, vertex):
            yield _step_of_absent(narrator, vertex, text)


def parts(finding: Finding, narrator: Narrator) -> Iterator[tuple[list[Vertex], str, str]]:
    """Each call with the ranks in it: where the first of them is, then all; their name; and what they do.

    As ``ranks 0-2 of 4: Worker.step`` and ``in all_reduce of group dp, waiting for rank 3``.
    """
    ranks = ranks_in(finding, narrator)
    for one in ranks.calls:
        first = ranks.caller(one.inside[0])
        call, missing = one.call, group_wait(one.inside[0]).missing
        rest = f", waiting for {names.ranks(missing, call.group)}" if missing else ""
        does = f"in {one.operation} of {names.process_group(call.group)}{rest}{fails_in(narrator.index, call)}"
        keys = dict.fromkeys([first.key, *(ranks.caller(vertex).key for vertex in one.inside)])
        keys |= dict.fromkeys(vertex.key for vertex in one.inside)
        yield narrator.vertices_of(keys), f"{_ranks_of(one)}: {first.label}", does


def _ranks_of(one: CollectiveCall) -> str:
    """``ranks 0-2 of 4``, where the group is made of the first so many ranks."""
    members = one.call.group.ranks
    of = f" of {len(members)}" if members == tuple(range(len(members))) else ""
    return f"{names.ranks(one.ranks, one.call.group)}{of}"


def with_ranks(finding: Finding, narrator: Narrator, steps_: Iterable[Step]) -> Iterator[Step]:
    """The steps, with the ranks of executions that others wait for in a call on a group."""
    ranks = {vertex.key: rank for vertex, rank in ranks_in(finding, narrator).elsewhere}
    for step in steps_:
        rank = ranks.get(step.vertex) if step.vertex else None
        yield step if rank is None else replace(step, text=f"Rank {rank}: {step.text}")


def without_described(finding: Finding, narrator: Narrator) -> Finding:
    """The finding without those behind it that the steps about calls on groups describe."""
    known = described(finding, narrator)
    return replace(finding, blocked_behind=tuple(key for key in finding.blocked_behind if key not in known))


def late_executions(finding: Finding, narrator: Narrator) -> list[Key]:
    """The executions among the members that belong to a missing rank."""
    return [vertex.key for vertex, _ in ranks_in(finding, narrator).elsewhere]


def advice(finding: Finding, narrator: Narrator) -> str | None:
    """How to make the ranks come together; None where no member is in a call of a group."""
    group_ranks = ranks_in(finding, narrator)
    found = group_ranks.calls
    if not found:
        return None
    lost = [vertex for vertex in group_ranks.absent if _why_lost(narrator, vertex)]
    if lost:
        return _advice_for_lost(lost, names.ranks(sorted({one.absent.rank for one in lost if one.absent})))
    if fix := _advice_for_data({one.call.group.library for one in found}):
        return fix
    if any(one.call.transfer for one in found):
        return (
            "Let one process request all transfers between these actors, or wait for each transfer before requesting "
            "the next: requests of two callers may arrive in a different order at each actor."
        )
    is_for_calls = bool(group_ranks.elsewhere) and not _are_mixed(found)
    return _advice_for_calls(finding, narrator, group_ranks) if is_for_calls else _advice_for_order(found)


def _are_mixed(found: Sequence[CollectiveCall]) -> bool:
    """Whether members of one group are in several calls of it."""
    return len({one.group for one in found}) < len(found)


def _advice_for_data(libraries: set[str]) -> str | None:
    """Where readers of Data wait for each other, or for ranks that wait in another library."""
    if libraries == {DATA}:
        return (
            "Read all splits at the same time: start every reader before waiting for one of them (one ray.get for all "
            "calls), and let no reader wait for another before it iterates."
        )
    if DATA in libraries:
        return "Make all ranks read their data and call collectives (such as ray.train.report) in the same order."
    return None


def _advice_for_lost(lost: Sequence[Vertex], ranks: str) -> str:
    if any(vertex.never for vertex in lost):
        return (
            f"Find out why the training function of {ranks} ended: all ranks must make the same calls, the same number "
            "of times. Look for a branch on the rank, an early return or a shorter loop."
        )
    if any(vertex.absent and vertex.absent.is_dead for vertex in lost):
        return (
            f"Restart all ranks of the group: {ranks} died. Fetch the results of all ranks with "
            "ray.wait, so that the first error ends the run, and set a shorter timeout for the group."
        )
    return (
        f"Correct the error of {ranks}. Fetch the results of all ranks with ray.wait (it returns a failed call first), "
        "and end the other ranks on an error (ray.kill, or abort their process group)."
    )


def _advice_for_order(found: Sequence[CollectiveCall]) -> str:
    """All ranks of a group must make the same calls in the same order."""
    if all(is_between_two(one.call) for one in found):
        return (
            "Let one rank send while the other receives: order both by rank, or start both with isend and irecv "
            "(batch_isend_irecv) and wait for them afterwards."
        )
    if _are_mixed(found):
        return (
            f"Call {_operations(found)} in the same order on all ranks: look for a branch on the rank, an exception, "
            "or a shorter loop before these lines."
        )
    if len(found) > 1:
        return f"Call {_operations(found)} in the same order on all ranks."
    missing = names.ranks(group_wait(found[0].inside[0]).missing, found[0].call.group)
    return (
        f"Find out why {missing} {words.word(len(group_wait(found[0].inside[0]).missing), 'is', 'are')} missing: all "
        "ranks must make the same calls in the same order. Look for an early return, a handled error, or a shorter "
        "loop there."
    )


def _operations(found: Sequence[CollectiveCall]) -> str:
    """``all_reduce of group tp and broadcast of group dp``."""
    parts = dict.fromkeys(f"{one.operation} of {names.process_group(one.call.group)}" for one in found)
    return words.shortly(list(parts), SHOWN_PARTS)


def _advice_for_calls(finding: Finding, narrator: Narrator, group_ranks: GroupRanks) -> str:
    """A call to a rank that is in a collective waits until that ends."""
    found = group_ranks.calls
    workers = {vertex.worker_id for one in found for vertex in one.inside}
    queued = {
        v.label
        for v in narrator.vertices_of(finding.members)
        if v.worker_id is None and _worker_of(narrator, v) in workers
    }
    what = words.listed(sorted(queued), " or ")
    if not what:
        targets = (key for vertex, _ in group_ranks.elsewhere for key in targets_of(vertex))
        awaited = sorted({vertex.label for vertex in narrator.vertices_of(targets)})
        return (
            f"Enter {_operations(found)} and wait for {words.shortly(awaited, SHOWN_PARTS)} in the same order on all "
            "ranks: here each rank waits for what another rank does later."
        )
    return (
        f"Do not wait for {what} while its rank is in a collective that needs the caller: fetch the value before it, "
        f"or give {what} its own concurrency group or thread."
    )


def _calls_in_words(found: Sequence[CollectiveCall], verbs: tuple[str, str]) -> list[str]:
    """``ranks 0-1 are in all_reduce and ranks 2-3 in broadcast of group default_pg``, for each group."""
    by_group: dict[GroupId, list[CollectiveCall]] = defaultdict(list)
    for one in found:
        by_group[one.group].append(one)
    called = [names.process_group(some[0].call.group) for some in by_group.values()]
    texts = []
    for name, some in zip(called, by_group.values(), strict=True):
        of = f"{name} ({names.ranks(some[0].call.group.ranks)})" if called.count(name) > 1 else name
        if some[0].call.group.library == DATA:
            texts.append(_split_in_words(some[0]))
            continue
        first = f"{names.ranks(some[0].ranks)} {verbs[len(some[0].ranks) > 1]} in {some[0].operation}"
        rest = (f"{names.ranks(one.ranks)} in {one.operation}" for one in some[1:])
        texts.append(f"{words.listed([first, *rest])} of {of}")
    return texts


def _split_in_words(one: CollectiveCall) -> str:
    """``split 0 of streaming_split waits until all 2 splits are read; split 1 is not read``."""
    group = one.call.group
    missing = [rank for rank in group.ranks if rank not in one.ranks]
    waits, are = words.word(len(one.ranks), "waits", "wait"), words.word(len(missing), "is", "are")
    return (
        f"{names.ranks(one.ranks, group)} of streaming_split {waits} until all {len(group.ranks)} splits are read, "
        f"and {names.ranks(missing, group)} {are} not read"
    )


def _step_inside(one: CollectiveCall, first: Vertex, narrator: Narrator) -> Step:
    """``Ranks 0-2 are in all_reduce of group dp, and wait for rank 3``, and where the first of them is."""
    is_one, missing = len(one.inside) == 1, group_wait(one.inside[0]).missing
    who = narrator.member(first)
    parts = (
        f"{words.capitalised(_ranks_of(one))} {words.word(len(one.inside), 'is', 'are')} in ",
        f"{one.operation} of {names.process_group(one.call.group)}",
        f", and {words.word(len(one.inside), 'waits', 'wait')} for {names.ranks(missing, one.call.group)}"
        if missing
        else "",
        fails_in(narrator.index, one.call),
        f"; {'it is' if is_one else 'the first of them is'} {first.label}",
        f" ({who.place})" if who.place else "",
    )
    return step_at("".join(parts), who, first)


def _elsewhere(finding: Finding, narrator: Narrator, group_ranks: GroupRanks) -> Iterator[str]:
    """``rank 3 is in ray.get for Reward.score, which calls rank 0``; ranks in the same words as one."""
    routes = _Routes(finding, narrator, group_ranks.calls)
    inside = {vertex.worker_id for one in group_ranks.calls for vertex in one.inside}
    alike: dict[str, list[int]] = defaultdict(list)
    for vertex, rank in group_ranks.elsewhere:
        if vertex.worker_id in inside:
            continue
        alike[routes.in_words(vertex)].append(rank)
    for route, ranks in alike.items():
        yield f"{names.ranks(ranks)} {words.word(len(ranks), 'is', 'are')} in {route}"


class _Routes:
    """From what the other ranks wait for to the ranks that are in the calls."""

    def __init__(self, finding: Finding, narrator: Narrator, found: Sequence[CollectiveCall]) -> None:
        self._narrator = narrator
        self._keys = {*finding.members, *finding.helpers, *finding.blocked_behind}
        self._ranks = {vertex.worker_id: rank_of(vertex) for one in found for vertex in one.inside}

    def in_words(self, vertex: Vertex) -> str:
        """``ray.get for Reward.score, which calls rank 0``."""
        assert vertex.wait is not None, "members of a finding wait"
        call = vertex.wait.what or vertex.wait.kind
        first = self._next(vertex)
        if first is None:
            return call
        reached = self._reached(first)
        if reached is None:
            return f"{call} for {first.label}"
        other, count, is_call = reached
        if count == 0:
            return f"{call} for {first.label}, {'queued on' if is_call else 'which is'} rank {other}"
        how = "calls" if is_call and count == 1 else "waits for" if count == 1 else "indirectly waits for"
        return f"{call} for {first.label}, which {how} rank {other}"

    def _reached(self, first: Vertex) -> tuple[int, int, bool] | None:
        """The first rank in a call on the way from here, after how many steps, and whether by a queued call."""
        vertex: Vertex | None = first
        for count in range(FOLLOWED):
            if vertex is None:
                return None
            worker_id = _worker_of(self._narrator, vertex)
            if worker_id in self._ranks:
                return self._ranks[worker_id], count, vertex.worker_id is None
            vertex = self._next(vertex)
        return None

    def _next(self, vertex: Vertex) -> Vertex | None:
        """What a vertex waits for, of what takes part in the finding."""
        return next((self._narrator.vertices[key] for key in targets_of(vertex) if key in self._keys), None)


def _worker_of(narrator: Narrator, vertex: Vertex) -> str | None:
    """The worker of an execution, or that of the actor that a call is queued on."""
    if vertex.worker_id is not None:
        return vertex.worker_id
    actor = narrator.index.actors.get(actor_of_task(vertex.task_id) or "" if vertex.task_id else "")
    return actor.worker_id if actor else None


def _why_lost(narrator: Narrator, vertex: Vertex) -> str | None:
    """``rank 1's execute_model raised RuntimeError: ..., and its result was never fetched``."""
    absent = vertex.absent
    if absent is None:
        return None
    if vertex.never:
        return f"{vertex.label} {vertex.never}"
    if absent.is_dead:
        actor = narrator.index.actors.get(absent.actor_id or "")
        cause = ((actor.death_cause if actor else None) or "").partition(". ")[0].removesuffix(".")
        who = f" ({names.actor(actor)})" if actor else ""
        return f"rank {absent.rank}{who} has died{f': {cause[:SHOWN_ERROR]}' if cause else ''}"
    failed = failure_of(narrator.reduced, vertex)
    if failed is None:
        return None
    verb = "raised" if failed.error_type == RAISED else "failed:"
    fetched = ", and its result was never fetched" if failed.is_held else ""
    return f"rank {absent.rank}'s {failed.name} {verb} {(failed.error or failed.error_type)[:SHOWN_ERROR]}{fetched}"


def _why_idle(narrator: Narrator, vertex: Vertex) -> str | None:
    if vertex.absent is None or not vertex.absent.is_idle:
        return None
    return f"{_name_of(narrator, vertex)} is idle, and all its possible callers wait for the other ranks"


def _step_of_absent(narrator: Narrator, vertex: Vertex, text: str) -> Step:
    failed = failure_of(narrator.reduced, vertex)
    return Step(
        text=words.capitalised(text),
        vertex=vertex.key,
        file=failed.file if failed else None,
        line=failed.line if failed else None,
        source=failed.source if failed else None,
    )


def _name_of(narrator: Narrator, vertex: Vertex) -> str:
    """``rank 2 (actor Rank "b")``."""
    absent = vertex.absent
    assert absent is not None, "it stands for a rank"
    actor = narrator.index.actors.get(absent.actor_id or "")
    return f"rank {absent.rank}{f' ({names.actor(actor)})' if actor else ''}"

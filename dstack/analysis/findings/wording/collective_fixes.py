"""The fix for a finding about calls on process groups."""

from __future__ import annotations

from collections.abc import Sequence

from dstack import words
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.wording.collectives import SHOWN_PARTS, call_in_words, why_lost, worker_of
from dstack.analysis.findings.wording.group_ranks import CollectiveCall, GroupRanks, ranks_in
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.graph.process_groups.calls import is_between_two
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Vertex
from dstack.observed_calls import DATA


def collective_fix(draft: Draft, narrator: Narrator) -> str | None:
    """How all ranks of a group can enter the same call; None if no member is in a call of a group."""
    ranks = ranks_in(draft, narrator)
    if not ranks.calls:
        return None
    if lost := [vertex for vertex in ranks.absent if why_lost(narrator, vertex)]:
        return _fix_for_lost(lost)
    if fix := _fix_for_data({one.call.group.library for one in ranks.calls}):
        return fix
    if any(one.call.transfer for one in ranks.calls):
        return (
            "Let one process request all transfers between these actors, or wait for each transfer before requesting "
            "the next: requests of two callers may arrive in a different order at each actor."
        )
    if ranks.elsewhere and not _are_mixed(ranks.calls):
        return _fix_for_calls(draft, narrator, ranks)
    return _fix_for_order(ranks.calls)


def _fix_for_lost(lost: Sequence[Vertex]) -> str:
    ranks = names.ranks(sorted({one.absent.rank for one in lost if one.absent}))
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


def _fix_for_data(libraries: set[str]) -> str | None:
    """For readers of Data that wait for each other, or for ranks that wait in another library."""
    if libraries == {DATA}:
        return (
            "Read all splits at the same time: start every reader before waiting for one of them (one ray.get for all "
            "calls), and let no reader wait for another before it iterates."
        )
    if DATA in libraries:
        return "Make all ranks read their data and call collectives (such as ray.train.report) in the same order."
    return None


def _are_mixed(calls: Sequence[CollectiveCall]) -> bool:
    """Whether members of one group are in several calls of it."""
    return len({one.group for one in calls}) < len(calls)


def _fix_for_order(calls: Sequence[CollectiveCall]) -> str:
    """For ranks that make different calls, or in a different order."""
    if all(is_between_two(one.call) for one in calls):
        return (
            "Let one rank send while the other receives: order both by rank, or start both with isend and irecv "
            "(batch_isend_irecv) and wait for them afterwards."
        )
    if _are_mixed(calls):
        return (
            f"Call {_operations(calls)} in the same order on all ranks: look for a branch on the rank, an exception, "
            "or a shorter loop before these lines."
        )
    if len(calls) > 1:
        return f"Call {_operations(calls)} in the same order on all ranks."
    missing = calls[0].missing
    return (
        f"Find out why {names.ranks(missing, calls[0].call.group)} {words.word(len(missing), 'is', 'are')} missing: "
        "all ranks must make the same calls in the same order. Look for an early return, a handled error, or a "
        "shorter loop there."
    )


def _operations(calls: Sequence[CollectiveCall]) -> str:
    """``all_reduce of group tp and broadcast of group dp``."""
    return words.shortly(list(dict.fromkeys(map(call_in_words, calls))), shown=SHOWN_PARTS)


def _fix_for_calls(draft: Draft, narrator: Narrator, ranks: GroupRanks) -> str:
    """For missing ranks that wait for calls: a rank in a collective runs no other call."""
    workers = {vertex.worker_id for one in ranks.calls for vertex in one.inside}
    calls = (vertex for vertex in narrator.vertices_of(draft.waits) if vertex.worker_id is None)
    queued = words.listed(sorted({describe(one) for one in calls if worker_of(narrator, one) in workers}), " or ")
    if queued:
        return (
            f"Do not wait for {queued} while its rank is in a collective that needs the caller: fetch the value before "
            f"it, or give {queued} its own concurrency group or thread."
        )
    targets = (key for vertex, _ in ranks.elsewhere for key in targets_of(vertex))
    awaited = sorted({describe(vertex) for vertex in narrator.vertices_of(targets)})
    return (
        f"Enter {_operations(ranks.calls)} and wait for {words.shortly(awaited, shown=SHOWN_PARTS)} in the same order "
        "on all ranks: here each rank waits for what another rank does later."
    )

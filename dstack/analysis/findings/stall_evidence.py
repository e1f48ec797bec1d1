"""Whether an open knot stands still: all of it ends in calls that somebody else must end, and nobody is seen to.

A condition, a queue, a collective or a channel is ended by somebody, but nothing tells by whom. Where everybody in the
knot was seen twice in the same wait, and nobody else of its jobs was seen to run, or escaped being seen, it is likely
that nobody will. That is no proof: a message may yet come from outside of Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dstack.analysis.findings.reduced_graph import ReducedGraph, is_outside
from dstack.analysis.graph.child_processes import may_run_code
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import FinalBlocker, Vertex
from dstack.vertex_keys import Key


def is_idle(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether nobody in it waits through Ray: a consumer at its queue, a driver parked until it is told to end."""
    ends = _ends(reduced, chain)
    return bool(ends) and all(map(is_outside, ends)) and not _is_through_ray(reduced, chain)


def may_be_stalled(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether the knot has the shape of a standstill; what was seen of it need not have been seen twice."""
    if not (_ends_elsewhere(reduced, chain) and _is_through_ray(reduced, chain)):
        return False
    waits = (reduced.vertices[key].wait for key in _waiters(reduced, chain) - _polling(reduced, chain))
    return not any(wait.timeout_s is not None for wait in waits if wait)


def is_stalled(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether the knot has that shape, did not move between two looks, and nobody seems to be the other side."""
    if not may_be_stalled(reduced, chain):
        return False
    if not all(reduced.vertices[key].is_confirmed for key in _waiters(reduced, chain)):
        return False
    jobs = reduced.jobs_of(chain.waiters)
    if not reduced.hidden_jobs.isdisjoint((*jobs, None)) or has_busy_children(reduced.index, jobs):
        return False
    return not any(possible_wakers(reduced, jobs))


def possible_wakers(reduced: ReducedGraph, jobs: Iterable[str]) -> Iterator[Vertex]:
    """Those of the jobs who run, or may: each of them could be the other side."""
    for job in (*jobs, None):
        yield from reduced.runners.get(job, ())


def has_busy_children(index: SampleIndex, jobs: Iterable[str | None]) -> bool:
    """Whether a process that a worker of these jobs has started runs, or may: then it could be the other side."""
    of_these = {*jobs, None}
    processes = (index.process(w.worker_id) for w in index.snapshot.workers if w.job_id in of_these)
    return any(may_run_code(index, process) for process in processes if process)


def _ends_elsewhere(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether all chains of the knot end in calls that somebody unknown must end."""
    ends = _ends(reduced, chain)
    return bool(ends) and all(end.waker_of for end in ends)


def _ends(reduced: ReducedGraph, chain: OpenChain) -> list[Vertex]:
    """What the chains of a knot end in, and nobody who is stuck."""
    waiters = _waiters(reduced, chain)
    targets = {target for key in waiters for target in targets_of(reduced.vertices[key])} - waiters
    found = (reduced.vertices[target] for target in targets if target not in reduced.stuck)
    return [vertex for vertex in found if vertex.kind != "lifetime" or not _polling(reduced, chain)]


def with_users_of_polled(reduced: ReducedGraph, chain: OpenChain) -> OpenChain:
    """The knot; where a loop polls an actor by calls, with those that use that actor, and what their waits end in."""
    if not _polling(reduced, chain):
        return chain
    waiters = sorted(_waiters(reduced, chain), key=str)
    ends = sorted((vertex.key for vertex in _ends(reduced, chain)), key=str)
    direct = {end: sum(end in targets_of(reduced.vertices[key]) for key in waiters) for end in ends}
    blockers = [FinalBlocker(vertex=end, waiters_direct=direct[end], waiters_total=len(waiters)) for end in ends]
    return OpenChain(waiters, blockers)


def _waiters(reduced: ReducedGraph, chain: OpenChain) -> set[Key]:
    """What waits in a knot; where a loop polls an actor by calls, also those that use that actor."""
    found = set(chain.waiters)
    if not _polling(reduced, chain):
        return found
    ahead = list(found)
    while ahead:
        for target in targets_of(reduced.vertices[ahead.pop()]):
            vertex = reduced.vertices[target]
            if target in found or target in reduced.stuck or vertex.wait is None:
                continue
            ahead.append(target)
            found.add(target)
    return {key for key in found if reduced.vertices[key].kind != "lifetime"}


def _polling(reduced: ReducedGraph, chain: OpenChain) -> set[Key]:
    """The loops of a knot that poll by calls: they wait for what uses the polled actors."""
    polls = reduced.index.polls
    return {key for key in chain.waiters if key in polls and polls[key].actors}


def _is_through_ray(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether somebody in the knot waits for what is outside of its own process."""
    return any(
        vertex.worker_id is None or reduced.vertices[target].worker_id != vertex.worker_id
        for vertex in (reduced.vertices[key] for key in chain.waiters)
        for target in targets_of(vertex)
        if not is_outside(reduced.vertices[target])
    )

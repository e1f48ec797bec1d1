"""Stalled: an open chain that ends in calls with unknown wakers, while no possible waker runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from dstack.analysis.findings import failures, meetings
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.next_step import advice_at_end, expectation, log_of_worker
from dstack.analysis.findings.kinds.open_chain import (
    Waiter,
    blocker_steps,
    draft_of,
    other_side_steps,
    waiter_of,
)
from dstack.analysis.findings.kinds.open_chain import summary as open_chain_summary
from dstack.analysis.findings.narration import Narrator
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.shared_calls import shared_call_in_words, shared_call_steps
from dstack.analysis.findings.vertex_roles import is_outside
from dstack.analysis.graph.call_waits import reach_of
from dstack.analysis.graph.pending_tasks import is_queued
from dstack.analysis.index.process_index import PolledActors
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.ends import ended_children, ended_in_words
from dstack.analysis.naming.names import waiting
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Advice, FinalBlocker, Step, Vertex
from dstack.model.vertex_facts import ReasonKind
from dstack.model.vertex_keys import Key, UnknownKey
from dstack.observed.processes import EndedChild
from dstack.words import duration, shortly, word

NOT_PROVEN = "likely, not proven: a message from outside could still end it"
NODE_MAY_JOIN = "no hang yet: such a node may still join"
JOINED = "nodes joined or left a short time ago, and such a node may still join"
MAY_JOIN: Mapping[ReasonKind, str] = {
    "refused": "the autoscaler may be able to add such a node later",
    "platform event": "what the platform has not started may be such a node",
}
"""Why such a node may still join, if not for the times of others."""


class StallCheck:
    """Whether an open chain is stalled: it ends in unknown wakers, or has no end.

    If both samples show all of its waits, and no other execution of its jobs runs or is unread, it is likely that
    nothing will end them. That is no proof: a message may come from outside of Ray.
    """

    def __init__(self, reduced: ReducedGraph, chain: OpenChain) -> None:
        self._reduced = reduced
        self._chain = chain

    @property
    def is_idle(self) -> bool:
        """Whether nothing in the chain waits through Ray, as a consumer at its queue."""
        return bool(self._ends) and all(map(is_outside, self._ends)) and not self._is_through_others

    @property
    def may_be_stalled(self) -> bool:
        """Whether it has the shape of a stall, by one sample: its ends are unknown wakers, or it has none.

        Processes that read from each other have none: they may be idle services, so their waits are no deadlock.
        """
        waits = (vertex.wait for vertex in self._reduced.vertices_of(self._chain.waiters))
        is_closed = not self._ends and any(wait.kernel for wait in waits if wait)
        return (
            (is_closed or bool(self._ends)) and all(map(self._may_be_at_rest, self._ends)) and self._is_through_others
        )

    @property
    def is_stalled(self) -> bool:
        """Whether it has the shape of a stall, made no progress, and its jobs are at rest."""
        reduced = self._reduced
        if not self.may_be_stalled:
            return False
        if not all(vertex.is_confirmed or reduced.is_resting(vertex) for vertex in reduced.vertices_of(self._waiters)):
            return False
        if not all(end.kind != "execution" or reduced.is_resting(end) for end in self._ends):
            return False
        return reduced.are_at_rest(reduced.jobs_that_reach(self._chain.waiters))

    @property
    def whole_chain(self) -> OpenChain:
        """The chain; if a loop polls an actor by calls, with the users of that actor and their ends."""
        if not self._polling:
            return self._chain
        waiters = sorted(self._waiters, key=str)
        ends = sorted((vertex.key for vertex in self._ends), key=str)
        direct = {end: sum(end in targets_of(vertex) for vertex in self._reduced.vertices_of(waiters)) for end in ends}
        blockers = [FinalBlocker(vertex=end, waiters_direct=direct[end], waiters_total=len(waiters)) for end in ends]
        return OpenChain(waiters, blockers)

    @cached_property
    def _polling(self) -> set[Key]:
        """The loops of the chain that poll by calls; they wait for the users of the polled actors."""
        polls = self._reduced.index.known.polls
        return {key for key in self._chain.waiters if key in polls and isinstance(polls[key].target, PolledActors)}

    @cached_property
    def _waiters(self) -> set[Key]:
        """The waits of the chain; if a loop polls an actor by calls, also those of the users of that actor."""
        found = set(self._chain.waiters)
        if not self._polling:
            return found
        pending = list(found)
        while pending:
            targets = dict.fromkeys(targets_of(self._reduced.vertices[pending.pop()]))
            new = [key for key in targets if key not in found and self._waits_openly(key)]
            found.update(new)
            pending += new
        return {key for key in found if self._reduced.vertices[key].kind != "lifetime"}

    def _waits_openly(self, key: Key) -> bool:
        return key not in self._reduced.stuck and self._reduced.vertices[key].wait is not None

    @cached_property
    def _ends(self) -> list[Vertex]:
        """The vertices that the chain ends in, without stuck ones."""
        targets = {one for vertex in self._reduced.vertices_of(self._waiters) for one in targets_of(vertex)}
        found = self._reduced.vertices_of(targets - self._waiters - self._reduced.stuck)
        return [vertex for vertex in found if vertex.kind != "lifetime" or not self._polling]

    def _may_be_at_rest(self, end: Vertex) -> bool:
        """Whether nothing of an end runs in a job at rest: an unknown waker, any or idle code, a new node."""
        if isinstance(end.key, UnknownKey) and end.key.what == "library":
            return self._reduced.is_idle_library(end)
        if isinstance(end.key, UnknownKey) and (end.key.is_new_node or end.key.is_signal):
            return True
        is_code = self._reduced.is_any_code(end.key) or self._reduced.is_library_code(end.key)
        return end.waker_of is not None or is_code

    @cached_property
    def _is_through_others(self) -> bool:
        """Whether a wait is for something in another process: by Ray, or of the application by the kernel."""
        reduced, vertices = self._reduced, self._reduced.vertices
        waits = (vertices[key].wait for key in self._chain.waiters if reduced.is_of_application(key))
        if any(end.holders or end.mirrored for wait in waits if wait for end in wait.ends):
            return True
        return any(
            vertex.worker_id is None or vertices[target].worker_id != vertex.worker_id
            for vertex in reduced.vertices_of(self._chain.waiters)
            for target in targets_of(vertex)
            if not is_outside(vertices[target])
        )


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain without progress: it ends in unknown wakers, as far as there are any."""
    check = StallCheck(reduced, chain)
    if not check.is_stalled:
        return None
    draft = draft_of(reduced, "stalled", check.whole_chain)
    ends = ((one, reduced.vertices[one.vertex]) for one in draft.final_blockers)
    wakers = [one for one, end in ends if end.waker_of or _is_new_node(end)]
    explained = _of_ended_tasks(draft)
    wakers.sort(key=lambda one: one.vertex not in explained)
    return replace(draft, final_blockers=tuple(wakers)) if wakers else draft


def _of_ended_tasks(draft: Draft) -> set[Key]:
    """The targets of waits for objects that asyncio tasks held which have ended: these explain most."""
    index = draft.reduced.index
    held = {(*place, one) for place, tasks in index.ended_tasks.items() for task in tasks for one in task.held}
    found: set[Key] = set()
    for vertex in draft.reduced.vertices_of(draft.members) if held else ():
        if (vertex.worker_id, vertex.child_pid, reach_of(index.call_of_vertex(vertex)).object_id) in held:
            found.update(targets_of(vertex))
    return found


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """How many wait, and in which calls the chain ends."""
    failed = failures.headline(facts.failed_before)
    if _is_for_nodes(facts):
        return f"{open_chain_summary(facts, narrator)}{failed}"
    if apart := meetings.apart(facts):
        return f"{_ends_in_words(facts, narrator)}, {apart[0]}{failed}"
    ended = "".join(f"; {ended_in_words(children)}" for children in _failed_children(facts, narrator)[:1])
    other = "" if _calls(facts) or not facts.ends else "else "  # than the handler of a signal
    return f"{_ends_in_words(facts, narrator)}, and nothing {other}that could end it runs{ended}{failed}"


def doubt(facts: FindingFacts) -> str:
    """What could still end the waits, in every form of the report."""
    return NODE_MAY_JOIN if _is_for_nodes(facts) else NOT_PROVEN


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The calls with unknown wakers, what is queued behind them, and how certain the finding is."""
    yield from shared_call_steps(facts.shared_calls, narrator)
    yield from blocker_steps(
        [one for one in facts.draft.final_blockers if _is_new_node(narrator.vertices[one.vertex])], narrator
    )
    yield from other_side_steps(facts, narrator, facts.draft.members)
    if not facts.ends:
        yield from narrator.similar_steps(facts.members, "")
    yield from narrator.similar_steps(_queued(facts), "")
    if _is_for_nodes(facts):
        expected = {one.why for end in facts.ends if (one := expectation(end))}
        late = next((text for why, text in MAY_JOIN.items() if why in expected), JOINED)
        yield Step(text=f"No hang yet: {late}")
        return
    watched, jobs = duration(facts.draft.watched_s or 0.0), word(len(facts.draft.jobs), "job")
    yield Step(
        text=f"Likely, not proven: none of them moved within {watched}, and nothing else of the {jobs} is running. A "
        "message from outside of Ray could still end the wait"
    )


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What to change about a failure or a queued call; else what to inspect: those that are missing, or the end."""
    if failed := failures.fix(facts.failed_before):
        return Advice(kind="fix", text=failed)
    if _is_for_nodes(facts):
        return advice_at_end(facts, narrator)
    if (apart := meetings.apart(facts)) and apart[1]:
        return Advice(kind="fix", text=apart[1])
    if ended := _failed_children(facts, narrator):
        parent = narrator.index.workers.get(facts.members[0].worker_id or "")
        of_parent = "" if parent is None or parent.is_driver else f": {log_of_worker(parent.pid)}"
        text = f"The output of its parent process shows why {ended_in_words(ended[0], 'the ')}{of_parent}."
        return Advice(kind="next", text=text)
    uneven = [call for call in facts.shared_calls if call.is_most and (call.absent or call.idle)]
    if uneven:
        text = f"`dstack stacks` shows where those {uneven[0].name} are that are not in {uneven[0].call}."
        return Advice(kind="next", text=text)
    if queued := _queued(facts):
        text = (
            f"If {describe(queued[0])}, which is queued, would end the wait, let it run: raise max_concurrency of its "
            "actor, or give it a concurrency group."
        )
        return Advice(kind="fix", text=text)
    return advice_at_end(facts, narrator)


def _ends_in_words(facts: FindingFacts, narrator: Narrator) -> str:
    """``3 of 4 Trainer.step wait in threading.Event.wait``: the largest group in one call."""
    first = next(iter(facts.shared_calls), None)
    if not _calls(facts):
        return open_chain_summary(facts, narrator)
    if first is None:
        return f"{waiting(facts.draft.waiters_total)} in {shortly(_calls(facts))}"
    if len(first.inside) + len(first.absent) > 1:
        return shared_call_in_words(first)
    waiter = next((found for end in facts.ends if (found := waiter_of(facts, end))), None)
    shown = waiter or Waiter(first.inside[0], first.call)
    return f"{describe(shown.vertex)} waits in {shown.call}{narrator.line(shown.vertex)}"


def _failed_children(facts: FindingFacts, narrator: Narrator) -> list[list[EndedChild]]:
    """The child processes of the waiters at the end of the chains that have failed."""
    ends = {end.key for end in facts.ends}
    last = (vertex for vertex in facts.waits if not ends.isdisjoint(targets_of(vertex)))
    return [alike for vertex in last for alike in ended_children(narrator.index, vertex) if alike[0].exit_code]


def _is_for_nodes(facts: FindingFacts) -> bool:
    """Whether the chain ends only in nodes that may still join."""
    return bool(facts.ends) and all(map(_is_new_node, facts.ends))


def _is_new_node(end: Vertex) -> bool:
    return isinstance(end.key, UnknownKey) and end.key.is_new_node


def _calls(facts: FindingFacts) -> list[str]:
    """The names of the calls with unknown wakers."""
    ends = (vertex.waker_of for vertex in facts.ends)
    return list(dict.fromkeys(end.text for end in ends if end))


def _queued(facts: FindingFacts) -> list[Vertex]:
    """The actor calls that are queued."""
    return [vertex for vertex in facts.members if is_queued(vertex)]

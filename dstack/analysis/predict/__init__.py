"""Predicts deadlocks from runs that did not hang: the order graph of their calls, and what closes a cycle in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set

from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.naming import names
from dstack.analysis.predict.caller_steps import MOMENT_S, Place, name_of
from dstack.analysis.predict.capacity import capacity_needs
from dstack.analysis.predict.seen_world import SeenWorld
from dstack.analysis.solve.reordering import possible_deadlocks
from dstack.analysis.solve.world import QUEUED, Acquire, Id, Possible, Submit, WaitFor, step_yields
from dstack.model.prediction import Blocked, CapacityNeed, Hold, Overtaking, PossibleDeadlock, Prediction
from dstack.observed.outlines import ProgramOutline

CUT = "The search took too long, so some orders were not examined."
MOST = 20
"""The most possible deadlocks that are kept."""


def predict(
    histories: Sequence[HistoryIndex], shown_waits: Set[tuple[str, str]], outlines: Sequence[ProgramOutline]
) -> Prediction:
    """The deadlocks that another order of the calls of one cluster could reach; none without a history of tasks.

    Each history is taken for itself, as calls between two of them may be missing. ``shown_waits`` are pairs of tasks of
    which a sample shows the first in a wait for the second. The last outline of a job is the one that counts.
    """
    if not histories:
        return Prediction(limits=("There is no history of tasks, so no calls can be put in another order.",))
    outlines = list({one.job_id: one for one in outlines}.values())
    found: list[PossibleDeadlock] = []
    needs: dict[object, CapacityNeed] = {}
    calls: set[str] = set()
    waits: Counter[Id] = Counter()
    limits = {one.why_partial: None for one in outlines if one.why_partial}
    without_source: set[str] = set()
    for history in histories:
        seen = SeenWorld(history, shown_waits, outlines)
        outcome = possible_deadlocks(seen.world)
        known = (one for one in outcome.possible if all(key in seen.attempts for key in one.stuck))
        found += filter(None, (_Explained(seen, stuck).possible() for stuck in known))
        for need in capacity_needs(seen):
            kind = need.name, need.resource, need.awaits, need.held, need.needed
            needs[kind] = max(need, needs.get(kind, need), key=lambda one: one.minimum)
        calls.update(key for key, one in seen.attempts.items() if one.task.kind != "DRIVER_TASK")
        waits |= Counter({key: len(places) for key, places in seen.world.waits.items()})
        without_source.update(seen.without_source)
        limits.update({CUT: None} if outcome.is_cut else {})
    if left_out := min(one.history.left_out + one.history.dropped for one in histories):
        limits[f"{left_out:,} older calls are not in the history."] = None
    return Prediction(
        possible=tuple(_each_once(found)[:MOST]),
        needs=tuple(needs.values()),
        calls=len(calls),
        waits=waits.total(),
        without_source=tuple(sorted(without_source)),
        limits=tuple(limits),
    )


def _each_once(found: Iterable[PossibleDeadlock]) -> Sequence[PossibleDeadlock]:
    """Of those with the same calls at the same lines the one that the run was closest to; in their order."""
    best: dict[object, PossibleDeadlock] = {}
    for one in found:
        known = best.get(one.shape)
        if known is None or (one.gap_s or 0.0) < (known.gap_s or 0.0):
            best[one.shape] = one
    return list(best.values())


class _Explained:
    """One stuck set, in the words of the program."""

    def __init__(self, seen: SeenWorld, found: Possible) -> None:
        self._seen = seen
        self._world = seen.world
        self._stuck = found.stuck
        reached = {event.run: event.position for event in found.schedule}
        self._ended = {*found.before, *(key for key, position in reached.items() if position == seen.world.end(key))}
        self._keys = self._in_order()

    def possible(self) -> PossibleDeadlock | None:
        """The finding; None if the run itself ends in it, or if something else may exclude it."""
        if self._is_there_now() or self._may_be_excluded() or self._may_have_waited():
            return None
        first = self._seen.attempts.get(str(self._keys[0]))
        return PossibleDeadlock(
            members=tuple(map(self._member, self._keys)),
            job_id=first.task.job_id if first else "",
            changes=tuple(self._changes()),
            gap_s=self._gap_s(),
        )

    def _is_there_now(self) -> bool:
        """Whether the run itself ends in this set: then it is a deadlock, and no prediction."""
        attempts = [self._seen.attempts.get(str(key)) for key in self._keys]
        return all(one is not None and one.ended_at is None for one in attempts)

    def _may_be_excluded(self) -> bool:
        """Whether an actor may keep the calls apart by what it knows, as a lock service or a flag does.

        It has ended a call that the set needs to have ended, and only after another method of it was called by a member
        that is past its wait then, or by a caller of one.
        """
        world, attempts = self._world, self._seen.attempts
        inside = {run.server for key in self._stuck if (run := world.runs[key]).server is not None}
        later: dict[str, list[Attempt]] = defaultdict(list)
        reached = [place for one in self._stuck.items() for place in (one, *self._calls_to(one[0]))]
        for key, position in reached:
            for step in world.runs[key].steps[max(position, 0) :]:
                if not isinstance(step, Submit) or world.runs[step.run].server in inside:
                    continue
                if (call := attempts.get(str(step.run))) is not None and call.task.actor_id is not None:
                    later[call.task.actor_id].append(call)
        return any(
            ended.ended_at is not None
            and call.submitted_at is not None
            and ended.ended_at >= call.submitted_at
            and ended.task.name != call.task.name
            for ended in (attempts.get(str(key)) for key in self._ended)
            if ended is not None
            for call in later.get(ended.task.actor_id or "", ())
        )

    def _may_have_waited(self) -> bool:
        """Whether a member, or a caller of one, may have waited for another, by a wait whose refs are unknown."""
        ends = {key: self._seen.attempts[str(key)].ended_at for key in self._waiting()}
        for key, position in self._stuck.items():
            for run, at in ((key, position), *self._calls_to(key)):
                moment = self._moment(run, at)
                others = (ended for other, ended in ends.items() if other != run and ended is not None)
                if self._seen.unsure_from.get(run, at + 1) <= at and any(
                    moment is None or ended <= moment + MOMENT_S for ended in others
                ):
                    return True
        return False

    def _calls_to(self, key: Id) -> Sequence[tuple[Id, int]]:
        """The step that submitted a run, the one that submitted its caller, and so on."""
        found: dict[Id, int] = {}
        while key in self._world.submission:
            key, number = self._world.submission[key]
            if key in found:
                break
            found[key] = number
        return tuple(found.items())

    def _moment(self, key: Id, position: int) -> float | None:
        """When a run had done this step, in the run that was seen."""
        step = self._world.step(key, position)
        calls = [step.run] if isinstance(step, Submit) else step.runs if isinstance(step, WaitFor) else ()
        found = [one for call in calls if (one := self._seen.attempts.get(str(call))) is not None]
        times = [one.submitted_at if isinstance(step, Submit) else one.ended_at for one in found]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None

    def _in_order(self) -> Sequence[Id]:
        """The members, each followed by what it waits for, as far as that goes."""
        order: list[Id] = []
        waiting = [key for key in self._stuck if self._stuck[key] >= 0]
        waiting.sort(key=lambda key: self._seen.attempts[str(key)].started_at or 0.0)
        following: list[Id] = []
        while waiting or following:
            key = following.pop(0) if following else waiting[0]
            if key in waiting:
                waiting.remove(key)
            if key in order:
                continue
            order.append(key)
            following = [one for one in self._awaited(key) if one in self._stuck and one not in order] + following
            if self._stuck[key] == QUEUED:
                following += [one for one in waiting if self._holds_up(one, key)]
        return order

    def _awaited(self, key: Id) -> Sequence[Id]:
        step = self._world.step(key, self._stuck[key])
        if isinstance(step, WaitFor):
            return step.runs
        if isinstance(step, Acquire):
            places = self._stuck.items()
            return [one for one, at in places if one != key and step.token in self._world.owes(one, at)]
        return [one for one in self._world.runs[key].after if one in self._stuck]

    def _holds_up(self, key: Id, queued: Id) -> bool:
        """Whether a run at its wait has what the queued one needs."""
        run, other = self._world.runs[key], self._world.runs[queued]
        return (other.server is not None and run.server == other.server) or not run.needs.keys().isdisjoint(other.needs)

    # Members

    def _member(self, key: Id) -> Blocked:
        attempt, position = self._seen.attempts[str(key)], self._stuck[key]
        place = self._seen.places.get((key, position), Place())
        step = self._world.step(key, position)
        server = self._world.server(key)
        return Blocked(
            name=name_of(attempt.task),
            task_id=attempt.task.task_id,
            actor_id=attempt.task.actor_id,
            actor=self._actor_name(attempt.task.actor_id),
            awaits=self._awaited_name(key),
            holds=() if position == QUEUED else tuple(self._holds(key)),
            is_queued=position == QUEUED,
            held_up_by=tuple(self._keys.index(one) for one in self._holders(key)),
            file=place.file,
            line=place.line,
            source=place.source,
            blocks_loop=bool(server and server.has_loop and step is not None and not step_yields(step)),
            is_sampled=place.is_sampled,
            began_at=attempt.started_at,
            ended_at=attempt.ended_at,
        )

    def _actor_name(self, actor_id: str | None) -> str:
        """The name of an actor, if it has one, or if several of its class take part."""
        actor = self._seen.actor(actor_id or "")
        if actor is None:
            return ""
        ids = {self._seen.attempts[str(key)].task.actor_id for key in self._keys}
        same = [one for one in map(self._seen.actor, filter(None, ids)) if one and one.class_name == actor.class_name]
        is_plain = not actor.name and len(same) == 1
        return "" if is_plain else names.short_actor(actor.class_name, actor.name, actor.actor_id)

    def _awaited_name(self, key: Id) -> str:
        step = self._world.step(key, self._stuck[key])
        if isinstance(step, Acquire) and step.token not in self._world.passed_on:
            return _lock_name(step.token)
        calls = [name_of(self._seen.attempts[str(one)].task) for one in self._awaited(key) if one in self._stuck]
        return calls[0] if calls else ""

    def _holders(self, key: Id) -> Iterable[Id]:
        """The members that hold the lock that a run waits for, or what it needs to begin."""
        if isinstance(self._world.step(key, self._stuck[key]), Acquire):
            return self._awaited(key)
        return (one for one in self._waiting() if self._stuck[key] == QUEUED and self._holds_up(one, key))

    def _holds(self, key: Id) -> Iterator[Hold]:
        """What others of the set need of it."""
        run, server, queued = self._world.runs[key], self._world.server(key), self._queued()
        if server is not None and any(self._world.runs[one].server == run.server for one in queued):
            name = str(run.server[1]) if isinstance(run.server, tuple) else ""
            step = self._world.step(key, self._stuck[key])
            if server.has_loop and step is not None and not step_yields(step):
                yield Hold(kind="event loop", name=name)
            else:
                yield Hold(kind="only slot" if server.slots == 1 else "slot", name=name, amount=server.slots)
        wanted = {name for one in queued for name in self._world.runs[one].needs}
        yield from (Hold(kind="resource", name=str(name), amount=n) for name, n in run.needs.items() if name in wanted)
        locks = self._world.owes(key, self._stuck[key]) - self._world.passed_on
        yield from (Hold(kind="lock", name=_lock_name(one), amount=self._world.count(one)) for one in locks)

    def _queued(self) -> Sequence[Id]:
        return [key for key, position in self._stuck.items() if position == QUEUED]

    # How close the run came

    def _waiting(self) -> Sequence[Id]:
        return [key for key in self._keys if self._stuck[key] >= 0]

    def _changes(self) -> Iterator[Overtaking]:
        """Calls that begin before a queued one here, and after it in the run that was seen."""
        number = {key: index for index, key in enumerate(self._keys)}
        for queued in self._queued():
            began = self._seen.attempts[str(queued)].started_at
            for other in self._waiting():
                if other in dict(self._calls_to(queued)) or not self._holds_up(other, queued):
                    continue
                other_began = self._seen.attempts[str(other)].started_at
                if began is None or other_began is None or other_began > began:
                    gap = None if began is None or other_began is None else other_began - began
                    yield Overtaking(first=number[other], second=number[queued], gap_s=gap)

    def _gap_s(self) -> float | None:
        """The longest time between the end of one of the calls that have to overlap and the begin of another."""
        attempts = [self._seen.attempts[str(key)] for key in self._waiting()]
        begins = [one.started_at for one in attempts if one.started_at is not None]
        ends = [one.ended_at for one in attempts if one.ended_at is not None]
        if not begins or not ends:
            return None
        return max(0.0, max(begins) - min(ends))


def _lock_name(lock: Id) -> str:
    return str(lock[-1]) if isinstance(lock, tuple) else str(lock)

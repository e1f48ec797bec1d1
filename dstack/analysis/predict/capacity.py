"""How much of each resource the calls of a run need together: depth times width against capacity.

A task that waits in ``ray.get`` gives its CPUs back meanwhile, but nothing else; an actor gives nothing back while it
lives (Ray 2.46 to 2.60). So calls that wait for tasks of the same resource need room for one more than run at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from dstack import words
from dstack.analysis.history.task_index import Attempt
from dstack.analysis.predict.caller_steps import CREATION, Place
from dstack.analysis.predict.seen_world import SeenWorld, most_at_once
from dstack.analysis.solve.world import Id, WaitFor
from dstack.model.prediction import CapacityNeed

WIDE = 2
"""Fewer calls at once show no width that the program varies."""


def capacity_needs(seen: SeenWorld) -> Iterator[CapacityNeed]:
    """One for each kind of call that holds a resource while it waits for a task that needs it, widest first."""
    found: dict[tuple[str, str, str, float, float], dict[Id, tuple[Attempt, Place]]] = defaultdict(dict)
    for key, places in seen.world.waits.items():
        attempt = seen.attempts.get(str(key))
        held = _held(seen, attempt) if attempt else {}
        for position in places if attempt and held else ():
            step = seen.world.step(key, position)
            for target in step.runs if isinstance(step, WaitFor) else ():
                awaited = seen.attempts.get(str(target))
                if attempt is None or awaited is None or awaited.task.placement_group_id:
                    continue
                for resource, needed in _needed(awaited).items():
                    if held.get(resource):
                        kind = (attempt.task.name, awaited.task.name, resource, held[resource], needed)
                        place = seen.places.get((key, position), Place())
                        found[kind].setdefault(attempt.task.actor_id or key, (attempt, place))
    needs = [*_actors(seen)]
    for (name, awaits, resource, held_amount, needed), holders in found.items():
        at_once = most_at_once(attempt for attempt, _ in holders.values())
        place, present = next(place for _, place in holders.values()), seen.present(resource)
        if at_once >= WIDE:
            need = CapacityNeed(
                name=name,
                resource=resource,
                at_once=at_once,
                minimum=held_amount * at_once + needed,
                present=present,
                awaits=awaits,
                held=held_amount,
                needed=needed,
                hangs_at=max(1, int((present - needed) // held_amount) + 1),
                file=place.file,
                line=place.line,
                source=place.source,
            )
            needs.append(need)
    yield from sorted(needs, key=lambda one: one.present - one.minimum)


def _actors(seen: SeenWorld) -> Iterator[CapacityNeed]:
    """What the actors of a run held together at most, by resource."""
    found: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for attempt in seen.attempts.values():
        actor = seen.actor(attempt.task.actor_id or "") if attempt.task.kind == CREATION else None
        if actor is None or attempt.started_at is None or actor.placement_group_id:
            continue
        for resource, amount in actor.required_resources.items():
            found[resource].append((attempt.started_at, amount, seen.class_of(actor.actor_id)))
            if actor.ended_at is not None:
                found[resource].append((actor.ended_at, -amount, seen.class_of(actor.actor_id)))
    for resource, changes in found.items():
        total, alive = _most(changes)
        count = sum(alive.values())
        if count >= WIDE and total > 0:
            kinds = words.listed([words.times_of(name, number) for name, number in sorted(alive.items())])
            yield CapacityNeed(
                name=kinds, resource=resource, at_once=count, minimum=total, present=seen.present(resource)
            )


def _most(changes: Iterable[tuple[float, float, str]]) -> tuple[float, Mapping[str, int]]:
    """The largest sum of amounts after a change, and how many of each name had begun and not ended then."""
    total = most = 0.0
    alive: Counter[str] = Counter()
    then: Mapping[str, int] = {}
    for _, amount, name in sorted(changes):
        total += amount
        alive[name] += 1 if amount > 0 else -1
        if total > most:
            most, then = total, +alive
    return most, then


def _held(seen: SeenWorld, attempt: Attempt) -> Mapping[str, float]:
    """What a call holds while it waits: its actor's resources, or those of its task without CPUs."""
    task = attempt.task
    if task.placement_group_id:
        return {}
    if task.actor_id is not None:
        actor = seen.actor(task.actor_id)
        return actor.required_resources if actor and not actor.placement_group_id else {}
    return {name: amount for name, amount in task.required_resources.items() if name != "CPU"}


def _needed(awaited: Attempt) -> Mapping[str, float]:
    """What an awaited task needs to begin; a call of an actor needs nothing."""
    task = awaited.task
    needs = {} if task.actor_id is not None else task.required_resources
    return {name: amount for name, amount in needs.items() if amount > 0}

"""Pipelines: functions whose calls form chains, the time in each of these steps, and the step that limits them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.history.chains import Chain
from dstack.analysis.history.slices import Slice
from dstack.analysis.history.task_index import Attempt
from dstack.words import grouped

RARE = 0.05
"""A number of calls at once counts as usual if it is not exceeded in more than this part of the busy time."""
BUSY = 0.5
"""A step limits a pipeline only if it is in use for at least this part of the time."""
CLOSE = 0.8
"""Steps whose use is at least this part of the highest count as equally busy: none of them limits it alone."""


@dataclass(frozen=True, slots=True)
class Step:
    """All attempts of one function of a pipeline; times in seconds.

    ``running_s`` is the sum of all, ``waited_s`` that of the waits from the arrival of the last argument to the start.
    ``at_once`` is the usual maximum of attempts that run at the same time, and ``utilisation`` the part of the
    pipeline's time in which so many run on average: 1 if it could do no more. Of its attempts that have not ended,
    ``stuck`` can never proceed; a stuck attempt does not use the step.
    """

    name: str
    attempts: int
    running_s: float
    longest_s: float
    waited_s: float
    longest_wait_s: float
    at_once: int
    utilisation: float
    stuck: int = 0

    @property
    def mean_s(self) -> float:
        """The mean time of one attempt."""
        return self.running_s / self.attempts

    @property
    def mean_wait_s(self) -> float:
        """The mean wait of one attempt before it."""
        return self.waited_s / self.attempts


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Chains through the same functions; ``steps`` are in the order of the items' way.

    ``parts`` are chains through a part of the functions: of items that have not passed all of them yet, or whose other
    links are not known. The figures of a step are those of all calls of its function. ``limiting`` is the step that
    limits the throughput, None if no step is in use for most of the time, or if several are so equally, or if calls of
    the pipeline can never proceed.
    """

    steps: tuple[Step, ...]
    chains: tuple[Chain, ...]
    parts: tuple[Chain, ...]
    began_at: float
    ended_at: float
    limiting: Step | None

    @property
    def stuck(self) -> Sequence[Step]:
        """The steps with attempts that can never proceed."""
        return [step for step in self.steps if step.stuck]


Path = tuple[str, ...]
"""The functions of a chain, in the order of the item's way."""


def pipelines_of(
    chains: Sequence[Chain], running: Iterable[Slice], stuck: Iterable[Attempt | None] = ()
) -> list[Pipeline]:
    """The pipelines, those with the most chains first.

    ``running`` are all slices in which attempts run, ``stuck`` the attempts that can never proceed.
    """
    stuck_of = grouped((attempt.task.name, id(attempt)) for attempt in stuck if attempt is not None)
    by_path = grouped((_path(chain), chain) for chain in chains)
    whole_of = {path: _whole(path, by_path) for path in by_path}
    names = {name for path in by_path for name in path}
    slices = grouped((one.attempt.task.name, one) for one in running if one.attempt.task.name in names)
    found: list[Pipeline] = []
    for path in (path for path, whole in whole_of.items() if whole == path):
        parts = [chain for part, whole in whole_of.items() if whole == path != part for chain in by_path[part]]
        ran = {name: slices[name] for name in path if name in slices}
        if ran:
            found.append(_pipeline(by_path[path], parts, ran, stuck_of))
    return sorted(found, key=lambda pipeline: -len(pipeline.chains))


def _path(chain: Chain) -> Path:
    """Its functions, by how many links lead to them, then by name."""
    depth: dict[int, int] = defaultdict(int)
    by_user = {id(link.user): link for link in chain.links}
    waiting = list(chain.attempts)
    while waiting:
        link = by_user.get(id(waiting[-1]))
        if link is None or id(link.maker) in depth:
            one = waiting.pop()
            depth[id(one)] = depth[id(link.maker)] + 1 if link else 0
        else:
            waiting.append(link.maker)
    first: dict[str, int] = {}
    for attempt in chain.attempts:
        name = attempt.task.name
        first[name] = min(depth[id(attempt)], first.get(name, depth[id(attempt)]))
    return tuple(sorted(first, key=lambda name: (first[name], name)))


def _whole(path: Path, by_path: Mapping[Path, Sequence[Chain]]) -> Path:
    """The only path of more chains that this one is a part of; itself if there is none, or several."""
    longer = [
        other
        for other in by_path
        if len(other) > len(path) and set(path) < set(other) and len(by_path[other]) > len(by_path[path])
    ]
    longest = [other for other in longer if not any(set(other) < set(another) for another in longer)]
    return longest[0] if len(longest) == 1 else path


def _pipeline(
    chains: Sequence[Chain],
    parts: Sequence[Chain],
    slices: Mapping[str, Sequence[Slice]],
    stuck: Mapping[str, Sequence[int]],
) -> Pipeline:
    began = min(one.began_at for many in slices.values() for one in many)
    ended = max(one.ended_at for many in slices.values() for one in many)
    steps = tuple(_step(name, many, ended - began, stuck.get(name, ())) for name, many in slices.items())
    return Pipeline(steps, tuple(chains), tuple(parts), began, ended, _limiting(steps))


def _step(name: str, slices: Sequence[Slice], span_s: float, stuck: Sequence[int]) -> Step:
    waits = [_wait_s(one) for one in slices]
    used = [one for one in slices if id(one.attempt) not in stuck]
    used_s = sum(one.duration_s for one in used)
    at_once = usual_maximum(used)
    return Step(
        name=name,
        attempts=len(slices),
        running_s=sum(one.duration_s for one in slices),
        longest_s=max(one.duration_s for one in slices),
        waited_s=sum(waits),
        longest_wait_s=max(waits),
        at_once=at_once,
        utilisation=min(1.0, used_s / (at_once * span_s)) if span_s > 0 else 1.0,
        stuck=len(stuck),
    )


def _wait_s(one: Slice) -> float:
    """How long it waited to start after its last argument was available."""
    ready = one.attempt.ready_at
    return max(0.0, one.began_at - ready) if ready is not None else 0.0


def usual_maximum(slices: Sequence[Slice]) -> int:
    """The number of slices at one time that is exceeded only in a :data:`RARE` part of the time with any."""
    changes = sorted([(one.began_at, 1) for one in slices] + [(one.ended_at, -1) for one in slices])
    lasted: dict[int, float] = defaultdict(float)
    level, since = 0, 0.0
    for time, change in changes:
        lasted[level] += time - since
        level, since = level + change, time
    lasted.pop(0, None)
    allowed = RARE * sum(lasted.values())
    for level in sorted(lasted, reverse=True):
        allowed -= lasted[level]
        if allowed < 0:
            return level
    return 1


def _limiting(steps: Sequence[Step]) -> Step | None:
    busiest = max(steps, key=lambda step: step.utilisation)
    if busiest.utilisation < BUSY or len(steps) == 1 or any(step.stuck for step in steps):
        return None
    close = [step for step in steps if step.utilisation >= CLOSE * busiest.utilisation]
    return busiest if close == [busiest] else None

"""Chains of attempts, the ways of items through functions; and pipelines: functions of chains, and what limits them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.analysis.history.slices import Slice
from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.model.snapshot import actor_of_task, producer_task_id
from dstack.observed.node import TaskKind
from dstack.words import grouped

Basis = Literal["retry", "reference", "time", "parent"]
"""Why two attempts are linked; ``retry`` is the next attempt of the same task, only ``time`` is inferred."""

WINDOW_S = 0.002
"""A task is a candidate if it ended at most so long before the last argument of another one was available."""
WAITED_S = 0.002
"""Arguments that were available within this time were not waited for; usual without any is 0.02 ms."""
NO_STEPS: tuple[TaskKind, ...] = ("DRIVER_TASK", "ACTOR_CREATION_TASK")
"""Attempts of these kinds call others, but are no step of their items."""
CLEAR_CASES = 3
"""The fewest clear cases from which the function is learnt that makes the argument of another."""
USUAL, RARE = 0.9, 0.2
"""The least part of the clear cases of a function in which another one makes its argument, to decide between several
candidates; and the least part in which it does so, to believe in a single candidate."""
EXPLAINED = 0.8
"""The least part of the waits of a function for arguments that must have a candidate; else its arguments come from
elsewhere, and what ended at the same time is a coincidence."""
RARE_AT_ONCE = 0.05
"""A number of calls at once counts as usual if it is not exceeded in more than this part of the busy time."""
BUSY = 0.5
"""A step limits a pipeline only if it is in use for at least this part of the time."""
CLOSE = 0.8
"""Steps whose use is at least this part of the highest count as equally busy: none of them limits it alone."""


@dataclass(frozen=True, slots=True)
class Link:
    """``user`` waited for the result of ``maker``, or was submitted by it, or is its next attempt."""

    maker: Attempt
    user: Attempt
    basis: Basis


@dataclass(frozen=True, slots=True)
class Links:
    """The links of some attempts, at most one to each user.

    ``unclear`` counts the waits for arguments with several possible makers, ``unexplained`` those without any, of the
    functions whose other waits have one. ``arguments`` are the links to all users that waited for an argument, whose
    makers may have several users: of several possible makers it is the one that ended last.
    """

    links: Sequence[Link]
    unclear: int = 0
    unexplained: int = 0
    arguments: Sequence[Link] = ()


def find_links(history: HistoryIndex, attempts: Sequence[Attempt]) -> Links:
    """All links between these attempts."""
    by_time = _ByTime(history, attempts)
    made = [*by_time.links(), *_by_reference(history, attempts)]
    found: dict[int, Link] = {}
    for link in (*_by_parent(history, attempts), *made, *_retries(attempts)):
        found[id(link.user)] = link
    return Links(_of_one_item(found.values()), by_time.unclear, by_time.unexplained, [*by_time.unclear_links, *made])


def _of_one_item(links: Iterable[Link]) -> list[Link]:
    """Without those of a maker whose result several calls of one function use: each of these begins an item."""
    users = Counter((id(link.maker), link.user.task.name) for link in links)
    return [link for link in links if users[id(link.maker), link.user.task.name] == 1]


def _retries(attempts: Iterable[Attempt]) -> Iterator[Link]:
    by_number = {(one.task.task_id, one.task.attempt): one for one in attempts if one.task.attempt or one.ended_at}
    for (task_id, number), attempt in by_number.items():
        if number and (before := by_number.get((task_id, number - 1))):
            yield Link(before, attempt, "retry")


def _by_parent(history: HistoryIndex, attempts: Iterable[Attempt]) -> Iterator[Link]:
    for attempt in attempts:
        caller = history.caller(attempt)
        if caller is not None and caller is not attempt and caller.task.kind not in NO_STEPS:
            yield Link(caller, attempt, "parent")


def _by_reference(history: HistoryIndex, attempts: Iterable[Attempt]) -> Iterator[Link]:
    """Tasks that wait for arguments now: their makers, if only one can be."""
    index = history.index
    for attempt in attempts:
        task = index.tasks.get(attempt.task.task_id)
        if attempt.state != "pending" or attempt.ready_at is not None or task is None:
            continue
        producers = {producer_task_id(ref) for ref in index.refs.pending_arguments_of.get(task.owner_id, ())}
        makers = [history.latest[one] for one in producers - {task.task_id} if one in history.latest]
        possible = [maker for maker in makers if _can_precede(maker, attempt)]
        if len(possible) == 1 and len(makers) == len(producers - {task.task_id}):
            yield Link(possible[0], attempt, "reference")


def _can_precede(maker: Attempt, user: Attempt) -> bool:
    """Whether the maker was submitted first: a ref exists only then."""
    return maker is not user and (maker.submitted_at or 0.0) <= (user.submitted_at or 0.0)


class _ByTime:
    """The inference by time, for all processes that own tasks."""

    def __init__(self, history: HistoryIndex, attempts: Sequence[Attempt]) -> None:
        self._history = history
        self.unclear = 0
        self.unexplained = 0
        self.unclear_links: list[Link] = []
        self._ended: dict[str, list[Attempt]] = defaultdict(list)
        self._waited: list[tuple[str, Attempt]] = []
        for attempt in attempts:
            self._add(attempt)
        for ended in self._ended.values():
            ended.sort(key=_ended)
        self._times = {owner: [_ended(one) for one in ended] for owner, ended in self._ended.items()}

    def _add(self, attempt: Attempt) -> None:
        states, kind = attempt.task.states, attempt.task.kind
        if kind == "DRIVER_TASK":
            return
        owner = self._owner(attempt)
        if "FINISHED" in states and kind != "ACTOR_CREATION_TASK":
            self._ended[owner].append(attempt)
        submitted, ready = states.get("PENDING_ARGS_AVAIL"), states.get("PENDING_NODE_ASSIGNMENT")
        if submitted is not None and ready is not None and ready - submitted >= WAITED_S:
            self._waited.append((owner, attempt))

    def _owner(self, attempt: Attempt) -> str:
        """The process that submitted it: its actor, its worker, the driver of its job; if unknown, its parent task.

        Calls of an async actor have the actor's creation as their parent (Ray 2.60).
        """
        if actor_id := actor_of_task(attempt.task.parent_task_id or ""):
            return f"actor {actor_id}"
        parent = self._history.caller(attempt)
        if parent is not None and parent.task.worker_id:
            return parent.task.worker_id
        if parent is None or parent.task.kind != "DRIVER_TASK":
            return f"task {attempt.task.parent_task_id}"
        return f"driver {attempt.task.job_id}"

    def links(self) -> Iterator[Link]:
        """The links; counts what stays unknown."""
        cases = [(user, self._candidates(owner, user)) for owner, user in self._waited]
        clear, explained = _ClearCases(cases), _explained(cases)
        for user, candidates in cases:
            maker = clear.maker(user, candidates) if explained[user.task.name] >= EXPLAINED else None
            if maker is not None:
                yield Link(maker, user, "time")
            elif explained[user.task.name] >= EXPLAINED:
                self.unclear += bool(candidates)
                self.unexplained += not candidates
                self.unclear_links += (Link(one, user, "time") for one in candidates[-1:])

    def _candidates(self, owner: str, user: Attempt) -> list[Attempt]:
        """What ended right before the last argument was available."""
        times = self._times.get(owner, [])
        ready = user.task.states["PENDING_NODE_ASSIGNMENT"]
        near = self._ended[owner][bisect_left(times, ready - WINDOW_S) : bisect_right(times, ready)]
        return [maker for maker in near if _can_precede(maker, user)]


Cases = Sequence[tuple[Attempt, Sequence[Attempt]]]


class _ClearCases:
    """What the waits with one candidate show, for those with several."""

    def __init__(self, cases: Cases) -> None:
        makers = grouped((user.task.name, candidates[0]) for user, candidates in cases if len(candidates) == 1)
        self._functions = {user: Counter(one.task.name for one in known) for user, known in makers.items()}
        self._taken = {user: {id(maker) for maker in known} for user, known in makers.items()}
        self._in_turn = {user for user, known in makers.items() if len(self._taken[user]) == len(known)}

    def maker(self, user: Attempt, candidates: Sequence[Attempt]) -> Attempt | None:
        """The candidate, or of several the only one that fits: of the usual function, and not linked otherwise."""
        function = user.task.name
        if len(candidates) == 1:
            return candidates[0] if self._share(function, candidates[0]) >= RARE else None
        is_known = self._functions.get(function, Counter()).total() >= CLEAR_CASES
        fitting = [one for one in candidates if is_known and self._share(function, one) >= USUAL]
        if len(fitting) > 1 and function in self._in_turn:
            fitting = [one for one in fitting if id(one) not in self._taken[function]]
        if len(fitting) != 1:
            return None
        self._taken[function].add(id(fitting[0]))
        return fitting[0]

    def _share(self, function: str, maker: Attempt) -> float:
        """The part of the clear cases of a function in which the function of this maker made its argument."""
        known = self._functions.get(function, Counter())
        return known[maker.task.name] / known.total() if known else 0.0


def _explained(cases: Cases) -> Mapping[str, float]:
    """By function: the part of its waits for arguments that have a candidate."""
    all_of: Counter[str] = Counter(user.task.name for user, _ in cases)
    with_candidate: Counter[str] = Counter(user.task.name for user, candidates in cases if candidates)
    return {name: with_candidate[name] / count for name, count in all_of.items()}


def _ended(attempt: Attempt) -> float:
    return attempt.task.states["FINISHED"]


@dataclass(frozen=True, slots=True)
class AttemptChain:
    """Linked attempts, oldest first; ``number`` counts chains from 1 and is the key of their colour.

    Each attempt but the first has one link to it, so the links form a tree.
    """

    number: int
    attempts: tuple[Attempt, ...]
    links: tuple[Link, ...]


class Chains:
    """The chains of some attempts; computed when they are asked for."""

    def __init__(self, history: HistoryIndex, attempts: Sequence[Attempt]) -> None:
        self._history = history
        self._attempts = attempts

    @cached_property
    def links(self) -> Links:
        """The links, and how many are not known."""
        return find_links(self._history, self._attempts)

    @cached_property
    def chains(self) -> Sequence[AttemptChain]:
        """The chains of at least two attempts, oldest first."""
        link_to = {id(link.user): link for link in self.links.links}
        trees = grouped((root, attempt) for attempt, root in _roots(self._attempts, link_to))
        long = ((root, tree) for root, tree in trees.items() if len(tree) > 1)
        return [_chain(number, root, tree, link_to) for number, (root, tree) in enumerate(long, 1)]

    def chain_of(self, attempt: Attempt) -> AttemptChain | None:
        """The chain of an attempt, None if it is linked to no other."""
        return self._by_attempt.get(id(attempt))

    @cached_property
    def _by_attempt(self) -> Mapping[int, AttemptChain]:
        return {id(attempt): chain for chain in self.chains for attempt in chain.attempts}


def _chain(number: int, root: int, attempts: Iterable[Attempt], link_to: Mapping[int, Link]) -> AttemptChain:
    members = tuple(attempts)
    return AttemptChain(number, members, tuple(link_to[id(one)] for one in members if id(one) != root))


def _roots(attempts: Iterable[Attempt], link_to: Mapping[int, Link]) -> Iterable[tuple[Attempt, int]]:
    """Each attempt with the first one of its chain; a cycle of links, in corrupt data, ends the search."""
    root_of: dict[int, int] = {}
    for attempt in attempts:
        way: dict[int, None] = {}
        at = attempt
        while id(at) not in root_of and id(at) not in way and (link := link_to.get(id(at))):
            way[id(at)] = None
            at = link.maker
        root = root_of.get(id(at), id(at))
        root_of.update(dict.fromkeys((*way, id(at)), root))
        yield attempt, root


@dataclass(frozen=True, slots=True)
class PipelineStep:
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

    steps: tuple[PipelineStep, ...]
    chains: tuple[AttemptChain, ...]
    parts: tuple[AttemptChain, ...]
    began_at: float
    ended_at: float
    limiting: PipelineStep | None

    @property
    def stuck(self) -> Sequence[PipelineStep]:
        """The steps with attempts that can never proceed."""
        return [step for step in self.steps if step.stuck]


Path = tuple[str, ...]
"""The functions of a chain, in the order of the item's way."""


def pipelines_of(
    chains: Sequence[AttemptChain], running: Iterable[Slice], stuck: Iterable[Attempt | None] = ()
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


def _path(chain: AttemptChain) -> Path:
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


def _whole(path: Path, by_path: Mapping[Path, Sequence[AttemptChain]]) -> Path:
    """The only path of more chains that this one is a part of; itself if there is none, or several."""
    longer = [
        other
        for other in by_path
        if len(other) > len(path) and set(path) < set(other) and len(by_path[other]) > len(by_path[path])
    ]
    longest = [other for other in longer if not any(set(other) < set(another) for another in longer)]
    return longest[0] if len(longest) == 1 else path


def _pipeline(
    chains: Sequence[AttemptChain],
    parts: Sequence[AttemptChain],
    slices: Mapping[str, Sequence[Slice]],
    stuck: Mapping[str, Sequence[int]],
) -> Pipeline:
    began = min(one.began_at for many in slices.values() for one in many)
    ended = max(one.ended_at for many in slices.values() for one in many)
    steps = tuple(_step(name, many, ended - began, stuck.get(name, ())) for name, many in slices.items())
    return Pipeline(steps, tuple(chains), tuple(parts), began, ended, _limiting(steps))


def _step(name: str, slices: Sequence[Slice], span_s: float, stuck: Sequence[int]) -> PipelineStep:
    waits = [_wait_s(one) for one in slices]
    used = [one for one in slices if id(one.attempt) not in stuck]
    used_s = sum(one.duration_s for one in used)
    at_once = usual_maximum(used)
    return PipelineStep(
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
    """The number of slices at one time that is exceeded only in a :data:`RARE_AT_ONCE` part of the time with any."""
    changes = sorted([(one.began_at, 1) for one in slices] + [(one.ended_at, -1) for one in slices])
    lasted: dict[int, float] = defaultdict(float)
    level, since = 0, 0.0
    for time, change in changes:
        lasted[level] += time - since
        level, since = level + change, time
    lasted.pop(0, None)
    allowed = RARE_AT_ONCE * sum(lasted.values())
    for level in sorted(lasted, reverse=True):
        allowed -= lasted[level]
        if allowed < 0:
            return level
    return 1


def _limiting(steps: Sequence[PipelineStep]) -> PipelineStep | None:
    busiest = max(steps, key=lambda step: step.utilisation)
    if busiest.utilisation < BUSY or len(steps) == 1 or any(step.stuck for step in steps):
        return None
    close = [step for step in steps if step.utilisation >= CLOSE * busiest.utilisation]
    return busiest if close == [busiest] else None

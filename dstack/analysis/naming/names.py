"""Names of Ray's entities in sentences: their Ray names, short, and easy to find in Ray's own tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.index import ray_libraries
from dstack.errors import UsageError
from dstack.model.diagnosis import Progress, Since
from dstack.model.snapshot import RAY_CLIENT_SERVER, Actor, Job, Node, PlacementGroup, Snapshot
from dstack.model.vertex_facts import ProcessName, TaskName
from dstack.observed.calls import DATA, TRAIN, ProcessGroup
from dstack.words import duration, listed, moment, plural, times, word

SHORTEST_S = 0.05
"""The smallest bound that is shown."""
CLOSE_S, CLOSE_SHARE = 2.0, 0.1
"""Bounds of a duration that differ by no more count as one, in seconds and as a share of the upper one."""
BYTES = ("memory", "object_store_memory")
SHOWN_RANGES = 8
"""The most ranges of ranks that are listed; the other ranks are counted."""


def short(identifier: str) -> str:
    """The first digits of an id, as Ray's own log lines abbreviate them."""
    return f"{identifier:.8}"


def actor(value: Actor) -> str:
    """``actor Trainer "left"``, or ``actor Trainer 5f8aed75`` without a name; an actor of a Ray library by its part."""
    return actor_in_words(value.class_name, value.name, value.actor_id)


def restarts(value: Actor) -> str:
    """``has been restarted 2 times (at most 3 times); its last process ended with: SYSTEM_ERROR``."""
    limit = "no limit" if value.max_restarts < 0 else f"at most {times(value.max_restarts)}"
    error = f"; its last process ended with: {value.last_error}" if value.last_error else ""
    return f"has been restarted {times(value.num_restarts)} ({limit}){error}"


def actor_in_words(class_name: str, name: str, actor_id: str) -> str:
    """The name of an actor from its parts."""
    if part := ray_libraries.part(class_name, name, actor_id):
        return f"{part.name}{part.which}"
    kind = actor_class(class_name)
    return f'{kind} "{name}"' if name else f"{kind} {short(actor_id)}"


@dataclass(frozen=True, slots=True)
class ActorKind:
    """What actors of one kind are called: ``Trainer``, or a part of a Ray library, of which each is a ``unit``."""

    name: str
    unit: str


def actor_kind(value: Actor) -> ActorKind:
    """The kind of an actor."""
    part = ray_libraries.part_of(value)
    return ActorKind(part.name, part.recogniser.unit) if part else ActorKind(actor_class(value.class_name), "")


def actor_class(class_name: str) -> str:
    """``actor Trainer``; ``actor`` alone in C++, where Ray knows no class."""
    return f"actor {class_name}".rstrip()


def short_actor(class_name: str, name: str, actor_id: str) -> str:
    """The name of an actor next to a method that names the class: ``actor "left"``, ``actor 5f8aed75``."""
    if part := ray_libraries.part(class_name, name, actor_id):
        return f"{part.name}{part.which}"
    return f'actor "{name}"' if name else f"actor {short(actor_id)}"


def call_of(label: str, value: Actor) -> str:
    """``Left.ping of "l"``: a call with its actor, which distinguishes it from calls of other actors."""
    if part := ray_libraries.part_of(value):
        return f"{label}{part.which}"
    if not label.startswith(f"{value.class_name}."):
        return f"{label} of {actor(value)}"
    return f'{label} of "{value.name}"' if value.name else f"{label} of actor {short(value.actor_id)}"


GROUPS = {TRAIN: "the worker group", DATA: "the readers of streaming_split"}
"""The only groups of these libraries."""


def process_group(value: ProcessGroup) -> str:
    """``group dp``: the program's name of it, else the library's."""
    if value.library in GROUPS:
        return GROUPS[value.library]
    name = value.description or value.name
    return f"group {name}" if name else "a process group"


def ranks(values: Iterable[int], group: ProcessGroup | None = None) -> str:
    """``rank 3``, ``ranks 0-2, 5``; for Data's readers ``split 3``."""
    return ranks_in_words(values, "split" if group is not None and group.library == DATA else "rank")


def node(value: Node) -> str:
    """``node 10.0.0.1``."""
    return f"node {value.ip}"


def nodes(values: Iterable[Node]) -> dict[str, str]:
    """The names of nodes by their ids; those that share an address also have the beginning of their id."""
    known = list(values)
    counts = Counter(one.ip for one in known)
    return {one.node_id: f"{node(one)} ({short(one.node_id)})" if counts[one.ip] > 1 else node(one) for one in known}


def placement_group(value: PlacementGroup) -> str:
    """``placement group trainers``, or its id if it has no name."""
    return f"placement group {value.name or short(value.placement_group_id)}"


def amounts(value: Mapping[str, float]) -> str:
    """``1 CPU and 2 GPU``; bytes as GiB."""
    parts = [
        f"{amount / 2**30:.1f} GiB {name}" if name in BYTES else f"{amount:g} {name}" for name, amount in value.items()
    ]
    return listed(parts) or "nothing"


def bundles(group: PlacementGroup) -> str:
    """``2 bundles: 1 CPU, 1 CPU``, cut short after four."""
    shown = ", ".join(amounts(bundle.resources) for bundle in group.bundles[:4])
    more = f" and {len(group.bundles) - 4} more" if len(group.bundles) > 4 else ""
    return f"{plural(len(group.bundles), 'bundle')}: {shown}{more}"


def task(value: TaskName) -> str:
    """A task's name by its owner, or the beginning of its id if no owner answered.

    A task of a Ray library is named by what it does for the user.
    """
    if value.request:
        return f"request {value.request}"
    if value.name is None:
        return f"task {short(value.task_id)}"
    called = value.actor
    part = ray_libraries.part_of(called)
    if part:
        return part.call(value.name)
    return ray_libraries.data_operator(value.name) or value.name


def process(value: ProcessName) -> str:
    """``driver train.py``, ``actor Left "l" (pid 7)``, ``worker (pid 7, node 10.0.0.1)``."""
    name = actor(value.actor) if value.actor else SORTS_OF_PROCESS.get(value.sort, value.sort)
    if value.sort == "driver" and value.entrypoint:
        name = f"driver {script(value.entrypoint)}"
    place = f"pid {value.pid}, node {value.node}" if value.node else f"pid {value.pid}"
    return name if value.pid is None else f"{name} ({place})"


SORTS_OF_PROCESS = {"unlisted process": "a process", "ended process": "a process that has ended"}


def child_process(pid: int) -> str:
    """``child process (pid 7)``."""
    return f"child process (pid {pid})"


def script(entrypoint: str) -> str:
    """The file that a driver's command line runs, without its folder; the beginning of the line if there is none.

    A driver of a Ray Client runs no file of its own: it is ``of a Ray Client``.
    """
    if RAY_CLIENT_SERVER in entrypoint:
        return "of a Ray Client"
    for part in entrypoint.split():
        if part.endswith(".py"):
            return part.rpartition("/")[2]
    return entrypoint[:40]


def waiting(count: int) -> str:
    """``1 waiter`` or ``10,000 waiters``."""
    return plural(count, "waiter")


def lasting(since: Since | None) -> str:
    """``for 3 min 20 s``, ``for 0.4 s to 5 min``, ``for at least 0.4 s``, ``for at most 5 min``; empty if unknown."""
    return _bounded(since, "for at least ", "for at most ", "for ")


def standing(since: Since | None) -> str:
    """``since 03:53:24 (1 min 37 s)``, with ``at the earliest`` if it may be later, or ``seen for 1.1 s``."""
    if since is None:
        return ""
    least, most = since.at_least_s or 0.0, since.at_most_s
    if most is None or since.began_at is None:
        return f"seen for {duration(least)}" if least >= SHORTEST_S else ""
    is_close = since.is_close or _are_close(least, most)
    return f"since {moment(since.began_at, most)}{'' if is_close else ' at the earliest'} ({duration(most)})"


def _are_close(least: float, most: float) -> bool:
    return most - least <= max(CLOSE_S, CLOSE_SHARE * most)


def bounds(since: Since | None) -> str:
    """The same in short form: ``3 min 20 s``, ``0.4 s to 5 min``, ``≥ 0.4 s``, ``≤ 5 min``."""
    return _bounded(since, "≥ ", "≤ ", "")


def _bounded(since: Since | None, at_least: str, at_most: str, within: str) -> str:
    """The bounds of a duration, with the words that precede a lower bound, an upper bound, or both."""
    if since is None:
        return ""
    least, most = since.at_least_s or 0.0, since.at_most_s
    if most is None:
        return f"{at_least}{duration(least)}" if least >= SHORTEST_S else ""
    if least < SHORTEST_S:
        return f"{at_most}{duration(most)}"
    if _are_close(least, most) or duration(least) == duration(most):
        return f"{within}{duration(least)}"
    return f"{within}{duration(least)} to {duration(most)}"


def progress(value: Progress, jobs: Sequence[str]) -> str:
    """``No task of job 01000000 started or finished within the 1.2 s observed; its processes used 0.02 s of CPU``."""
    jobs_in_words = f"{word(len(jobs), 'job')} {listed(jobs)}" if jobs else "no known job"
    cpu = f"; its processes used {value.cpu_s:.2f} s of CPU time" if value.cpu_s is not None and jobs else ""
    if value.has_moved:
        counts = f"{value.started:,} started, {value.finished:,} finished, {value.submitted:,} submitted"
        return f"Tasks of {jobs_in_words} within the {duration(value.watched_s)} observed: {counts}{cpu}"
    idle = f"; the last one ended {duration(value.idle_s)} ago" if value.idle_s is not None else ""
    return f"No task of {jobs_in_words} started or finished within the {duration(value.watched_s)} observed{idle}{cpu}"


def ranks_in_words(ranks: Iterable[int], word: str = "rank") -> str:
    """``rank 3``, ``ranks 0-2, 5``, ``ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more``; empty for none."""
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], rank]
        else:
            ranges.append([rank])
    shown = ", ".join("-".join(map(str, one)) for one in ranges[:SHOWN_RANGES])
    rest = sum(one[-1] - one[0] + 1 for one in ranges[SHOWN_RANGES:])
    is_one = len(ranges) == 1 and len(ranges[0]) == 1
    return f"{word}{'' if is_one else 's'} {shown}" + (f" and {rest:,} more" if rest else "") if ranges else ""


SHOWN_JOBS = 20


def find_job(snapshot: Snapshot, wanted: str) -> str:
    """The id of the only job with this id or submission id, this beginning of its id, or this driver script.

    If several jobs match, only running ones count. Raises :class:`UsageError`, which names the known jobs.
    """
    found = jobs_called(snapshot.jobs, wanted)
    if len(found) > 1:
        raise UsageError(f"{len(found)} jobs are called {wanted}.", _known(found))
    return found[0].job_id


def jobs_called(jobs: Sequence[Job], wanted: str) -> list[Job]:
    """The jobs that match, at least one: running ones, else all. Raises :class:`UsageError`."""
    for matches in (_has_id, _begins_with, _is_script):
        if found := [job for job in jobs if wanted and matches(job, wanted)]:
            return [job for job in found if not job.is_dead] or found
    raise UsageError(f"No job is called {wanted}.", _known([job for job in jobs if not job.is_dead]))


def _has_id(job: Job, wanted: str) -> bool:
    return wanted.lower() in (job.job_id, (job.submission_id or "").lower())


def _begins_with(job: Job, wanted: str) -> bool:
    return job.job_id.startswith(wanted.lower())


def _is_script(job: Job, wanted: str) -> bool:
    return wanted in (job.entrypoint, script(job.entrypoint))


def _known(jobs: list[Job]) -> str:
    shown = [f"{job.job_id} ({script(job.entrypoint)})" if job.entrypoint else job.job_id for job in jobs[:SHOWN_JOBS]]
    rest = f" and {len(jobs) - SHOWN_JOBS} more" if len(jobs) > SHOWN_JOBS else ""
    return f"Known jobs: {', '.join(shown)}{rest}." if shown else "No job runs."


def labels(values: Mapping[str, str]) -> str:
    """``zone: eu and disk: ssd``."""
    return listed([f"{name}: {value}" for name, value in values.items()])

"""A profile: where the wall-clock time of a whole job went, sampled from the wait-for graph.

Each sample follows one root, such as the main thread of a driver, through its waits to what runs, queues or is missing
at their ends. All on the way is one path; a wait for several things shares the time among them.

Times that end in ``_at`` are Unix seconds, ``_us`` microseconds since the profile began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from dstack.model.recording import Recording
from dstack.model.snapshot import Model
from dstack.observed.calls import Int, Natural, UnixTime
from dstack.observed.node import Failure
from dstack.observed.processes import Origin

SCHEMA = "dstack.profile"
VERSION = (1, 2)
"""Major and minor version of the file format. A reader takes any minor of its own major."""
MAX_SHARES = 1_000_000
"""The most shares of a profile. Time beyond it is only counted."""
MAX_EDGES = 10_000
"""The most pairs between which objects are counted, and the most classes and functions whose calls are."""

State = Literal["", "runs", "sleeps", "waits", "queue", "resources", "starts", "outside"]
"""What a step of a path is that is no frame: ``queue`` is a place in the queue of an actor or executor, ``starts`` the
start of a worker or an actor, ``outside`` something that Ray and the processes of the cluster do not show. Empty for
frames and groups."""


class PathStep(Struct, frozen=True, order=True, cache_hash=True):
    """One step of a path: a frame; or a group, a span, an execution or a state, which have neither function nor file.

    Groups are above all frames, a span is above the frame that has entered it.
    ``name`` is the frame's ``function``; of a blocked call, the name of its API function; of the frames of an import,
    what they import. It is a struct, as many steps are compared and hashed.
    """

    name: str
    file: str = ""
    line: Int = 0
    function: str = ""
    origin: Origin = "user"
    is_import: bool = False
    is_span: bool = False
    state: State = ""

    @property
    def is_frame(self) -> bool:
        """Whether it is a frame."""
        return bool(self.function)


class ProfileOptions(Model, frozen=True):
    """What was profiled.

    ``of`` is a class, an actor or a rank whose executions are the roots, ``everything`` has all threads and coroutines
    of the application as roots; by default the roots are the main threads of drivers. With ``last``, a wait for several
    things belongs to the one that ended last. ``job_id`` is the only job, None for all.
    """

    of: str = ""
    everything: bool = False
    last: bool = False
    job_id: str | None = None


class Share(NamedTuple):
    """Time of a root on a path, both indices: ``weight_us`` of the ``lasted_us`` that began at ``began_us``.

    ``nth_wait`` says in which of its own waits the root is, or was last. It is 0 before the first, and in version 1.1.
    """

    root: Natural
    path: Natural
    began_us: Natural
    lasted_us: Natural
    weight_us: Natural
    nth_wait: Natural = 0


class Endpoint(Struct, frozen=True, cache_hash=True):
    """What makes objects or gets them: a driver by its script, an actor by its class and method, or a function.

    ``name`` and ``method`` are empty where they are not known, as if calls of several methods run at once.
    """

    kind: Literal["driver", "actor", "function"]
    name: str = ""
    method: str = ""
    job_id: str = ""


class Traffic(NamedTuple):
    """At least so many objects, with so many bytes together, that ``maker`` has made and ``asker`` has got.

    An object that several processes got counts for each of them.
    """

    maker: Endpoint
    asker: Endpoint
    objects: Natural
    bytes: Natural


class ExecutedCalls(NamedTuple):
    """At least so many calls that a class, or the functions of a job, have executed."""

    by: Endpoint
    calls: Natural


class ProfileCoverage(Model, frozen=True):
    """How a profile was sampled.

    ``rounds`` counts the samples, and ``reused`` those in which nothing had moved. ``spread_ms`` is the longest time
    between the middles of the readings of any two nodes in one round; those of dstack's own host are one reading.
    ``cpu_s`` is the CPU time of dstack on its own host, and ``left_out_us`` the time beyond the limit of shares. Of a
    round on which too much was missing, nothing is known: ``unread_us`` is the time of these.
    """

    rounds: Natural = 0
    reused: Natural = 0
    spread_ms: float = 0.0
    cpu_s: float = 0.0
    left_out_us: Natural = 0
    unread_us: Natural = 0


class Profile(Model, frozen=True, kw_only=True, omit_defaults=False):
    """The time of the roots of a cluster over ``duration_s``.

    ``paths`` are indices of ``steps``, outermost first. ``shares`` are in the order of their begin. ``rate_hz`` is the
    wanted rate of samples. ``sources`` maps a file to line numbers to text, for the lines around frames of the
    application, as in a snapshot; it, ``traffic`` and ``executed`` are empty before version 1.1.
    """

    schema: str = SCHEMA
    version: tuple[Int, Int] = VERSION
    dstack_version: str
    address: str
    ray_version: str
    began_at: UnixTime
    duration_s: float = 0.0
    rate_hz: float = 0.0
    options: ProfileOptions = ProfileOptions()
    roots: tuple[str, ...] = ()
    steps: tuple[PathStep, ...] = ()
    paths: tuple[tuple[Natural, ...], ...] = ()
    shares: tuple[Share, ...] = ()
    sources: dict[str, dict[Int, str]] = {}
    traffic: Annotated[tuple[Traffic, ...], Meta(max_length=MAX_EDGES)] = ()
    executed: Annotated[tuple[ExecutedCalls, ...], Meta(max_length=MAX_EDGES)] = ()
    coverage: ProfileCoverage = ProfileCoverage()
    failures: tuple[Failure, ...] = ()
    notes: tuple[Annotated[str, Meta(description="One sentence; the wording may change")], ...] = ()

    def steps_of(self, share: Share) -> tuple[PathStep, ...]:
        """The path of a share, outermost first."""
        return tuple(self.steps[index] for index in self.paths[share.path])


Sampled: TypeAlias = Recording | Profile
"""What was sampled over some time."""


class RootTime(NamedTuple):
    """The time of one root on one path, as :class:`Share`, with the root's name and the steps themselves."""

    root: str
    path: tuple[PathStep, ...]
    began_us: int
    lasted_us: int
    weight_us: int
    nth_wait: int = 0


class JoinedProfile:
    """A profile that grows with each part; times of one root, path and wait that follow each other become one share."""

    def __init__(self, first: Profile) -> None:
        self._first = first
        self._roots: dict[str, int] = {}
        self._steps: dict[PathStep, int] = {}
        self._paths: dict[tuple[int, ...], int] = {}
        self._shares: list[Share] = []
        self._open: dict[tuple[int, int], int] = {}
        self._traffic: dict[tuple[Endpoint, Endpoint], Traffic] = {}
        self._executed: dict[Endpoint, int] = {}
        self._ended_us = 0
        self._sources: dict[str, dict[int, str]] = {}
        self._coverage = first.coverage
        self._failures: dict[tuple[str | None, str, str], Failure] = {}
        self._notes: dict[str, None] = dict.fromkeys(first.notes)

    def add(self, part: Profile) -> None:
        """Add a valid part; its times are since the whole profile began."""
        self.add_times(RootTime(part.roots[one.root], part.steps_of(one), *one[2:]) for one in part.shares)
        self.add_sources(part.sources)
        self.add_traffic(part.traffic, part.executed)
        self.note(part.coverage, part.failures)
        self._notes.update(dict.fromkeys(part.notes))

    def add_times(self, times: Iterable[RootTime]) -> None:
        """Add times; those beyond the limit are only counted."""
        left_out_us = 0
        for one in times:
            self._ended_us = max(self._ended_us, one.began_us + one.lasted_us)
            key = self._root(one.root), self._path(one.path)
            at = self._open.get(key, -1)
            known = self._shares[at] if at >= 0 else None
            if known and (known.began_us + known.lasted_us, known.nth_wait) == (one.began_us, one.nth_wait):
                self._shares[at] = known._replace(
                    lasted_us=known.lasted_us + one.lasted_us, weight_us=known.weight_us + one.weight_us
                )
            elif len(self._shares) < MAX_SHARES:
                self._open[key] = len(self._shares)
                self._shares.append(Share(*key, *one[2:]))
            else:
                left_out_us += one.weight_us
        self.note(ProfileCoverage(left_out_us=left_out_us), ())

    def add_sources(self, sources: Mapping[str, Mapping[int, str]]) -> None:
        """Add lines of files; the last text of a line is kept."""
        for file, lines in sources.items():
            self._sources.setdefault(file, {}).update(lines)

    def add_traffic(self, traffic: Iterable[Traffic], executed: Iterable[ExecutedCalls]) -> None:
        """Add objects and calls; those of too many different ends are left out, as all counts are lower bounds."""
        for one in traffic:
            edge = one.maker, one.asker
            known = self._traffic.get(edge)
            if known is not None:
                self._traffic[edge] = Traffic(*edge, known.objects + one.objects, known.bytes + one.bytes)
            elif len(self._traffic) < MAX_EDGES:
                self._traffic[edge] = one
        for by, calls in executed:
            if by in self._executed or len(self._executed) < MAX_EDGES:
                self._executed[by] = self._executed.get(by, 0) + calls

    def note(self, coverage: ProfileCoverage, failures: Sequence[Failure]) -> None:
        """Add the coverage of a part, and what failed in it."""
        before = self._coverage
        self._coverage = ProfileCoverage(
            rounds=before.rounds + coverage.rounds,
            reused=before.reused + coverage.reused,
            spread_ms=max(before.spread_ms, coverage.spread_ms),
            cpu_s=round(before.cpu_s + coverage.cpu_s, 6),
            left_out_us=before.left_out_us + coverage.left_out_us,
            unread_us=before.unread_us + coverage.unread_us,
        )
        for failure in failures:
            self._failures.setdefault((failure.worker_id or failure.node_id, failure.stage, failure.reason), failure)

    @property
    def in_words(self) -> str:
        """How much it has so far, for a line of progress."""
        return f"{self._coverage.rounds:,} samples"

    def whole(self, duration_s: float) -> Profile:
        """The profile so far: over the time of its samples, or over ``duration_s`` if there are none."""
        return replace(
            self._first,
            duration_s=self._ended_us / 1e6 or duration_s,
            roots=tuple(self._roots),
            steps=tuple(self._steps),
            paths=tuple(self._paths),
            shares=tuple(self._shares),
            sources=self._sources,
            traffic=tuple(sorted(self._traffic.values(), key=lambda one: -one.bytes)),
            executed=tuple(ExecutedCalls(*one) for one in self._executed.items()),
            coverage=self._coverage,
            failures=tuple(self._failures.values()),
            notes=tuple(self._notes),
        )

    def _root(self, name: str) -> int:
        return self._roots.setdefault(name, len(self._roots))

    def _path(self, path: tuple[PathStep, ...]) -> int:
        steps = tuple(self._steps.setdefault(step, len(self._steps)) for step in path)
        return self._paths.setdefault(steps, len(self._paths))

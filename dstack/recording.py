"""A recording: the stacks of a cluster's threads, sampled for some time, each with the number of its samples.

Times that end in ``_at`` are Unix seconds. Identifiers are those of :mod:`dstack.observed`.
"""

from __future__ import annotations

from dstack.model import Model
from dstack.observed import Frame
from dstack.observed_calls import Int, Natural, UnixTime
from dstack.observed_node import Count, Coverage, Failure

SCHEMA = "dstack.recording"
VERSION = (1, 0)
"""Major and minor version of the file format. A reader takes any minor of its own major."""


class RecordingOptions(Model, frozen=True):
    """How it was recorded.

    ``idle`` includes threads that neither ran nor were ready to run; ``gil`` has only threads that held the global
    interpreter lock; ``native`` includes C and C++ frames. ``job_id`` is the only job that was recorded, None for all.
    """

    idle: bool = False
    gil: bool = False
    native: bool = False
    job_id: str | None = None


class RecordedThread(Model, frozen=True, kw_only=True):
    """A thread while it ran one kind of work: a thread of a worker that runs several functions has one for each.

    ``node`` and ``kind`` are names for users, such as ``node 10.0.0.1``, and ``actor Trainer``, ``task load``, ``driver
    train.py`` or ``worker``. ``name`` is the name of the actor, if it has one. ``rank`` is the rank in a distributed
    run. ``os_thread_id`` is 0 if unknown.
    """

    worker_id: str
    node_id: str
    pid: Int
    node: str
    kind: str
    name: str = ""
    job_id: str | None = None
    rank: Natural | None = None
    os_thread_id: Int = 0
    thread_name: str = ""


class Recording(Model, frozen=True, kw_only=True, omit_defaults=False):
    """The samples of all processes of a cluster over ``duration_s``.

    ``stacks`` are indices of ``frames``, leaf first. ``rate_hz`` is the wanted rate; ``coverage`` has how many samples
    were taken.
    """

    schema: str = SCHEMA
    version: tuple[Int, Int] = VERSION
    dstack_version: str
    address: str
    ray_version: str
    began_at: UnixTime
    duration_s: float = 0.0
    rate_hz: float = 0.0
    options: RecordingOptions = RecordingOptions()
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[Natural, ...], ...] = ()
    threads: tuple[RecordedThread, ...] = ()
    counts: tuple[Count, ...] = ()
    coverage: Coverage = Coverage()
    failures: tuple[Failure, ...] = ()

    def frames_of(self, count: Count) -> tuple[Frame, ...]:
        """The frames of a count's stack, leaf first."""
        return tuple(self.frames[index] for index in self.stacks[count.stack])

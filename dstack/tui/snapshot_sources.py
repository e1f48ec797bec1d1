"""The snapshots that the terminal UI shows, and their sources: a protocol for clusters, and saved files."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import RLock
from typing import Any, Protocol, TypeAlias, TypeVar

from textual.app import App
from textual.message import Message

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import LoadableSnapshot, SnapshotChanges, SnapshotSummary
from dstack.errors import DstackError, as_dstack_error
from dstack.model.profile import Sampled
from dstack.model.snapshot import ClusterPoll, Snapshot
from dstack.report.critical_path_text import quick_path

_T = TypeVar("_T")
IN_MEMORY = 8
"""So many snapshots of files stay in memory, the last ones used; one of 1,000 workers takes about 5 MiB or more."""
POLL_TIMEOUT_S = 10.0
SHARE = 0.2
"""The most of the time for which snapshots are taken by themselves."""
UNCHANGED_S = 60.0
"""After so long another snapshot is taken although nothing has changed: what waits now may be stuck for good."""
NO_SNAPSHOT = "No snapshot: only recordings or profiles were opened."


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that views draw of a snapshot; ``changes`` are those since the one before, None without one."""

    analysed: AnalysedSnapshot
    changes: SnapshotChanges | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, before: AnalysedSnapshot | None = None) -> Prepared:
        """Analyse a snapshot and prepare it, see :meth:`of_analysed`."""
        return cls.of_analysed(AnalysedSnapshot.of(snapshot), before)

    @classmethod
    def of_analysed(cls, analysed: AnalysedSnapshot, before: AnalysedSnapshot | None) -> Prepared:
        """Prepare what takes a while for large clusters: merged stacks, and the critical path."""
        analysed.stacks.outliers()
        quick_path(analysed)
        return cls(analysed, SnapshotChanges.between(before, analysed))


class NumberedSnapshot:
    """A snapshot of this run; ``number`` counts from 1, ``taken_at`` is in Unix seconds.

    ``is_final`` is false while the second sample is in progress. ``summary`` is known once the snapshot was prepared,
    and ``trouble`` says why that failed.
    """

    def __init__(
        self, number: int, taken_at: float, prepare: Callable[[], Prepared], name: str = "", *, is_final: bool = True
    ) -> None:
        self.number = number
        self.taken_at = taken_at
        self.name = name
        self.is_final = is_final
        self.summary: SnapshotSummary | None = None
        self.trouble = ""
        self._prepare = prepare
        self._held: Prepared | None = None

    @classmethod
    def of(
        cls, number: int, snapshot: Snapshot, before: AnalysedSnapshot | None = None, *, is_final: bool = True
    ) -> NumberedSnapshot:
        """A snapshot that stays in memory, compared with the one before."""
        prepared = Prepared.of(snapshot, before)
        made = cls(number, snapshot.taken_at, lambda: prepared, is_final=is_final)
        made.prepare()
        return made

    def prepare(self) -> Prepared:
        """Read and analyse the snapshot unless it is in memory. Raises :class:`dstack.DstackError`."""
        if self._held is not None:
            return self._held
        try:
            prepared = self._prepare()
        except Exception as error:
            known = as_dstack_error(error)
            self.trouble = known.message
            raise known from error
        if self.summary is None:
            self.summary = SnapshotSummary.of(prepared.analysed, prepared.changes)
        return prepared

    def hold(self) -> None:
        """Keep the snapshot in memory while it is shown; see :meth:`prepare`."""
        self._held = self.prepare()

    def release(self) -> None:
        """Undo :meth:`hold`."""
        self._held = None

    @property
    def analysed(self) -> AnalysedSnapshot:
        """The snapshot with its diagnosis; see :meth:`prepare`."""
        return self.prepare().analysed

    @property
    def changes(self) -> SnapshotChanges | None:
        """What has changed since the snapshot before; see :meth:`prepare`."""
        return self.prepare().changes


class SavedSnapshot(LoadableSnapshot, Protocol):
    """A snapshot with a name for messages; ``taken_at`` is in Unix seconds."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    @property
    def taken_at(self) -> float:
        """When it was taken."""
        ...


class SavedSnapshots:
    """Snapshots of files in the order of their time, of which the last ones used stay in memory; for any thread."""

    def __init__(self, files: Sequence[SavedSnapshot]) -> None:
        self._files = files
        self._lock = RLock()
        self._analysed: OrderedDict[int, AnalysedSnapshot] = OrderedDict()
        self._prepared: OrderedDict[int, Prepared] = OrderedDict()
        self.numbered = [
            NumberedSnapshot(at + 1, file.taken_at, partial(self._prepare, at), file.name)
            for at, file in enumerate(files)
        ]

    def is_prepared(self, snapshot: NumberedSnapshot) -> bool:
        """Whether it is in memory."""
        return snapshot.number - 1 in self._prepared

    def _prepare(self, at: int) -> Prepared:
        with self._lock:
            if at not in self._prepared:
                prepared = Prepared.of_analysed(self._analyse(at), self._before(at))
                self._keep(self._prepared, at, prepared)
            self._prepared.move_to_end(at)
            return self._prepared[at]

    def _analyse(self, at: int) -> AnalysedSnapshot:
        if at not in self._analysed:
            self._keep(self._analysed, at, AnalysedSnapshot.of(self._files[at].load()))
        self._analysed.move_to_end(at)
        return self._analysed[at]

    def _before(self, at: int) -> AnalysedSnapshot | None:
        """The last earlier snapshot that can be read."""
        for earlier in reversed(self.numbered[:at]):
            if not earlier.trouble:
                try:
                    return self._analyse(earlier.number - 1)
                except DstackError as error:
                    earlier.trouble = error.message
        return None

    @staticmethod
    def _keep(kept: OrderedDict[int, _T], at: int, value: _T) -> None:
        kept[at] = value
        while len(kept) > IN_MEMORY:
            kept.popitem(last=False)


@dataclass(frozen=True, slots=True)
class OpenedRecording:
    """A recording or a profile, and the name of its file."""

    name: str
    recording: Sampled


class LiveSource(Protocol):
    """Takes snapshots of a running cluster. ``take`` is called from one thread, ``cancel`` from any other."""

    name: str

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        """Take a new snapshot.

        ``progress`` receives the name of each step, ``early`` each snapshot before the last, such as that of the first
        sample. Raises :class:`dstack.DstackError`.
        """
        ...

    def poll(self, timeout_s: float, *, with_jobs: bool = False, with_figures: bool = False) -> ClusterPoll:
        """Read tasks and counters without stacks; not during a ``take``. Raises :class:`dstack.DstackError`."""
        ...

    def request_history(self) -> bool:
        """Have further snapshots include the history of tasks; false if there are no further ones."""
        ...

    def cancel(self) -> None:
        """End a ``take`` in progress at once."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """A snapshot that has been read already."""

    snapshot: Snapshot
    name: str = ""

    @property
    def taken_at(self) -> float:
        """When it was taken, in Unix seconds."""
        return self.snapshot.taken_at

    def load(self) -> Snapshot:
        """The snapshot."""
        return self.snapshot


class Files:
    """Saved snapshots in the order of their time; ``skipped`` says which files could not be read, and why."""

    def __init__(self, name: str, snapshots: Sequence[Snapshot | SavedSnapshot], skipped: Sequence[str] = ()) -> None:
        self.name = name
        self.saved = SavedSnapshots([LoadedSnapshot(one) if isinstance(one, Snapshot) else one for one in snapshots])
        self.skipped = tuple(skipped)


Source: TypeAlias = LiveSource | Files
"""Where snapshots come from."""


@dataclass
class SnapshotProgress(Message):
    """A step has begun; ``step`` names it."""

    step: str


@dataclass
class SnapshotTaken(Message):
    """A snapshot has been taken and analysed."""

    snapshot: NumberedSnapshot


@dataclass
class SnapshotFailed(Message):
    """No snapshot could be taken."""

    error: DstackError


@dataclass
class ClusterPolled(Message):
    """The cluster has answered a poll, at this time in Unix seconds."""

    poll: ClusterPoll
    at: float


@dataclass
class PollFailed(Message):
    """The cluster has not answered a poll."""

    error: DstackError


@dataclass
class SnapshotEnded(Message):
    """The thread has ended, with or without a snapshot, or after a poll."""


class SnapshotTaker:
    """Takes snapshots and polls in a thread, one at a time, and posts the results to the application."""

    def __init__(self, source: LiveSource, app: App[Any]) -> None:
        self._source = source
        self._app = app
        self._is_busy = False
        self._is_wanted = False
        self._took_s = 0.0
        self._ended = self._polled = -inf

    def start(self, before: NumberedSnapshot | None) -> bool:
        """Take the snapshot after this one; false if one or a poll is in progress.

        A request meanwhile is remembered: :meth:`end` reports it.
        """
        self._is_wanted = self._is_busy
        return self._begin(partial(self._take, before))

    def poll(self, every_s: float) -> None:
        """Poll the cluster if the last poll ended so long ago, and nothing is in progress."""
        if time.monotonic() - self._polled >= every_s:
            self._begin(self._poll)

    def end(self) -> bool:
        """Accept new requests; true if one came during what has ended."""
        self._is_busy = False
        return self._is_wanted

    def is_due(self, every_s: int, *, has_changed: bool) -> bool:
        """Whether to take a snapshot: after this period if something has changed, else after a longer one.

        Snapshots are taken at most for the :data:`SHARE` of the time.
        """
        age_s = time.monotonic() - self._ended
        pause_s = max(every_s if has_changed else max(every_s, UNCHANGED_S), self._took_s / SHARE - self._took_s)
        return not self._is_busy and age_s >= pause_s

    def _begin(self, work: Callable[[], None]) -> bool:
        if self._is_busy:
            return False
        self._is_busy = True
        self._app.run_worker(work, thread=True, exit_on_error=False)
        return True

    def _poll(self) -> None:
        """Poll the cluster. Runs in a thread, so it touches no widget."""
        post = self._app.post_message
        try:
            post(ClusterPolled(self._source.poll(POLL_TIMEOUT_S, with_jobs=True, with_figures=True), time.time()))
        except Exception as error:
            post(PollFailed(as_dstack_error(error)))
        finally:
            self._polled = time.monotonic()
            post(SnapshotEnded())

    def _take(self, before: NumberedSnapshot | None) -> None:
        """Take and analyse a snapshot. Runs in a thread, so it touches no widget."""
        number = before.number + 1 if before else 1
        known = before.analysed if before else None
        post, began = self._app.post_message, time.monotonic()

        def progress(step: str) -> None:
            post(SnapshotProgress(step))

        def early(snapshot: Snapshot) -> None:
            post(SnapshotTaken(NumberedSnapshot.of(number, snapshot, known, is_final=False)))

        try:
            post(SnapshotTaken(NumberedSnapshot.of(number, self._source.take(progress, early), known)))
        except Exception as error:
            post(SnapshotFailed(as_dstack_error(error)))
        finally:
            self._ended = time.monotonic()
            self._took_s = self._ended - began
            post(SnapshotEnded())
            gc.collect()  # parts of an analysis refer to each other, and may hold a former snapshot

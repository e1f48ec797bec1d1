"""The watch itself: looks cheaply again and again, decides when to look in full, and tells what has changed."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from dstack.analysis.findings import verdict_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collector import Collector
from dstack.diagnosis import Finding, FindingKind, Ratio
from dstack.errors import ClusterError, DstackError, SnapshotFileError
from dstack.model import Snapshot
from dstack.probes.connection.connect import Cluster, connect
from dstack.probes.ray_state.glances import take_glance
from dstack.report.check_json import check_json
from dstack.snapshot_file import to_json
from dstack.watch.alerts import Changes, Sightings
from dstack.watch.command import Command
from dstack.watch.events import Events
from dstack.watch.figures import Figures, spent_s, waits_of
from dstack.watch.ring import Ring
from dstack.watch.settings import Settings
from dstack.watch.trigger import Attention, Item, Standing
from dstack.words import duration, plural

SCHEMA = "dstack.watch/1"
RPC_TIMEOUT_S = 3.0
LONGEST_PAUSE_S = 60.0
"""While there is no cluster, it is tried again after 1, 2, 4 ... seconds, at last so many."""
MOST_UNSAVED = 3
"""So many snapshots that could not be written are kept in memory, to be written later."""
SAVE_S = 0.5
"""A file that is being written when the watch is to end may take so long."""
LAST_WORD_S = 0.2


class Watch:
    """A watch of one cluster. :meth:`run` never returns; :meth:`stop`, from another thread, ends what is under way."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._events = Events(as_json=settings.as_json)
        self._ring = Ring(settings.directory, settings.keep)
        self._command = Command(settings.command, self._events) if settings.command else None
        self._standing = Standing()
        self._attention = Attention(settings.stuck_after_s, settings.share)
        self._sightings = Sightings(settings.stuck_after_s)
        self._found: Counter[FindingKind] = Counter()
        self._unsaved: deque[Snapshot] = deque(maxlen=MOST_UNSAVED)
        self._cluster: Cluster | None = None
        self._lost_at: float | None = None
        self._pause_s = 1.0
        self._figures = Figures()
        self._began: float | None = None
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._collector: Collector | None = None
        self._is_stopped = False

    def run(self) -> None:
        """Looks until the process ends. Raises :class:`dstack.DstackError` if it cannot begin."""
        self._cluster = connect(self._settings.address)
        self._start(self._cluster)
        while True:
            time.sleep(self._settings.every_s if self._round() else self._paused())

    def stop(self) -> None:
        """Ends what is under way, but lets a file that is being written be written."""
        with self._lock:
            self._is_stopped = True
            if self._collector is not None:
                self._collector.cancel()
        if self._command is not None:
            self._command.stop()
        self._saving.acquire(timeout=SAVE_S)
        if self._began is not None:
            counts = (
                (self._figures.looks, "poll"),
                (self._figures.full_looks, "snapshot"),
                (self._found.total(), "finding"),
            )
            done = ", ".join(plural(count, what) for count, what in counts)
            lost = f"; {plural(len(self._unsaved), 'snapshot')} not saved" if self._unsaved else ""
            text = f"after {duration(time.monotonic() - self._began)}: {done}{lost}"
            self._events.tell("stopped", text, within_s=LAST_WORD_S)

    def _start(self, cluster: Cluster) -> None:
        self._began = time.monotonic()
        for note in cluster.notes:
            self._events.tell("note", note)
        where = f"{cluster.address}, Ray {cluster.ray_version}"
        every_s, stuck_after_s = self._settings.every_s, self._settings.stuck_after_s
        how = f"poll every {every_s:g} s, snapshot after {stuck_after_s:g} s without progress"
        self._events.tell("started", f"watching {where}; {how}")
        if self._settings.metrics:
            from dstack.watch.metrics import serve

            self._events.tell("metrics", f"at {serve(self._settings.metrics, lambda: self._figures)}")

    def _round(self) -> bool:
        """One look, and what follows from it; whether the cluster was there."""
        self._save_late()
        try:
            cluster = self._cluster or connect(self._settings.address)
            self._glance(cluster)
        except DstackError as error:
            self._lose(error)
            return False
        self._regain(cluster)
        now = time.monotonic()
        picture = self._standing.older_than(self._settings.stuck_after_s, now)
        touched = self._sightings.is_touched(self._standing.present)
        if reason := self._attention.reason(picture, now, touched=touched):
            self._look(cluster, reason, picture)
        elif not picture:
            self._figures = replace(self._figures, waits={}, oldest_wait_s=0.0)
        return True

    def _glance(self, cluster: Cluster) -> None:
        glance = take_glance(cluster, RPC_TIMEOUT_S)
        now = time.monotonic()
        self._standing.see(glance, now)
        answered = len(glance.workers)
        self._figures = replace(
            self._figures,
            is_up=True,
            longest_unmoved_s=self._standing.longest_s(now),
            answered=Ratio(observed=answered, total=answered + len(glance.silent)),
            looks=self._figures.looks + 1,
        )

    def _lose(self, error: DstackError) -> None:
        self._cluster = None
        self._figures = replace(self._figures, is_up=False)
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._events.tell("lost", f"{error.message} Retrying, at least every {LONGEST_PAUSE_S:g} s")

    def _regain(self, cluster: Cluster) -> None:
        self._cluster = cluster
        if self._lost_at is not None:
            away = duration(time.monotonic() - self._lost_at)
            self._events.tell("back", f"{cluster.address} is reachable again after {away}")
            self._lost_at, self._pause_s = None, 1.0

    def _paused(self) -> float:
        """For how long to wait while there is no cluster: longer each time."""
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause

    def _look(self, cluster: Cluster, reason: str, picture: frozenset[Item]) -> None:
        """Looks in full, and tells what is new, what lasts and what is over."""
        self._events.tell("looking", reason)
        before = spent_s()
        try:
            taken = self._take(cluster)
        except DstackError as error:
            self._attention.failed(time.monotonic())
            self._events.tell("failed", f"no snapshot: {error}")
            return
        try:
            self._note(AnalysedSnapshot.of(taken))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            file = self._save(taken)
            self._events.tell(
                "failed", f"internal error in the analysis of {file or 'a snapshot'}: {why}. Please report it"
            )
        is_doubtful = bool(self._sightings.doubtful)
        self._attention.looked(picture, time.monotonic(), spent_s() - before, is_doubtful=is_doubtful)

    def _take(self, cluster: Cluster) -> Snapshot:
        """A snapshot by a process of its own, which is killed if it is late or the watch is to end."""
        collector = Collector(cluster.address, self._settings.timeout_s)
        with self._lock:
            if self._is_stopped:
                raise ClusterError("The watch is ending.")
            self._collector = collector
        return collector.take(lambda _: None, lambda _: None)

    def _note(self, analysed: AnalysedSnapshot) -> None:
        now, diagnosis = time.monotonic(), analysed.diagnosis
        changes = self._sightings.take(analysed, now)
        self._sightings.track(self._standing.present)
        self._found.update(diagnosis.findings[index].kind for index in changes.new)
        waits, oldest_s = waits_of(diagnosis)
        self._figures = replace(
            self._figures,
            findings=Counter(sighting.kind for sighting in self._sightings.lasting),
            found=dict(self._found),
            waits=waits,
            oldest_wait_s=oldest_s,
            nodes_seen=diagnosis.coverage.nodes,
            workers_seen=diagnosis.coverage.workers,
            full_looks=self._figures.full_looks + 1,
        )
        self._tell(analysed, changes, now)

    def _tell(self, analysed: AnalysedSnapshot, changes: Changes, now: float) -> None:
        for over in changes.over:
            self._events.tell("over", f"{over.kind} ended after {duration(now - over.began_s)}: {over.summary}")
        for one, into in changes.merged:
            self._events.tell("merged", f"{one.kind} ({one.summary}) is now part of: {into.summary}")
        if changes.lasting:
            oldest = min(changes.lasting, key=lambda sighting: sighting.began_s)
            more = f"; and {len(changes.lasting) - 1} more" * (len(changes.lasting) > 1)
            age = duration(now - oldest.began_s)
            self._events.tell("lasting", f"{oldest.kind} for {age}: {oldest.summary}{more}")
        if changes.new:
            self._tell_new(analysed, changes.new, self._save(analysed.snapshot))
        diagnosis = analysed.diagnosis
        seen = diagnosis.coverage.workers
        if changes == Changes():
            blocked = [finding for finding in diagnosis.findings if verdict_of(finding) == "blocked"]
            chains = f"; {plural(len(blocked), 'open chain')} of waits" if blocked else ""
            self._events.tell(
                "seen", f"nothing is stuck; read {seen.observed} of {seen.total} workers and drivers{chains}"
            )

    def _tell_new(self, analysed: AnalysedSnapshot, new: Sequence[int], file: str | None) -> None:
        documents = json.loads(check_json(analysed))["findings"]
        for index in new:
            finding = analysed.diagnosis.findings[index]
            document = {
                "schema": SCHEMA,
                **documents[index],
                "address": analysed.snapshot.address,
                "taken_at": analysed.snapshot.taken_at,
                "file": file,
            }
            self._events.tell("finding", f"{_headline(finding)}; {file or 'not saved'}", finding=document)
            if self._command is not None:
                self._command.give(to_json(document) + b"\n")

    def _save(self, taken: Snapshot) -> str | None:
        """The name of the file, or None while it cannot be written."""
        try:
            with self._saving:
                return str(self._ring.save(taken))
        except SnapshotFileError as error:
            given_up = " The oldest unsaved snapshot is dropped." if len(self._unsaved) == MOST_UNSAVED else ""
            self._unsaved.append(taken)
            self._events.tell(
                "unsaved", f"{error.message} The snapshot stays in memory until it can be saved.{given_up}"
            )
            return None

    def _save_late(self) -> None:
        """Writes what could not be written before, if it can be now."""
        while self._unsaved:
            try:
                with self._saving:
                    path = self._ring.save(self._unsaved[0])
            except SnapshotFileError:
                return
            self._unsaved.popleft()
            self._events.tell("saved", f"after a retry: {path}")


def _headline(finding: Finding) -> str:
    suspected = "" if finding.confirmed or finding.kind == "stalled" else "suspected "
    return f"{suspected}{finding.kind}: {finding.summary}"

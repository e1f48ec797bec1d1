"""The watch itself: polls the cluster, takes snapshots when they are due, and reports what has changed."""

from __future__ import annotations

import gc
import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting.collector import SAVED_HISTORY, Collector, Terms
from dstack.errors import DstackError, UsageError
from dstack.files.document_file import to_json
from dstack.model.diagnosis import Finding, FindingKind, Ratio
from dstack.observed.reading_options import ReadingOptions
from dstack.probes.connection.connect import Cluster, connect
from dstack.report import prediction_text
from dstack.report.check_json import check_json
from dstack.report.finding import standing
from dstack.report.page.page_maker import PageMaker
from dstack.report.summaries import headline
from dstack.watch.alerts import Changes, FindingTracker
from dstack.watch.events import Command, Events
from dstack.watch.figures import Figures, spent_s, waits_of
from dstack.watch.predictions import PossibleDeadlocks
from dstack.watch.rolling_profile import MAX_PAUSE_S, RollingProfile, pauses
from dstack.watch.settings import WatchSettings
from dstack.watch.snapshot_saver import SnapshotDirectory, SnapshotSaver, WrittenFiles
from dstack.watch.trigger import POLL_S, Item, ProgressTracker, SnapshotTrigger
from dstack.words import duration, plural

SCHEMA = "dstack.watch/1"
LAST_EVENT_S = 0.2
PAGE_S = 120.0
"""The time limit of a page; the cluster is not polled meanwhile."""


class ClusterWatch:
    """A watch of one cluster. :meth:`run` never returns; :meth:`stop`, from another thread, ends its current work."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._events = Events(as_json=settings.as_json)
        directory = SnapshotDirectory(settings.directory, settings.keep)
        self._saver = SnapshotSaver(directory, self._events, PageMaker(PAGE_S) if settings.html else None)
        self._command = Command(settings.command, self._events) if settings.command else None
        self._progress = ProgressTracker()
        self._trigger = SnapshotTrigger(settings.stuck_after_s, settings.share)
        self._findings = FindingTracker(settings.stuck_after_s)
        self._possible = PossibleDeadlocks() if settings.predict else None
        options = ReadingOptions(logs="none" if settings.no_logs else "concerned")
        self._collector = Collector(self._address, Terms(settings.timeout_s, options, history=SAVED_HISTORY))
        self._profile = _rolling_profile(settings, self._address, self._events)
        self._found: Counter[FindingKind] = Counter()
        self._cluster: Cluster | None = None
        self._lost_at: float | None = None
        self._pauses = pauses()
        self._figures = Figures()
        self._began: float | None = None

    def run(self) -> None:
        """Watches until the process ends. Raises :class:`dstack.DstackError` if it cannot connect at first."""
        self._cluster = connect(self._settings.address)
        self._start(self._cluster)
        while True:
            time.sleep(self._settings.every_s if self._round() else next(self._pauses))

    def stop(self) -> None:
        """Ends the current work, except that a file that is being written is completed."""
        self._collector.cancel()
        if self._command is not None:
            self._command.stop()
        self._saver.stop()
        if self._profile is not None:
            self._profile.stop()
        if self._began is not None:
            counts = (
                (self._figures.polls, "poll"),
                (self._figures.snapshots, "snapshot"),
                (self._found.total(), "finding"),
                *([(len(self._possible), "possible deadlock")] if self._possible is not None else []),
            )
            done = ", ".join(plural(count, what) for count, what in counts)
            lost = f"; {plural(self._saver.unsaved, 'snapshot')} not saved" if self._saver.unsaved else ""
            has_files = self._found or self._possible or (self._profile is not None and self._profile.has_saved)
            replay = f"; to replay: dstack tui {shlex.quote(self._settings.directory)}" if has_files else ""
            text = f"after {duration(time.monotonic() - self._began)}: {done}{lost}{replay}"
            self._events.emit("stopped", text, within_s=LAST_EVENT_S)

    def _start(self, cluster: Cluster) -> None:
        self._began = time.monotonic()
        for note in cluster.notes:
            self._events.emit("note", note)
        where = f"{cluster.address}, Ray {cluster.ray_version}"
        every_s, stuck_after_s = self._settings.every_s, self._settings.stuck_after_s
        how = f"poll every {every_s:g} s, snapshot after {stuck_after_s:g} s without progress"
        if self._profile is not None:
            how += f", profile at {self._settings.profile_hz:g} Hz"
        self._events.emit("started", f"watching {where}; {how}")
        if self._settings.metrics:
            self._events.emit("metrics", f"at {self._serve_metrics(self._settings.metrics)}")
        if self._profile is not None:
            self._profile.start()

    def _address(self) -> str | None:
        """The address of the cluster, None while it is unreachable."""
        return self._cluster.address if self._cluster else None

    def _serve_metrics(self, place: str) -> str:
        """Serves the metrics, and returns their URL."""
        try:
            from dstack.watch.metrics import serve
        except ImportError as error:
            raise UsageError(
                "dstack watch --metrics needs the package prometheus_client.",
                "Install it: pip install 'ray-dstack[metrics]'",
            ) from error
        return serve(place, lambda: self._figures)

    def _round(self) -> bool:
        """Polls once, and takes a snapshot if it is due; false if the cluster was unreachable."""
        if self._saver.unsaved:
            self._retry_saving()
        try:
            self._cluster = cluster = self._cluster or connect(self._settings.address)
            self._poll()
        except DstackError as error:
            self._lose(error)
            return False
        self._regain(cluster)
        now = time.monotonic()
        unchanged = self._progress.unchanged_for(self._settings.stuck_after_s, now)
        has_progress = self._findings.has_progress(self._progress.present)
        if reason := self._trigger.reason(unchanged, now, has_progress=has_progress):
            self._events.emit("looking", reason)
            self._inspect(unchanged)
            return True
        if self._possible is not None and self._trigger.may_predict(now):
            self._inspect(unchanged, is_only_to_predict=True)
        if not unchanged:
            self._figures = replace(self._figures, waits={}, oldest_wait_s=0.0)
        return True

    def _poll(self) -> None:
        poll = self._collector.poll(POLL_S)
        now = time.monotonic()
        self._progress.update(poll, now)
        answered = len(poll.workers)
        self._figures = replace(
            self._figures,
            is_up=True,
            longest_unmoved_s=self._progress.longest_unchanged_s(now),
            answered=Ratio(observed=answered, total=answered + len(poll.silent)),
            polls=self._figures.polls + 1,
        )

    def _lose(self, error: DstackError) -> None:
        self._cluster = None
        if self._profile is not None:
            self._profile.interrupt()
        self._figures = replace(self._figures, is_up=False)
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._events.emit("lost", f"{error.message} Retrying, at least every {MAX_PAUSE_S:g} s")

    def _regain(self, cluster: Cluster) -> None:
        self._cluster = cluster
        if self._lost_at is not None:
            away = duration(time.monotonic() - self._lost_at)
            self._events.emit("back", f"{cluster.address} is reachable again after {away}")
            self._lost_at, self._pauses = None, pauses()

    def _inspect(self, unchanged: frozenset[Item], *, is_only_to_predict: bool = False) -> None:
        """Takes a snapshot, and reports findings that are new, lasting or over, and possible deadlocks that are new."""
        before = spent_s()
        try:
            snapshot = self._collector.take()
        except DstackError as error:
            self._trigger.note_failure(time.monotonic())
            self._events.emit("failed", f"no snapshot: {error}")
            return
        if self._profile is not None and not is_only_to_predict:
            self._profile.save_soon()
        if self._possible is not None:
            snapshot = self._possible.completed(snapshot)
        try:
            self._compare(AnalysedSnapshot.of(snapshot), is_only_to_predict=is_only_to_predict)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            file = self._saver.save(snapshot, with_page=False).snapshot or "a snapshot"
            self._events.emit("failed", f"internal error in the analysis of {file}: {why}. Please report it")
        gc.collect()  # parts of an analysis refer to each other, and may hold the snapshot
        has_unproven = bool(self._findings.unproven)
        self._trigger.note_snapshot(unchanged, time.monotonic(), spent_s() - before, has_unproven=has_unproven)

    def _compare(self, analysed: AnalysedSnapshot, *, is_only_to_predict: bool) -> None:
        now, diagnosis = time.monotonic(), analysed.diagnosis
        changes = self._findings.update(analysed, now)
        self._findings.track(self._progress.present)
        self._found.update(diagnosis.findings[index].kind for index in changes.new)
        waits, oldest_s = waits_of(diagnosis)
        self._figures = replace(
            self._figures,
            findings=Counter(finding.kind for finding in self._findings.lasting),
            found=dict(self._found),
            waits=waits,
            oldest_wait_s=oldest_s,
            nodes_seen=diagnosis.coverage.nodes,
            workers_seen=diagnosis.coverage.workers,
            snapshots=self._figures.snapshots + 1,
        )
        files = self._report(analysed, changes, now)
        if changes == Changes() and not is_only_to_predict:
            seen, shown = diagnosis.coverage.workers, headline(diagnosis)
            read = f"read {seen.observed} of {seen.total} workers and drivers"
            self._events.emit("seen", f"{diagnosis.verdict}: {shown}; {read}")
        for one in self._possible.new(analysed) if self._possible is not None else ():
            files = files or self._saver.save(analysed.snapshot)
            text = f"{prediction_text.headline(one)}; {files}"
            self._events.emit("possible", text, possible_deadlock=one, file=files.snapshot, page=files.page)

    def _report(self, analysed: AnalysedSnapshot, changes: Changes, now: float) -> WrittenFiles | None:
        """Reports what has changed; returns the files of the snapshot if it was saved for that."""
        for over in changes.over:
            self._events.emit("over", f"{over.kind} ended after {duration(now - over.began_s)}: {over.summary}")
        for one, into in changes.merged:
            self._events.emit("merged", f"{one.kind} ({one.summary}) is now part of: {into.summary}")
        if changes.lasting:
            oldest = min(changes.lasting, key=lambda finding: finding.began_s)
            more = f"; and {len(changes.lasting) - 1} more" * (len(changes.lasting) > 1)
            age = duration(now - oldest.began_s)
            self._events.emit("lasting", f"{oldest.kind} for {age}: {oldest.summary}{more}")
        files = self._saver.save(analysed.snapshot) if changes.new else None
        if files is not None:
            self._report_new(analysed, changes.new, files)
        return files

    def _report_new(self, analysed: AnalysedSnapshot, new: Sequence[int], files: WrittenFiles) -> None:
        documents = json.loads(check_json(analysed))["findings"]
        for index in new:
            finding = analysed.diagnosis.findings[index]
            document = {
                "schema": SCHEMA,
                **documents[index],
                "address": analysed.snapshot.address,
                "taken_at": analysed.snapshot.taken_at,
                "file": files.snapshot,
                "page": files.page,
            }
            self._events.emit("finding", f"{_headline(finding)}; {files}", finding=document)
            if self._command is not None:
                self._command.queue(to_json(document) + b"\n")

    def _retry_saving(self) -> None:
        """Retries to write snapshots; their pages count towards the CPU time of snapshots."""
        before = spent_s()
        self._saver.retry()
        self._trigger.note_cost(time.monotonic(), spent_s() - before)


def _rolling_profile(
    settings: WatchSettings, address: Callable[[], str | None], events: Events
) -> RollingProfile | None:
    if settings.profile_hz is None:
        return None
    return RollingProfile(settings.directory, settings.profile_hz, address, events)


def _headline(finding: Finding) -> str:
    suspected = "" if finding.confirmed or finding.kind == "stalled" else "suspected "
    since = f"; {text}" if (text := standing(finding)) else ""
    return f"{suspected}{finding.kind}: {finding.summary}{since}"

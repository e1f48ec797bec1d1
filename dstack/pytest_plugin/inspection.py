"""Takes and explains snapshots of the cluster that a test uses."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from dstack.analysis.findings import is_stuck, verdict_of
from dstack.analysis.index.shown_frames import user_frame
from dstack.analysis.index.subjects import names_of
from dstack.analysis.naming.descriptions import asyncio_task
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting.collector import SAVED_HISTORY, Collector, Terms
from dstack.errors import ClusterError, DstackError, SnapshotFileError
from dstack.files.file_output import write_file
from dstack.files.snapshot_file import save
from dstack.model.diagnosis import Finding
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Coroutine
from dstack.probes.connection.own_cluster import begun_cluster, connected_cluster, own_worker, require_no_client
from dstack.pytest_plugin.options import PluginSettings
from dstack.report.not_observed import gaps_in_words
from dstack.report.page.page_maker import PageMaker
from dstack.report.text import report_text
from dstack.words import SHOWN, plural, visible

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Inspection:
    """An analysed snapshot; ``report`` also names the saved file, which is ``file``."""

    analysed: AnalysedSnapshot
    report: str
    file: Path | None = None

    @property
    def stuck(self) -> list[Finding]:
        """The deadlocks and hangs, confirmed or suspected."""
        return [one for one in self.analysed.diagnosis.findings if is_stuck(one)]

    def gap_lines(self) -> str:
        """What could change the verdict, one line for each of the first reasons."""
        gaps = gaps_in_words(self.analysed)
        more = [f"and {plural(len(gaps) - SHOWN, 'more such reason')}"] if len(gaps) > SHOWN else []
        return "".join(f"  {visible(text)}\n" for text in (*(gap.text for gap in gaps[:SHOWN]), *more))

    def coroutine_lines(self) -> str:
        """One line for each coroutine of this process: its name and its innermost line of user code."""
        worker = own_worker(self.analysed.snapshot)
        samples = (one for sample in self.analysed.snapshot.samples[:1] for one in sample.workers if worker)
        own = next((one for one in samples if worker and one.worker_id == worker.worker_id and one.process), None)
        found = own.process.coroutines if own and own.process else ()
        return "".join(f"  {line}\n" for one in found if own and (line := self._line_of(own.worker_id, one)))

    def _line_of(self, worker_id: str, coroutine: Coroutine) -> str:
        frame = user_frame(self.analysed.snapshot.frames_of(coroutine))
        if frame is None:
            return ""
        source = self.analysed.snapshot.source_line(frame.file, frame.line) or ""
        task = asyncio_task(*names_of(self.analysed.first_index, worker_id, coroutine))
        return visible(f"{task}, {frame.file}:{frame.line}, in {frame.function}  {source}".rstrip())


class Inspector:
    """Takes snapshots for one test; another thread can cancel them.

    Findings with a member in ``settings.reported`` are left out, unless this test waits for them as well. On a cluster
    that this process did not start, only the findings of its own job are included. The saved file has everything.
    """

    def __init__(self, item: pytest.Item, settings: PluginSettings) -> None:
        self._settings = settings
        self._file_name = _file_name(item.nodeid)
        terms = Terms(TIMEOUT_S, history=SAVED_HISTORY if settings.directory else 0)
        self._collector = Collector(self._address, terms)
        self._pages = PageMaker()

    def inspect(self, *, keep: bool = False) -> Inspection:
        """Takes a snapshot, and saves it if ``keep`` is set. Raises :class:`dstack.DstackError`."""
        path = self._settings.directory / self._file_name if keep and self._settings.directory else None
        with self._collector as collector:
            whole = collector.take_analysed(_analysed, early=lambda early: _save_if_possible(early, path))
        shown = _without_reported(whole, self._settings.reported)
        left_out = len(whole.diagnosis.findings) - len(shown.diagnosis.findings)
        note = f"Not shown: {plural(left_out, 'finding')} that failed earlier tests.\n" if left_out else ""
        is_saved, saved = _saved(whole.snapshot, path)
        return Inspection(shown, report_text(shown) + note + saved, path if is_saved else None)

    def page_note(self, inspection: Inspection) -> str:
        """Makes the page of a saved snapshot, and says where it is; an empty text without a saved snapshot."""
        if inspection.file is None:
            return ""
        path = inspection.file.with_name(inspection.file.name.removesuffix(".json.gz") + ".html")
        try:
            write_file(path, self._pages.page_of(inspection.file, job=inspection.analysed.diagnosis.job), force=True)
        except DstackError as error:
            return "" if self.is_cancelled else f"The page was not saved. {error}\n"
        return f"Open it in a browser: {visible(str(path))}\n"

    def cancel(self) -> None:
        """Ends a running snapshot or page at once, and prevents later ones."""
        self._collector.cancel()
        self._pages.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._collector.is_cancelled

    def _address(self) -> str:
        if self._settings.address:
            return self._settings.address
        require_no_client()
        own = connected_cluster()
        named = os.environ.get("RAY_ADDRESS")
        address = own.address if own else named if named and named != "auto" else begun_cluster()
        if address is None:
            raise ClusterError("The test is not connected to a Ray cluster.", "Give its address with --dstack-address.")
        return address


def _analysed(snapshot: Snapshot) -> AnalysedSnapshot:
    return AnalysedSnapshot.of(snapshot, job=_own_job(snapshot))


def _own_job(snapshot: Snapshot) -> str | None:
    own = connected_cluster()
    worker = own_worker(snapshot)
    return worker.job_id if worker and own and not own.is_begun_here else None


def saved_under(settings: PluginSettings, nodeid: str, snapshot: Snapshot) -> str:
    """Saves a snapshot in the directory of the settings, if there is one; what to tell, which may be nothing."""
    return _saved(snapshot, settings.directory / _file_name(nodeid) if settings.directory else None)[1]


def _without_reported(analysed: AnalysedSnapshot, reported: set[Key]) -> AnalysedSnapshot:
    """The diagnosis without the findings that were reported before and that this test does not wait for."""
    diagnosis = analysed.diagnosis
    worker = own_worker(analysed.snapshot)
    main = threading.main_thread().native_id

    def is_own(key: Key) -> bool:
        vertex = diagnosis.vertices[key]
        is_here = worker is not None and vertex.worker_id == worker.worker_id
        return is_here and (vertex.os_thread_id == main or vertex.coroutine_id is not None)

    def is_old(finding: Finding) -> bool:
        return not reported.isdisjoint(finding.members) and not any(
            map(is_own, (*finding.members, *finding.blocked_behind))
        )

    findings = tuple(finding for finding in diagnosis.findings if not is_old(finding))
    verdict = verdict_of(findings[0].kind) if findings else "idle"
    shown = msgspec.structs.replace(diagnosis, findings=findings, verdict=verdict)
    return replace(analysed, diagnosis=shown)


def _file_name(nodeid: str) -> str:
    """A name that no other test, process or retry uses."""
    words = re.sub(r"[^\w.]+", "-", nodeid).strip("-")[-120:]
    return f"{words}-{os.getpid()}-{os.urandom(2).hex()}.json.gz"


def _save_if_possible(snapshot: Snapshot, path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(SnapshotFileError):
            save(snapshot, path, force=True)


def _saved(snapshot: Snapshot, path: Path | None) -> tuple[bool, str]:
    """Saves a snapshot; whether that succeeded, and what to tell."""
    if path is None:
        return False, ""
    try:
        save(snapshot, path, force=True)
    except SnapshotFileError as error:
        return False, f"The snapshot was not saved. {error}\n"
    return True, f"Saved. Show it again with: dstack show {visible(str(path))}\n"

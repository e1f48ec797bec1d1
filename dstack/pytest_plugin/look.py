"""One look at the cluster that a test uses."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.evidence.coverage import has_holes
from dstack.analysis.findings import is_stuck, verdict_of
from dstack.collector import Collector
from dstack.diagnosis import Diagnosis, Finding
from dstack.errors import ClusterError, SnapshotFileError
from dstack.model import Coroutine, Snapshot
from dstack.probes.connection.own_cluster import begun_cluster, connected_cluster, own_worker, require_no_client
from dstack.pytest_plugin.settings import Settings
from dstack.report.text import report_text
from dstack.snapshot_file import save
from dstack.vertex_keys import Key
from dstack.visible import visible
from dstack.words import plural

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Seen:
    """A snapshot and its diagnosis; ``report`` also says where the file is."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    report: str

    @property
    def stuck(self) -> list[Finding]:
        """What is stuck for good, suspected too."""
        return [one for one in self.diagnosis.findings if is_stuck(one)]

    def awaits(self) -> str:
        """Where the coroutines of this process stand, one a line; empty where none was seen."""
        worker = own_worker(self.snapshot)
        samples = (one for sample in self.snapshot.samples[:1] for one in sample.workers if worker)
        own = next((one.process for one in samples if worker and one.worker_id == worker.worker_id), None)
        return "".join(f"  {line}\n" for one in (own.coroutines if own else ()) if (line := self._place_of(one)))

    def _place_of(self, coroutine: Coroutine) -> str:
        frame = next((one for one in self.snapshot.frames_of(coroutine) if one.origin == "user"), None)
        if frame is None:
            return ""
        source = self.snapshot.sources.get(frame.file, {}).get(frame.line, "").strip()
        return visible(f"{coroutine.name}, {frame.file}:{frame.line}, in {frame.function}  {source}".rstrip())


class Look:
    """A look that can be ended from another thread.

    Left out is what earlier tests have failed for, by the members in ``told``, unless this test waits for it as well.
    On a cluster that this process did not begin, where others may be at work, only what its own job takes part in is
    told. The file has everything.
    """

    def __init__(self, item: pytest.Item, settings: Settings, told: set[Key]) -> None:
        self._settings = settings
        self._told = told
        self._name = _file_name(item.nodeid)
        self._collector: Collector | None = None
        self.is_cancelled = False

    def take(self, *, keep: bool = False) -> Seen:
        """What there is to see now, saved if that is asked for; raises :class:`dstack.DstackError`."""
        collector = self._collector = Collector(self._address(), TIMEOUT_S)
        if self.is_cancelled:
            collector.cancel()
        path = self._settings.directory / self._name if keep and self._settings.directory else None
        taken = collector.take(lambda _: None, lambda early: _save_if_possible(early, path))
        whole = diagnose(taken, job=_own_job(taken))
        diagnosis = _without(taken, whole, self._told)
        left_out = len(whole.findings) - len(diagnosis.findings)
        rest = f"Not shown: {plural(left_out, 'finding')} that failed earlier tests.\n" if left_out else ""
        return Seen(taken, diagnosis, report_text(taken, diagnosis) + rest + _saved(taken, path))

    def cancel(self) -> None:
        """Ends a look that is under way, at once, and the one that would follow."""
        self.is_cancelled = True
        if self._collector is not None:
            self._collector.cancel()

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


def _own_job(snapshot: Snapshot) -> str | None:
    own = connected_cluster()
    worker = own_worker(snapshot)
    return worker.job_id if worker and own and not own.is_begun_here else None


def _without(snapshot: Snapshot, diagnosis: Diagnosis, told: set[Key]) -> Diagnosis:
    """The diagnosis without findings that were told before and that nobody waits for in this test."""
    worker = own_worker(snapshot)
    main = threading.main_thread().native_id

    def is_ours(key: Key) -> bool:
        vertex = diagnosis.vertices[key]
        is_here = worker is not None and vertex.worker_id == worker.worker_id
        return is_here and (vertex.os_thread_id == main or vertex.coroutine_id is not None)

    def is_old(finding: Finding) -> bool:
        return not told.isdisjoint(finding.members) and not any(
            map(is_ours, (*finding.members, *finding.blocked_behind))
        )

    findings = tuple(finding for finding in diagnosis.findings if not is_old(finding))
    verdict = verdict_of(findings[0]) if findings else "clear"
    incomplete = verdict != "deadlock" and has_holes(snapshot, diagnosis.vertices)
    return msgspec.structs.replace(diagnosis, findings=findings, verdict=verdict, incomplete=incomplete)


def _file_name(nodeid: str) -> str:
    """A name that no other test, process or try has."""
    words = re.sub(r"[^\w.]+", "-", nodeid).strip("-")[-120:]
    return f"{words}-{os.getpid()}-{os.urandom(2).hex()}.json.gz"


def _save_if_possible(snapshot: Snapshot, path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(SnapshotFileError):
            save(snapshot, path, force=True)


def _saved(snapshot: Snapshot, path: Path | None) -> str:
    if path is None:
        return ""
    try:
        save(snapshot, path, force=True)
    except SnapshotFileError as error:
        return f"The snapshot was not saved. {error}\n"
    return f"Saved. Show it again with: dstack show {visible(str(path))}\n"

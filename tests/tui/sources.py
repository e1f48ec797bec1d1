"""Sources of snapshots for tests of the terminal UI, which answer, fail, hang or wait for a gate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dstack.errors import ClusterError, DstackError
from dstack.files.snapshot_file import load
from dstack.model.snapshot import ClusterPoll, Snapshot
from dstack.observed.node import Failure

LACK = Failure(stage="task events", reason="Ray has no events", cause="missing", remedy="Start the dashboard.")
RECORDED = Path(__file__).resolve().parent.parent / "unit" / "recorded"


def recorded(name: str) -> Snapshot:
    """A recorded snapshot, by a prefix of its file name."""
    (path,) = RECORDED.glob(f"{name}*.json.gz")
    return load(path)


class Scripted:
    """A live source that follows a script: each call returns a snapshot, raises or hangs; the last step repeats."""

    name = "scripted"

    def __init__(self, *script: Snapshot | DstackError | Sequence[Snapshot] | None) -> None:
        self._script = list(script)
        self._cancelled = threading.Event()
        self.calls = 0
        self.polls = [ClusterPoll()]

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        self.calls += 1
        progress("reading the control plane")
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if step is None:
            self._cancelled.wait()
            raise ClusterError("Cancelled.")
        if isinstance(step, DstackError):
            raise step
        if isinstance(step, Snapshot):
            return step
        for snapshot in step[:-1]:
            early(snapshot)
        return step[-1]

    def poll(self, timeout_s: float, *, with_jobs: bool = False, with_figures: bool = False) -> ClusterPoll:
        return self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]

    def request_history(self) -> bool:
        return True

    def cancel(self) -> None:
        self._cancelled.set()


class Gated(Scripted):
    """A source whose second snapshot waits until its gate is open."""

    def __init__(self, *script: Snapshot) -> None:
        super().__init__(*script)
        self.gate = threading.Event()

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        if self.calls:
            self.gate.wait()
        return super().take(progress, early)

    def cancel(self) -> None:
        self.gate.set()

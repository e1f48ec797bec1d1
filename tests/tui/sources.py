"""Sources of snapshots for tests of the terminal UI: at once, slow, failing, hanging, out of order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dstack.errors import ClusterError, DstackError
from dstack.model import Snapshot
from dstack.snapshot_file import load

RECORDED = Path(__file__).resolve().parent.parent / "unit" / "recorded"


def recorded(name: str) -> Snapshot:
    """A recorded snapshot by the beginning of its file's name."""
    (path,) = RECORDED.glob(f"{name}*.json.gz")
    return load(path)


class Scripted:
    """A live source that gives what it was told to, one after the other: a snapshot, an error, or a wait for ever."""

    name = "scripted"
    is_live = True

    def __init__(self, *script: Snapshot | DstackError | Sequence[Snapshot] | None) -> None:
        self._script = list(script)
        self._cancelled = threading.Event()
        self.taken = 0

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        self.taken += 1
        progress("reading the control plane")
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if step is None:
            self._cancelled.wait()
            raise ClusterError("Cancelled.")
        if isinstance(step, DstackError):
            raise step
        if isinstance(step, Snapshot):
            return step
        for one in step[:-1]:
            early(one)
        return step[-1]

    def cancel(self) -> None:
        self._cancelled.set()


class Gated(Scripted):
    """One that gives nothing but the first before its gate is open."""

    def __init__(self, *script: Snapshot) -> None:
        super().__init__(*script)
        self.gate = threading.Event()

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        if self.taken:
            self.gate.wait()
        return super().take(progress, early)

    def cancel(self) -> None:
        self.gate.set()

"""The sources of the terminal UI's snapshots: a protocol, and saved files. The UI itself connects to no cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dstack.model import Snapshot
from dstack.recording import Recording
from dstack.tui.numbered_snapshot import SavedSnapshot, SavedSnapshots

NO_SNAPSHOT = "No snapshot: only recordings were opened."


@dataclass(frozen=True, slots=True)
class OpenedRecording:
    """A recording, and the name of its file."""

    name: str
    recording: Recording


class LiveSource(Protocol):
    """Takes snapshots of a running cluster. ``take`` is called from one thread, ``cancel`` from any other."""

    name: str

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        """Take a new snapshot.

        ``progress`` receives the name of each step, ``early`` each snapshot before the last, such as that of the first
        sample. Raises :class:`dstack.DstackError`.
        """
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

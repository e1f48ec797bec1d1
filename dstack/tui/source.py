"""The sources of the terminal UI's snapshots: a protocol, and saved files. The UI itself connects to no cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model import Snapshot
from dstack.recording import Recording

NO_SNAPSHOT = "No snapshot: only recordings were opened."


@dataclass(frozen=True, slots=True)
class NumberedSnapshot:
    """An analysed snapshot; ``number`` counts the snapshots of this run from 1.

    ``is_final`` is false while the second sample is in progress.
    """

    number: int
    analysed: AnalysedSnapshot
    is_final: bool = True

    @classmethod
    def of(cls, number: int, snapshot: Snapshot, *, is_final: bool = True) -> NumberedSnapshot:
        """Analyse a snapshot and prepare its stacks for merging, which takes a while for large clusters."""
        analysed = AnalysedSnapshot.of(snapshot)
        analysed.stacks.outliers()
        return cls(number, analysed, is_final)


@dataclass(frozen=True, slots=True)
class OpenedRecording:
    """A recording, and the name of its file."""

    name: str
    recording: Recording


class Source(Protocol):
    """Takes snapshots. ``take`` is called from one thread, ``cancel`` from any other."""

    name: str
    is_live: bool

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


class Files:
    """Saved snapshots, all returned by one ``take``."""

    is_live = False

    def __init__(self, name: str, snapshots: list[Snapshot]) -> None:
        self.name = name
        self.snapshots = snapshots

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        """The last snapshot; those before it are early."""
        for snapshot in self.snapshots[:-1]:
            early(snapshot)
        return self.snapshots[-1]

    def request_history(self) -> bool:
        """False: a saved snapshot has its history, or none."""
        return False

    def cancel(self) -> None:
        """Do nothing: no ``take`` is ever in progress."""

"""Where the terminal UI has its snapshots from: handed in, so that it knows nothing of clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.thread_pages import Stacks
from dstack.diagnosis import Diagnosis
from dstack.model import Snapshot


@dataclass(frozen=True)
class Look:
    """An analysed snapshot; ``number`` counts the snapshots of this run from 1.

    ``is_final`` is false while the second sample is still being taken.
    """

    number: int
    analysed: AnalysedSnapshot
    is_final: bool = True

    @classmethod
    def of(cls, number: int, snapshot: Snapshot, *, is_final: bool = True) -> Look:
        """Analyse a snapshot and prepare its stacks for merging, which takes a while for large clusters."""
        look = cls(number, AnalysedSnapshot.of(snapshot), is_final)
        look.stacks.outliers()
        return look

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot."""
        return self.analysed.snapshot

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the snapshot."""
        return self.analysed.diagnosis

    @property
    def index(self) -> SampleIndex:
        """The index of the merged sample."""
        return self.analysed.merged_index

    @property
    def stacks(self) -> Stacks:
        """All stacks of the merged sample."""
        return self.analysed.stacks


class Source(Protocol):
    """Gives snapshots. ``take`` is called from a thread, ``cancel`` from any other."""

    name: str
    is_live: bool

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        """A new snapshot.

        ``progress`` is told in a few words what is being done, ``early`` gets what was seen before the second look.
        Raises :class:`dstack.DstackError`.
        """
        ...

    def cancel(self) -> None:
        """Ends a ``take`` that is under way, at once, whatever it waits for."""
        ...


class Files:
    """Saved snapshots, given all at once; there are no others to come."""

    is_live = False

    def __init__(self, name: str, snapshots: list[Snapshot]) -> None:
        self.name = name
        self.snapshots = snapshots

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        """The last of them; those before it are early."""
        for one in self.snapshots[:-1]:
            early(one)
        return self.snapshots[-1]

    def cancel(self) -> None:
        """Nothing is ever under way."""

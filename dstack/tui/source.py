"""Where the terminal UI has its snapshots from: handed in, so that it knows nothing of clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from dstack.analysis.diagnose import diagnose
from dstack.analysis.evidence.confirmation import merged
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.thread_pages import Stacks
from dstack.diagnosis import Diagnosis
from dstack.model import Snapshot


@dataclass(frozen=True)
class Look:
    """One snapshot with what was concluded from it; ``number`` counts the looks of this run from 1.

    ``is_final`` is false while a second look at those who seem stuck is still under way.
    """

    number: int
    snapshot: Snapshot
    diagnosis: Diagnosis
    is_final: bool = True

    @classmethod
    def of(cls, number: int, snapshot: Snapshot, *, is_final: bool = True) -> Look:
        """The look with its diagnosis and its stacks ready to be merged, which takes a while for large clusters."""
        look = cls(number, snapshot, diagnose(snapshot), is_final)
        look.stacks.outliers()
        return look

    @cached_property
    def index(self) -> SampleIndex:
        """All workers, as the first sample that has them shows them, indexed."""
        return SampleIndex(self.snapshot, merged(self.snapshot))

    @cached_property
    def stacks(self) -> Stacks:
        """All stacks."""
        return Stacks(self.index, self.diagnosis.vertices)


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

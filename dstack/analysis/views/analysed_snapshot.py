"""A snapshot with its diagnosis, and the indexes that reports and views share.

A report needs few of the views, so each is imported where it is made: that of a history takes 30 ms.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.process_index import KnownElsewhere
from dstack.analysis.index.sample_index import SampleIndex
from dstack.call_sites import ROOM_FOR_VALUES
from dstack.model.diagnosis import NODES_SETTLE_S, Diagnosis
from dstack.model.snapshot import Sample, Snapshot
from dstack.model.vertex_facts import SubjectKind
from dstack.processes.gc_pause import GcPause

if TYPE_CHECKING:
    from dstack.analysis.history.task_index import HistoryIndex
    from dstack.analysis.history.task_time import TaskTime
    from dstack.analysis.views.all_stacks import Stacks
    from dstack.analysis.views.object_memory import ObjectMemory
    from dstack.analysis.views.timeline import Timeline
    from dstack.model.prediction import Prediction

STORE = "object_store_memory"
MEMORY: tuple[SubjectKind, ...] = ("room for arguments", "transfer of arguments")
"""What a wait for the object store ends in."""
EMPTY = Sample(began_s=0.0, ended_s=0.0)


@dataclass(frozen=True)
class AnalysedSnapshot:
    """A snapshot, its diagnosis, and the index of its first sample, which is empty if there is no sample."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    first_index: SampleIndex = field(repr=False, compare=False)

    @classmethod
    def of(
        cls, snapshot: Snapshot, *, job: str | None = None, nodes_settle_s: float = NODES_SETTLE_S
    ) -> AnalysedSnapshot:
        """Diagnose a snapshot; the other arguments are those of :func:`dstack.analysis.diagnose.diagnose`."""
        with GcPause():
            first = SampleIndex(snapshot, snapshot.samples[0] if snapshot.samples else EMPTY)
            return cls(snapshot, diagnose(snapshot, job=job, first=first, nodes_settle_s=nodes_settle_s), first)

    @cached_property
    def last_index(self) -> SampleIndex:
        """The index of the last sample."""
        return SampleIndex(self.snapshot, self.snapshot.samples[-1]) if self.snapshot.samples[1:] else self.first_index

    @cached_property
    def merged_index(self) -> SampleIndex:
        """The index of the first sample completed with what only the second sample has."""
        if not self.snapshot.samples[1:]:
            return self.first_index
        first, second = self.snapshot.samples[:2]
        return SampleIndex(self.snapshot, first, KnownElsewhere(other=second))

    @cached_property
    def history(self) -> HistoryIndex | None:
        """The history of its tasks, None if it has none."""
        from dstack.analysis.history.task_index import HistoryIndex

        return HistoryIndex(self.merged_index, self.snapshot.history) if self.snapshot.history else None

    @cached_property
    def task_time(self) -> TaskTime | None:
        """Where its tasks spend their time, None without a history."""
        from dstack.analysis.history.task_time import TaskTime

        return TaskTime(self.history) if self.history else None

    @cached_property
    def stacks(self) -> Stacks:
        """All stacks of the merged sample."""
        from dstack.analysis.views.all_stacks import Stacks

        return Stacks(self.merged_index, self.diagnosis.vertices)

    @cached_property
    def timeline(self) -> Timeline | None:
        """The timeline of its tasks, None if it has no history."""
        from dstack.analysis.views.timeline import Timeline

        found = self.diagnosis
        return Timeline(self.history, found.vertices, stuck=found.stuck) if self.history else None

    @cached_property
    def object_memory(self) -> ObjectMemory:
        """Who holds which bytes of the object store."""
        from dstack.analysis.views.object_memory import ObjectMemory

        return ObjectMemory(self.last_index)

    @cached_property
    def shown_waits(self) -> Set[tuple[str, str]]:
        """The pairs of tasks of which its samples, or earlier ones, show the first in a wait for the second."""
        from dstack.analysis.predict.seen_world import shown_waits

        return shown_waits(self.diagnosis.vertices).union(self.snapshot.earlier_waits)

    @cached_property
    def prediction(self) -> Prediction:
        """The deadlocks that another order of its calls could reach."""
        from dstack.analysis.predict import predict

        return predict([self.history] if self.history else [], self.shown_waits, self.snapshot.outlines)

    @property
    def is_short_of_memory(self) -> bool:
        """Whether a wait depends on room in the object store, or on transfers between object stores."""
        vertices = self.diagnosis.vertices
        ends = (end.vertex for one in self.diagnosis.findings for end in one.final_blockers)
        calls = (vertex.wait.called for vertex in vertices.values() if vertex.wait)
        return (
            any(STORE in one.resources for one in self.diagnosis.findings)
            or any(vertices[key].subject.what in MEMORY for key in ends if key in vertices)
            or any(call is not None and call.site in ROOM_FOR_VALUES for call in calls)
        )

    @cached_property
    def starving(self) -> Sequence[str]:
        """A sentence for each node with a free resource for which tasks wait that are pinned to other nodes."""
        from dstack.analysis.views.node_resources import confirmed, starving_in_words, starving_nodes

        found = starving_nodes(self.first_index)
        if found and self.snapshot.samples[1:]:
            found = confirmed(found, starving_nodes(self.last_index))
        return [starving_in_words(self.first_index, one) for one in found]

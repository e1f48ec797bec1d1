"""What the sections of a report are made from, and the links between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.stack_groups import ChosenStacks
from dstack.recording import Recording
from dstack.vertex_keys import Key


@dataclass(frozen=True)
class ReportData:
    """A snapshot, those of the same cluster before it in the order of time, and recordings with their names."""

    analysed: AnalysedSnapshot
    before: Iterable[AnalysedSnapshot] = ()
    recordings: Sequence[tuple[str, Recording]] = ()

    @cached_property
    def stacks(self) -> ChosenStacks:
        """The stacks of the application, of one job if the diagnosis is of one."""
        return ChosenStacks(self.analysed, job=self.analysed.diagnosis.job)

    @cached_property
    def stack_ids(self) -> Mapping[Key, str]:
        """The ids of the elements that show the stacks of executions; equal stacks of a class share one."""
        numbers: dict[object, int] = {}
        return {
            one.key: f"stack-{numbers.setdefault((one.kind, one.path), len(numbers))}" for one in self.stacks.executions
        }

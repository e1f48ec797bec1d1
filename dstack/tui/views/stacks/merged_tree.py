"""All stacks merged into one tree, as lines of an outline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.stacks.app_threads import AppExecutions, Execution, PathStep
from dstack.analysis.stacks.peers import Outlier, OutlierIndex
from dstack.analysis.stacks.stack_tree import Grouping, StackBranch, TextFilter, grouping_in_words, merge
from dstack.analysis.views.thread_pages import Stacks
from dstack.report.paths import location
from dstack.report.safe_text import SafeText
from dstack.tui.views.stacks.line_parts import About, activities_in_words, ranks_part, short
from dstack.tui.widgets.outline_tree import Line
from dstack.vertex_keys import Key
from dstack.words import plural

NO_WORDS = TextFilter("")

SHOWN_OUTLIERS = 10
"""Branches with outliers are unfolded at first unless the tree has more outliers than this."""
FEW_FOUND = 200
"""Branches with matching stacks are unfolded unless the tree has more stacks than this."""


@dataclass(frozen=True, slots=True)
class MergedTree:
    """The merged stacks of the marked workers that match the filter; of all workers if none is marked."""

    stacks: Stacks
    running: AppExecutions
    root: StackBranch
    outliers_by_key: Mapping[Key, Outlier]
    outliers: OutlierIndex
    words: TextFilter

    @classmethod
    def of(
        cls,
        stacks: Stacks,
        *,
        whole: bool = False,
        grouping: Grouping | None = None,
        marked: Collection[str] = (),
        words: TextFilter = NO_WORDS,
    ) -> MergedTree:
        """Merge the stacks."""

        def is_chosen(execution: Execution) -> bool:
            is_marked = not marked or execution.worker_id in marked
            return is_marked and (not words or words.within(execution))

        running, outliers = stacks.running(whole=whole), stacks.outliers(whole=whole)
        root = merge(running.executions, by=grouping, where=is_chosen)
        return cls(stacks, running, root, outliers, OutlierIndex(root, outliers), words)

    def title(self, grouping: Grouping | None, marked: Collection[str]) -> str:
        """What is merged, and what is left out."""
        of_marked = f" of {plural(len(marked), 'marked worker')}" if marked else ""
        filtered = ", filtered" * bool(self.words)
        parts = ["Merged", *([grouping_in_words(grouping)] if grouping else [])]
        parts.append(plural(self.root.count, "stack") + of_marked + filtered)
        if self.running.left_out:
            parts.append(f"· left out: {plural(self.running.left_out, 'thread')} of Ray")
        if self.running.folded:
            parts.append(f"· folded: {plural(self.running.folded, 'library frame')}")
        return " ".join(parts)

    def lines(self) -> list[Line]:
        """One line for each branch: its number of stacks, what they do, and its outliers."""
        return [self._line(child, is_open=child.depth < 2) for child in self.root.children]

    def _line(self, branch: StackBranch, *, is_open: bool, is_part: bool = True) -> Line:
        place = branch.place
        assert place is not None
        outliers = self.outliers.within(branch)
        is_only = len(branch.children) == 1 and not branch.own
        return Line(
            branch_key(branch.path),
            self._text(branch, place, len(outliers), is_part=is_part),
            (lambda: self._below(branch, is_only)) if branch.children else (),
            is_open=is_open or is_only or self._leads_to_matches(branch, outliers),
            data=About(path=branch.path, location=(place.file, place.line) if place.is_frame else None),
        )

    def _text(self, branch: StackBranch, place: PathStep, outliers: int, *, is_part: bool) -> SafeText:
        is_own = place.origin == "user"
        text = SafeText().append(f"{branch.count:,} × ", "bold").append(short(place.name), "bold" if is_own else "")
        if is_part and place.is_frame:  # otherwise the line above or the group's name has the same ranks
            text.append(ranks_part(self.stacks.ranks_in_words(branch.executions)), "magenta")
        if outliers:
            text.append(f"  ! {plural(outliers, 'outlier')}", "bold yellow")
        text.append(f"  {activities_in_words(branch.activity)}", "" if is_own else "dim")
        if place.is_frame:
            text.append(f"  {location(place.file, place.line)}", "cyan")
        return text

    def _below(self, branch: StackBranch, is_open: bool) -> list[Line]:
        return [self._line(child, is_open=is_open, is_part=child.count < branch.count) for child in branch.children]

    def _leads_to_matches(self, branch: StackBranch, outliers: Sequence[Execution]) -> bool:
        """Whether to unfold the branch for a few outliers or for stacks that match the filter."""
        if outliers and len(self.outliers.within(self.root)) <= SHOWN_OUTLIERS:
            return True
        if not self.words or self.root.count > FEW_FOUND or self.words.along(branch.path):
            return False
        return any(self.words.along(execution.path) for execution in branch.executions[:SHOWN_OUTLIERS])


def branch_key(path: Sequence[PathStep]) -> str:
    """The key of a branch's line, the same in each tree."""
    return "\0".join(f"{place.name}\1{place.file}\1{place.line}" for place in path)


def branch_keys(path: Sequence[PathStep]) -> list[str]:
    """The keys of the lines from the root down to a branch."""
    return [branch_key(path[:depth]) for depth in range(1, len(path) + 1)]

"""The trees of stacks, by process or merged, and the parts that all lines about stacks share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import TypeVar

from dstack.analysis.stacks.app_threads import Activity, AppExecutions, Execution
from dstack.analysis.stacks.peers import Outlier, OutlierIndex
from dstack.analysis.stacks.stack_tree import Grouping, StackBranch, TextFilter, grouping_in_words, merge
from dstack.analysis.views.all_stacks import Stacks
from dstack.analysis.views.snapshot_changes import SnapshotChanges
from dstack.analysis.views.stack_pages import ChildThreads, ProcessThreads, ThreadSummary, child_threads, worker_name
from dstack.model.profile import PathStep
from dstack.model.snapshot import Node, Worker
from dstack.model.vertex_keys import Key
from dstack.report.rich_text import SafeText, location
from dstack.report.stacks_text import WORDS, activities_in_words, activity_word, short
from dstack.tui.views.base import marked
from dstack.tui.widgets.outline import Line
from dstack.words import plural

T = TypeVar("T")
CONTEXT_LINES = 3
"""Number of source lines shown before and after a frame's line."""
FEW = 5
"""Lists on a page that are not longer are unfolded at first."""
SHOWN_ITEMS = 1_000
"""Maximum number of shown items of a list; the others are counted."""
NO_WORDS = TextFilter("")
SHOWN_OUTLIERS = 10
"""Branches with outliers are unfolded at first unless the tree has more outliers than this."""
FEW_FOUND = 200
"""Branches with matching stacks are unfolded unless the tree has more stacks than this."""
FEW_PROCESSES = 200
"""All nodes are unfolded at first if there are not more processes; else only the first node."""


@dataclass(frozen=True, slots=True)
class About:
    """The subject of a line: an execution or other vertex, workers to mark, a branch, or a line of code.

    ``targets`` are the vertices that it waits for; the keys of their lines begin with ``prefix``.
    """

    vertex: Key | None = None
    workers: tuple[str, ...] = ()
    path: tuple[PathStep, ...] | None = None
    location: tuple[str, int] | None = None
    targets: tuple[Key, ...] = ()
    prefix: str = ""


def source_lines(key: str, sources: Mapping[str, Mapping[int, str]], file: str, line: int) -> Iterator[Line]:
    """The recorded source lines around one, without their common indentation."""
    known = sources.get(file, {})
    around = [number for number in range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1) if number in known]
    texts = dedent("\n".join(known[number].replace("\n", " ") for number in around)).split("\n")
    for number, code in zip(around, texts, strict=False):
        mark, style = ("›", "bold") if number == line else (" ", "dim")
        text = SafeText().append(f"{mark}{number:>4} ", "dim").append(code.rstrip(), style)
        yield Line(f"{key}/{number - line}", text, data=About(location=(file, number)))


def sentence_lines(key: str, text: str, style: str = "") -> list[Line]:
    """One wrapped line with the text; none for an empty text."""
    return [Line(key, SafeText(text, style), hanging_indent=0)] if text else []


def list_lines(
    key: str,
    title: str,
    items: Sequence[T],
    line_of: Callable[[T], tuple[SafeText, About]],
    style: str = "",
    *,
    is_open: bool = False,
) -> list[Line]:
    """One line that unfolds into a line for each item."""

    def lines() -> list[Line]:
        made = [(number, *line_of(item)) for number, item in enumerate(items[:SHOWN_ITEMS])]
        shown = [Line(f"{key}/{about.vertex or number}", text, data=about) for number, text, about in made]
        more = len(items) - SHOWN_ITEMS
        return [*shown, Line(f"{key}/more", SafeText(f"and {more:,} more", "dim"))] if more > 0 else shown

    return [Line(key, SafeText(title, style), lines, is_open=is_open, hanging_indent=0)]


def mark_of(workers: Sequence[str], marked: set[str]) -> str:
    """``◆ `` if all of these workers are marked, ``◇ `` if some are."""
    count = sum(worker in marked for worker in workers)
    return "◆ " if workers and count == len(workers) else "◇ " if count else ""


def ranks_part(words: str) -> str:
    """The words for ranks, separated from the text before them."""
    return f"  {words}" if words else ""


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


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The processes by node; with ``found`` only these processes, and only these stacks of a process with keys."""

    stacks: Stacks
    marked: set[str]
    found: Mapping[str, set[Key]] | None = None
    changes: SnapshotChanges | None = None

    def title(self) -> str:
        """``By process``, with the number of marked workers."""
        marked = f", {len(self.marked):,} marked" if self.marked else ""
        return f"By process{marked}{', filtered' if self.found is not None else ''}"

    def lines(self) -> list[Line]:
        """One line for each node, with its processes below, and their threads and coroutines below those."""
        nodes = [(node, workers) for node in self.stacks.nodes if (workers := self._found_on(node))]
        few = sum(len(workers) for _, workers in nodes) <= FEW_PROCESSES
        return [self._node(node, workers, is_open=few or not number) for number, (node, workers) in enumerate(nodes)]

    def _found_on(self, node: Node) -> list[Worker]:
        workers = self.stacks.workers_on(node)
        return [one for one in workers if self.found is None or one.worker_id in self.found]

    def _node(self, node: Node, workers: Sequence[Worker], *, is_open: bool) -> Line:
        ids = tuple(worker.worker_id for worker in workers)
        activities = [self.stacks.activities.get(worker_id, {}) for worker_id in ids]
        counts: dict[Activity, int] = {activity: sum(one.get(activity, 0) for one in activities) for activity in WORDS}
        text = SafeText(mark_of(ids, self.marked)).append(self.stacks.node_names[node.node_id], "bold")
        text.append(f"  {plural(len(workers), 'process', 'processes')}{', head' * node.is_head}", "dim")
        text.append(f"  {activities_in_words(counts)}" if any(counts.values()) else "")
        return Line(
            f"node/{node.node_id}",
            text,
            lambda: [self._process(worker) for worker in workers],
            is_open=is_open,
            data=About(workers=ids),
        )

    def _process(self, worker: Worker) -> Line:
        counts = self.stacks.activities.get(worker.worker_id, {})
        text = SafeText(mark_of((worker.worker_id,), self.marked))
        text.append(worker_name(self.stacks.index, worker), "bold" if counts else "")
        text.append(ranks_part(self.stacks.ranks_of(worker))).append(f"  pid {worker.pid}", "dim")
        text.append(f"  {activities_in_words(counts)}" if counts else "")
        if not counts:
            text.append(f"  {self.stacks.process_threads(worker).trouble}", "dim")
        return Line(
            f"worker/{worker.worker_id}",
            marked("new" if self.changes and worker.worker_id in self.changes.new_workers else None, text),
            lambda: self._strands(self.stacks.process_threads(worker)),
            is_open=bool(counts) or bool(child_threads(self.stacks.index, worker.worker_id)),
            data=About(workers=(worker.worker_id,)),
        )

    def _strands(self, process_threads: ProcessThreads) -> list[Line]:
        worker_id = process_threads.worker.worker_id
        keys = self.found.get(worker_id) if self.found else None
        threads = [strand for strand in process_threads.threads if not keys or strand.key in keys]
        lines = [_strand(strand, self.changes, process_threads.name) for strand in threads]
        if process_threads.others and not keys:
            text = SafeText(f"{plural(len(process_threads.others), 'thread')} of Ray and its libraries", "dim italic")
            others = process_threads.others
            data = About(workers=(worker_id,))
            lines.append(Line(f"others/{worker_id}", text, lambda: [_strand(strand) for strand in others], data=data))
        return [*lines, *(self._child(process_threads.worker, child) for child in process_threads.children if not keys)]

    def _child(self, worker: Worker, child: ChildThreads) -> Line:
        text = SafeText().append(child.name, "bold").append(ranks_part(self.stacks.ranks_of(worker, child.process)))
        text.append(f"  pid {child.process.pid}", "dim")
        if not child.threads:
            text.append("  not read", "dim")
        key = _child_key(worker.worker_id, child.process.pid)
        data = About(workers=(worker.worker_id,))
        return Line(key, text, lambda: [_strand(strand) for strand in child.threads], is_open=True, data=data)


def _child_key(worker_id: str, pid: int) -> str:
    return f"child/{worker_id}/{pid}"


def stack_keys(stacks: Stacks, vertex: Key) -> list[str]:
    """The keys of the lines from the root down to a stack; empty if the tree does not contain it."""
    place = stacks.pages.path_to(vertex)
    if place is None:
        return []
    node_id, worker_id, child_pid = place
    below = [_child_key(worker_id, child_pid)] if child_pid is not None else []
    return [f"node/{node_id}", f"worker/{worker_id}", *below, str(vertex)]


def _strand(strand: ThreadSummary, changes: SnapshotChanges | None = None, process: str = "") -> Line:
    """What it does, its name unless that is the one of its process, what it waits for, and its call or function."""
    parts = ("" if strand.name == process else strand.name, f"→ {strand.target}" if strand.target else "")
    text = activity_word(strand.activity, sleeps=strand.sleeps).append("  ".join(filter(None, parts)))
    text.append(f"{'  ' * any(parts)}{strand.does}", "dim")
    text.append("  stack may be inconsistent" if strand.is_torn else "", "yellow")
    mark = changes.executions.get(strand.key) if changes else None
    return Line(str(strand.key), marked(mark, text), data=About(vertex=strand.key, workers=(strand.worker_id,)))

"""All stacks as lines of an outline: the cluster process by process, or merged into one tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.stacks.app_threads import Doing, Execution, Place
from dstack.analysis.stacks.outliers import Marked
from dstack.analysis.stacks.stack_tree import Branch, Words
from dstack.analysis.views.thread_pages import Offspring, Residents, Stacks, Strand
from dstack.model import Node, Worker
from dstack.report.paths import location
from dstack.report.safe_text import SafeText
from dstack.tui.views.stacks.lines import (
    SHOWN_OUTLIERS,
    WORDS,
    About,
    doing_in_words,
    doing_word,
    mark_of,
    short,
)
from dstack.tui.widgets.outline_line import Line
from dstack.vertex_keys import Key
from dstack.words import plural

FEW_PROCESSES = 200
"""Of so many, all are unfolded at first; of more, only the first node's."""
FEW_FOUND = 200
"""The branches that lead to no more stacks than this that were looked for are unfolded."""

# The cluster, process by process


@dataclass(frozen=True)
class Processes:
    """The cluster node by node; with ``found`` only these processes, and of those with keys only these stacks."""

    stacks: Stacks
    marked: set[str]
    found: Mapping[str, set[Key]] | None = None

    def lines(self) -> list[Line]:
        """One line a node, its processes below, and in each the threads and coroutines."""
        nodes = [(node, workers) for node in self.stacks.nodes if (workers := self._chosen(node))]
        few = sum(len(workers) for _, workers in nodes) <= FEW_PROCESSES
        return [self._node(node, workers, is_open=few or not number) for number, (node, workers) in enumerate(nodes)]

    def _chosen(self, node: Node) -> list[Worker]:
        workers = self.stacks.workers_on(node)
        return [one for one in workers if self.found is None or one.worker_id in self.found]

    def _node(self, node: Node, workers: Sequence[Worker], *, is_open: bool) -> Line:
        ids = tuple(worker.worker_id for worker in workers)
        doings = [self.stacks.doings.get(worker_id, {}) for worker_id in ids]
        counts: dict[Doing, int] = {doing: sum(one.get(doing, 0) for one in doings) for doing in WORDS}
        text = SafeText(mark_of(ids, self.marked)).append(f"node {node.ip}", "bold")
        text.append(f"  {plural(len(workers), 'process', 'processes')}{', head' * node.is_head}", "dim")
        text.append(f"  {doing_in_words(counts)}" if any(counts.values()) else "")
        return Line(
            f"node/{node.node_id}",
            text,
            lambda: [self._process(worker) for worker in workers],
            is_open=is_open,
            data=About(workers=ids),
        )

    def _process(self, worker: Worker) -> Line:
        counts = self.stacks.doings.get(worker.worker_id, {})
        text = SafeText(mark_of((worker.worker_id,), self.marked))
        text.append(self.stacks.name_of(worker), "bold" if counts else "")
        text.append(_ranks(self.stacks.ranks_of(worker))).append(f"  pid {worker.pid}", "dim")
        text.append(f"  {doing_in_words(counts)}" if counts else "")
        if not counts:
            text.append(f"  {self.stacks.residents(worker).trouble}", "dim")
        return Line(
            f"worker/{worker.worker_id}",
            text,
            lambda: self._strands(self.stacks.residents(worker)),
            is_open=bool(counts) or bool(self.stacks.children_of(worker.worker_id)),
            data=About(workers=(worker.worker_id,)),
        )

    def _strands(self, residents: Residents) -> list[Line]:
        worker_id = residents.worker.worker_id
        keys = self.found.get(worker_id) if self.found else None
        lines = [_strand(strand) for strand in residents.strands if not keys or strand.key in keys]
        if residents.others and not keys:
            text = SafeText(f"{plural(len(residents.others), 'thread')} of Ray and its libraries", "dim italic")
            others = residents.others
            data = About(workers=(worker_id,))
            lines.append(Line(f"others/{worker_id}", text, lambda: [_strand(strand) for strand in others], data=data))
        return [*lines, *(self._child(residents.worker, child) for child in residents.children if not keys)]

    def _child(self, worker: Worker, child: Offspring) -> Line:
        text = SafeText().append(child.name, "bold").append(_ranks(self.stacks.ranks_of(worker, child.process)))
        text.append(f"  pid {child.process.pid}", "dim")
        if not child.strands:
            text.append("  not read", "dim")
        key = child_key(worker.worker_id, child.process.pid)
        data = About(workers=(worker.worker_id,))
        return Line(key, text, lambda: [_strand(strand) for strand in child.strands], is_open=True, data=data)


def _ranks(words: str) -> str:
    return f"  {words}" if words else ""


def child_key(worker_id: str, pid: int) -> str:
    """The line of a process that a worker has started."""
    return f"child/{worker_id}/{pid}"


def _strand(strand: Strand) -> Line:
    text = doing_word(strand.doing).append(strand.name)
    text.append(f"  {strand.words}", "dim")
    text.append("  stack may be inconsistent" if strand.is_torn else "", "yellow")
    return Line(str(strand.key), text, data=About(vertex=strand.key, workers=(strand.worker_id,)))


# All merged


@dataclass(frozen=True)
class Tree:
    """A merged tree, the outliers in it, and the words that were looked for: what leads to these is unfolded."""

    stacks: Stacks
    root: Branch
    odd: Marked
    words: Words

    def lines(self) -> list[Line]:
        """Each branch with how many, what they do, and how many stand out."""
        return [self._line(child, is_open=child.depth < 2) for child in self.root.children]

    def _line(self, branch: Branch, *, is_open: bool, is_part: bool = True) -> Line:
        place = branch.place
        assert place is not None
        outliers = self.odd.within(branch)
        is_own = place.origin == "user"
        text = SafeText().append(f"{branch.count:,} × ", "bold").append(short(place.name), "bold" if is_own else "")
        if is_part and place.is_frame:  # where the ranks are not those of the line above, or its name
            text.append(_ranks(self.stacks.slice(branch.executions)), "magenta")
        if outliers:
            text.append(f"  ! {plural(len(outliers), 'outlier')}", "bold yellow")
        text.append(f"  {doing_in_words(branch.doing)}", "" if is_own else "dim")
        if place.is_frame:
            text.append(f"  {location(place.file, place.line)}", "cyan")
        is_only = len(branch.children) == 1 and not branch.own
        return Line(
            branch_key(branch.path),
            text,
            (lambda: self._below(branch, is_only)) if branch.children else (),
            is_open=is_open or is_only or self._leads_on(branch, outliers),
            data=About(path=branch.path, place=(place.file, place.line) if place.is_frame else None),
        )

    def _below(self, branch: Branch, is_open: bool) -> list[Line]:
        return [self._line(one, is_open=is_open, is_part=one.count < branch.count) for one in branch.children]

    def _leads_on(self, branch: Branch, outliers: Sequence[Execution]) -> bool:
        """Whether it is to be unfolded for what is below it: a few outliers, or what was looked for."""
        if outliers and len(self.odd.within(self.root)) <= SHOWN_OUTLIERS:
            return True
        if not self.words or self.root.count > FEW_FOUND or self.words.along(branch.path):
            return False
        return any(self.words.along(execution.path) for execution in branch.executions[:SHOWN_OUTLIERS])


def branch_key(path: Sequence[Place]) -> str:
    """The same for the same branch of whatever tree."""
    return "\0".join(f"{place.name}\1{place.file}\1{place.line}" for place in path)

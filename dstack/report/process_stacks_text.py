"""The stacks of each process as trees: nodes, their processes, and the threads and coroutines of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text
from rich.tree import Tree

from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.views.stack_groups import ChosenStacks
from dstack.analysis.views.stack_pages import ProcessThreads, ThreadSummary
from dstack.model import Node, Worker
from dstack.observed import Frame
from dstack.report.safe_text import SafeText
from dstack.report.stack_words import activity_word, frame_line
from dstack.words import plural, shortly

SHOWN_PIDS = 10


def process_trees(chosen: ChosenStacks) -> Iterator[Tree]:
    """One tree for each node: its processes with stacks, then the number of others by the reason."""
    for node, workers in chosen.nodes:
        yield _ProcessTree(chosen).tree(node, workers)


class _ProcessTree:
    def __init__(self, chosen: ChosenStacks) -> None:
        self._chosen = chosen
        self._stacks = chosen.stacks
        self._paths = {one.key: one.path for one in chosen.executions}

    def tree(self, node: Node, workers: Sequence[Worker]) -> Tree:
        """The tree of a node."""
        title = SafeText(f"node {node.ip}", "bold").append(
            f"  {plural(len(workers), 'process', 'processes')}{', head' * node.is_head}", "dim"
        )
        tree = Tree(title, guide_style="dim")
        without: dict[str, list[Worker]] = {}
        for worker in workers:
            process = self._stacks.process_threads(worker)
            if process.threads or process.children or (self._chosen.whole and process.others):
                self._add(tree, process)
            else:
                without.setdefault(process.trouble, []).append(worker)
        for trouble, idle in without.items():
            pids = shortly([f"{worker.pid}" for worker in idle], SHOWN_PIDS)
            others = plural(len(idle), "other process", "other processes")
            each = "it" if len(idle) == 1 else "each"
            tree.add(SafeText(f"{others} (pid {pids}): {each} {trouble}", "dim"))
        return tree

    def _add(self, tree: Tree, process: ProcessThreads) -> None:
        ranks = self._stacks.ranks_of(process.worker)
        place = ", ".join(filter(None, (ranks, f"pid {process.worker.pid}")))
        branch = tree.add(SafeText(process.name, "bold").append(f"  {place}", "dim"))
        others = process.others if self._chosen.whole else ()
        for thread in (*process.threads, *others):
            branch.add(self._thread(thread))
        if process.others and not others:
            branch.add(SafeText(f"{plural(len(process.others), 'thread')} of Ray and its libraries", "dim"))
        for child in process.children:
            below = branch.add(SafeText(child.name, "bold").append(f"  pid {child.process.pid}", "dim"))
            for thread in child.threads:
                below.add(self._thread(thread))
            if not child.threads:
                below.add(SafeText("not read", "dim"))

    def _thread(self, thread: ThreadSummary) -> Text:
        """What the thread does, and its frames below, outermost first."""
        text = activity_word(thread.activity).append(thread.name, "bold").append(f"  {thread.words}")
        text.append(f"  {TORN_STACK}" if thread.is_torn else "", "yellow")
        lines = [frame_line(self._chosen.snapshot, step) for step in self._path(thread)]
        return Text("\n").join([text, *(SafeText("   ").append_text(line) for line in lines)])

    def _path(self, thread: ThreadSummary) -> Sequence[PathStep]:
        """The frames of an execution, or of a thread that is none; its own frames unless stacks are whole."""
        if thread.key in self._paths:
            return self._paths[thread.key]
        frames = self._stacks.pages.frames_of(thread.key)
        own = [frame for frame in frames if frame.origin == "user"]
        shown = frames if self._chosen.whole or not own else own
        return [_step(frame) for frame in reversed(shown)]


def _step(frame: Frame) -> PathStep:
    return PathStep(frame.function, frame.file, frame.line, frame.function, frame.origin)

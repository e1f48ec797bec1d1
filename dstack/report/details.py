"""What ``--details`` adds to a report: a sentence for each member, the stitched stacks, and child processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.tree import Tree

from dstack.analysis.index.frames import innermost_shown
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.distributed_stack import StackNode, group_similar, roots, stitch, vertices_in
from dstack.analysis.views.stack_pages import StackPages, ThreadSummary, child_threads, worker_name
from dstack.model.diagnosis import Diagnosis, Finding
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Frame
from dstack.report.finding import remark_rows
from dstack.report.rich_text import SafeText, place_of, print_lines, print_rows, shortened_left
from dstack.words import SHOWN, plural, shortly

SHOWN_FRAMES = 100
SHOWN_BRANCHES = 10
MAX_INDENT = 40
"""Further to the right nothing is readable on a page of 80 columns."""
INDENT = 4
LONGEST_LOCATION = 44
SHOWN_STEPS = 200
SHOWN_CHILDREN = 10
VERBS: Mapping[Activity, str] = {"waiting": "waits", "running": "runs", "off CPU": "rests"}


class StitchedStack:
    """Prints stacks one after the other; what was printed is referred to by its number."""

    def __init__(self, snapshot: Snapshot, shown_steps: int) -> None:
        self._snapshot = snapshot
        self._left = shown_steps
        self._numbers: dict[Key, int] = {}

    def lines(self, node: StackNode, indent: int = 0, via: str | None = None) -> Iterator[SafeText]:
        """The step of a node with its frames, then those of what it waits for."""
        number = self._numbers.setdefault(node.vertex, len(self._numbers) + 1)
        self._left -= 1
        lead = f"{' ' * indent}{number:>2}  "
        yield _node(_line(lead), node, via)
        for frame in _some(node.frames):
            yield frame_text(frame, self._snapshot, _line(" " * (indent + INDENT)))
        if node.details.torn and not node.repeats:
            yield _line(" " * (indent + INDENT)).append(TORN_STACK, "yellow")
        yield from self._branches(node, indent)

    def _branches(self, node: StackNode, indent: int) -> Iterator[SafeText]:
        """A single dependency at the same indentation; several indented; those printed before in one line."""
        new = [child for child in node.children if child.vertex not in self._numbers]
        deeper = indent if len(new) == 1 else indent + INDENT
        room = SHOWN_BRANCHES if deeper <= MAX_INDENT else 0
        hidden = node.left_out
        for child in new:
            if child.vertex in self._numbers:  # printed below one of the others
                continue
            if room <= 0 or self._left <= 0:
                hidden += child.count
                continue
            room -= 1
            yield from self.lines(child, deeper, node.wait_kind)
        yield from self._known(node, [child for child in node.children if child not in new], indent)
        if hidden or node.goes_on:
            text = plural(hidden, "more wait") if hidden else "more waits"
            yield _line(" " * (deeper + INDENT)).append(f"{text} below, not shown", "dim")

    def _known(self, node: StackNode, known: Sequence[StackNode], indent: int) -> Iterator[SafeText]:
        if known:
            called = [f"{child.details.execution} ({self._numbers[child.vertex]})" for child in known]
            text = f"{node.wait_kind} → {shortly(called)}, as above"
            yield _line(" " * (indent + INDENT)).append(text, "dim")


def frame_text(frame: Frame, snapshot: Snapshot, text: SafeText) -> SafeText:
    """The text with ``run  app/train.py:12  loss.backward()`` after it."""
    text.append(f"{frame.function}  ")
    text.append(shortened_left(place_of(frame.file, frame.line), LONGEST_LOCATION), "cyan")
    return text.append(f"  {snapshot.source_line(frame.file, frame.line) or ''}".rstrip(), "dim")


def _line(lead: str) -> SafeText:
    return SafeText(lead, no_wrap=True, overflow="ellipsis")


def _node(text: SafeText, node: StackNode, via: str | None) -> SafeText:
    if via:
        text.append(f"{via} → ", "magenta")
    if node.count > 1:
        text.append(f"{node.count:,} × ", "bold")
    text.append(node.details.execution, "bold")
    if node.never:
        return text.append(f"  {node.never}", "red")
    is_each_known = node.count > 1 and len(set(node.ranks)) == node.count
    ranks = f"{names.ranks_in_words(node.ranks)}, " if is_each_known else ""
    first = f"{ranks}first: " if node.count > 1 else ""
    return text.append(f"  {first}{node.details.short_place}" if node.details.short_place else "", "dim")


def _some(frames: Sequence[Frame]) -> Sequence[Frame]:
    """All frames, or of very many the outermost and innermost."""
    half = SHOWN_FRAMES // 2
    return frames if len(frames) <= SHOWN_FRAMES else (*frames[:half], *frames[-half:])


def print_details(console: Console, analysed: AnalysedSnapshot) -> None:
    """Prints all members of all findings, their stacks and their child processes."""
    findings = analysed.diagnosis.findings
    for number, finding in enumerate(findings, 1):
        console.print()
        console.print(SafeText(f"Details of finding {number}" if len(findings) > 1 else "Details", "bold"))
        for step in finding.explanation:
            print_rows(console, remark_rows(step, bullet="- "))
    if findings:
        _print_stacks(console, analysed, findings)
        _print_children(console, analysed)


def _print_stacks(console: Console, analysed: AnalysedSnapshot, findings: Sequence[Finding]) -> None:
    """One stitched stack for each separate beginning of a wait; what is in one is not begun again."""
    diagnosis = analysed.diagnosis
    console.print()
    console.print(SafeText("Stitched stack", "bold").append(", waiter first", "not bold"))
    shown: set[Key] = set()
    printed = left_out = 0
    stack = StitchedStack(analysed.snapshot, SHOWN_STEPS)
    for node in stitch(analysed.first_index, diagnosis.vertices, _beginnings(diagnosis, findings)):
        if node.vertex in shown:
            continue
        if printed == SHOWN:
            left_out += node.count
            continue
        shown |= vertices_in(node)
        printed += 1
        print_lines(console, stack.lines(node))
    if left_out:
        console.print(SafeText(f"{plural(left_out, 'more waiter')} not shown", "dim"))


def _beginnings(diagnosis: Diagnosis, findings: Sequence[Finding]) -> Iterator[list[Key]]:
    for finding in findings:
        beginnings = roots(diagnosis.vertices, {*finding.members, *finding.blocked_behind, *finding.helpers})
        yield from group_similar(diagnosis.vertices, beginnings)


def _print_children(console: Console, analysed: AnalysedSnapshot) -> None:
    """Print the child processes of workers that take part in a finding."""
    snapshot, diagnosis = analysed.snapshot, analysed.diagnosis
    taking_part = {
        diagnosis.vertices[key].worker_id
        for finding in diagnosis.findings
        for key in (*finding.members, *finding.blocked_behind, *(one.vertex for one in finding.final_blockers))
    }
    index = analysed.first_index
    pages = StackPages(index, diagnosis.vertices)
    workers = [worker for worker in snapshot.workers if worker.worker_id in taking_part]
    of_worker = [(worker, children) for worker in workers if (children := child_threads(index, worker.worker_id))]
    if not of_worker:
        return
    console.print()
    console.print(SafeText("Child processes", "bold"))
    for worker, children in of_worker[:SHOWN_CHILDREN]:
        title = SafeText(f"{worker_name(index, worker)}  ", "bold").append(
            _process(index.ranks(worker.worker_id).in_words, worker.pid), "dim"
        )
        tree = Tree(title, guide_style="dim")
        for child in children[:SHOWN_CHILDREN]:
            place = _process(index.ranks(worker.worker_id, child.process.pid).in_words, child.process.pid)
            branch = tree.add(SafeText(child.name).append(f"  {place}", "dim"))
            for thread in child.threads[:SHOWN_CHILDREN]:
                branch.add(_thread_text(thread, pages.frames_of(thread.key), snapshot))
            _add_rest(branch, len(child.threads) - SHOWN_CHILDREN, "thread")
        _add_rest(tree, len(children) - SHOWN_CHILDREN, "process", "processes")
        console.print(tree)
    rest = len(of_worker) - SHOWN_CHILDREN
    if rest > 0:
        console.print(SafeText(f"{plural(rest, 'more worker')} with child processes", "dim"))


def _process(ranks: str, pid: int) -> str:
    return f"{ranks}, pid {pid}" if ranks else f"pid {pid}"


def _thread_text(thread: ThreadSummary, frames: tuple[Frame, ...], snapshot: Snapshot) -> SafeText:
    """A thread of a child process: what it is in, and the line of the user's code that is nearest."""
    text = SafeText(f"{thread.name} ", no_wrap=True, overflow="ellipsis").append(f"{VERBS[thread.activity]} ", "bold")
    frame = innermost_shown(frames)
    if thread.activity == "waiting":
        text.append(f"in {thread.words}  ")
    if thread.is_torn:
        text.append(f"({TORN_STACK})  ", "yellow")
    if frame:
        return frame_text(frame, snapshot, text)
    return text


def _add_rest(tree: Tree, count: int, one: str, many: str = "") -> None:
    if count > 0:
        tree.add(SafeText(f"{plural(count, f'more {one}', many and f'more {many}')}", "dim"))

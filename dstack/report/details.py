"""What ``--details`` adds to a report: a sentence for each member, the stitched stacks, and child processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.tree import Tree

from dstack.analysis.findings import is_stuck
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.distributed_stack import group_similar, roots, stitch, vertices_in
from dstack.analysis.views.stack_pages import StackPages, ThreadSummary, child_threads, worker_name
from dstack.diagnosis import Diagnosis, Finding
from dstack.model import Snapshot
from dstack.observed import Frame
from dstack.report.finding import remark_rows
from dstack.report.rows import print_lines, print_rows
from dstack.report.safe_text import SafeText
from dstack.report.stitched_stack import StitchedStack, frame_text
from dstack.vertex_keys import Key
from dstack.words import plural

SHOWN_STACKS = 3
SHOWN_STEPS, SHOWN_STEPS_IN_DETAILS = 12, 200
SHOWN_CHILDREN = 10
VERBS: Mapping[Activity, str] = {"waiting": "waits", "running": "runs", "off CPU": "rests"}


def print_details(console: Console, analysed: AnalysedSnapshot) -> None:
    """Prints all members of all findings, their stacks and their child processes."""
    findings = analysed.diagnosis.findings
    for number, finding in enumerate(findings, 1):
        console.print()
        console.print(SafeText(f"Details of finding {number}" if len(findings) > 1 else "Details", "bold"))
        for step in finding.explanation:
            print_rows(console, remark_rows(step, bullet="- "))
    if findings:
        _print_stacks(console, analysed, findings, SHOWN_STEPS_IN_DETAILS)
        _print_children(console, analysed)


def print_stacks(console: Console, analysed: AnalysedSnapshot) -> None:
    """Prints the stitched stacks of open chains; the diagram of a deadlock or hang shows its lines already."""
    first = analysed.diagnosis.findings[:1]
    if first and not is_stuck(first[0]) and not _is_drawn(first[0], analysed.diagnosis):
        _print_stacks(console, analysed, first, SHOWN_STEPS)


def _is_drawn(finding: Finding, diagnosis: Diagnosis) -> bool:
    """Whether the diagram has every execution that waits, so that the stack would only repeat it."""
    drawn = {row.vertex for row in finding.diagram.rows}
    return all(key in drawn for key in finding.members if diagnosis.vertices[key].kind == "execution")


def _print_stacks(console: Console, analysed: AnalysedSnapshot, findings: Sequence[Finding], steps: int) -> None:
    """One stitched stack for each separate beginning of a wait; what is in one is not begun again."""
    diagnosis = analysed.diagnosis
    console.print()
    console.print(SafeText("Stitched stack", "bold").append(", waiter first", "not bold"))
    shown: set[Key] = set()
    printed = left_out = 0
    stack = StitchedStack(analysed.snapshot, steps)
    for key, *others in _beginnings(diagnosis, findings):
        if key in shown:
            continue
        if printed == SHOWN_STACKS:
            left_out += 1 + len(others)
            continue
        node = replace(stitch(analysed.first_index, diagnosis.vertices, key), count=1 + len(others))
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
    frame = names.innermost_frame(frames)
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

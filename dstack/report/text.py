"""The report a person reads at 3 a.m.: the verdict first, then the story of each finding, then what it rests on."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from time import localtime, strftime

import msgspec
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from dstack import words
from dstack.analysis import names
from dstack.analysis.findings.failures import headline as failures_in_headline
from dstack.analysis.findings.failures import step as step_of_failure
from dstack.analysis.observed import Observed
from dstack.analysis.sentences import TORN_STACK
from dstack.analysis.stacks import Stacks, Strand
from dstack.analysis.stitching import StackNode, alike, roots, stitch, vertices_in
from dstack.diagnosis import Diagnosis, Finding, OutsideWait, Step, Verdict
from dstack.model import Failure, Frame, Snapshot
from dstack.report.check_json import pauses_ms
from dstack.report.safe_text import SafeText
from dstack.vertex_keys import Key

WIDTH = 100
SHOWN_FINDINGS = 10
SHOWN_FAILURES = 8
SHOWN_STACKS = 3
SHOWN_NODES = 50
SHOWN_FRAMES = 100
SHOWN_BRANCHES = 10
SHOWN_CHILDREN = 10
SHOWN_OUTSIDE = 2
Sources = Mapping[str, Mapping[int, str]]
STYLES: dict[Verdict, str] = {
    "deadlock": "bold red",
    "hang": "bold red",
    "stalled": "bold yellow",
    "blocked": "bold cyan",
    "clear": "bold green",
}


def print_report(console: Console, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
    """Prints the whole report; 100 columns at most."""
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    _print_head(console, snapshot, diagnosis)
    _print_failures(console, diagnosis)
    for number, finding in enumerate(diagnosis.findings[:SHOWN_FINDINGS], 1):
        _print_finding(console, number, finding, is_only=len(diagnosis.findings) == 1)
    _print_rest(console, len(diagnosis.findings) - SHOWN_FINDINGS, "findings; `dstack check --json` tells them all")
    _print_stacks(console, snapshot, diagnosis)
    _print_children(console, snapshot, diagnosis)
    _print_foot(console, snapshot, diagnosis)


def report_text(snapshot: Snapshot, diagnosis: Diagnosis) -> str:
    """The whole report as plain text, without colours; 100 columns at most."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        print_report(console, snapshot, diagnosis)
    return captured.get()


def headline(diagnosis: Diagnosis) -> str:
    """The verdict in one line, without its word."""
    count = len(diagnosis.findings)
    if not count:
        return _clear(diagnosis)
    first = diagnosis.findings[0]
    certain = ("" if first.confirmed else "suspected: ") if diagnosis.verdict in ("deadlock", "hang") else ""
    if diagnosis.verdict == "blocked":
        certain = "nobody is deadlocked; " if not diagnosis.incomplete else "no deadlock seen, not all was; "
    return f"{certain}{first.summary}"


def _clear(diagnosis: Diagnosis) -> str:
    """What is waited for without any finding: nothing, or what does not depend on Ray."""
    whose = f" of job {diagnosis.job}" if diagnosis.job is not None else ""
    unread = ", but not everything could be read" if diagnosis.incomplete else ""
    if not diagnosis.outside:
        return f"no waits{whose} were seen{unread}" if unread else f"no waits{whose}"
    waits = words.listed(list(_outside(diagnosis.outside)))
    return f"no wait{whose} depends on Ray{unread}; {waits}{failures_in_headline(diagnosis.failed_before)}"


def _outside(waits: Sequence[OutsideWait]) -> Iterator[str]:
    """``4 tasks wait in threading.Event.wait (train.py:12)``, the most frequent first, and how many others wait."""
    for wait in waits[:SHOWN_OUTSIDE]:
        line = f" ({wait.file.rpartition('/')[2]}:{wait.line})" if wait.file else ""
        verb = "waits" if wait.count == 1 else "wait"
        lasting = f" {time}" if (time := names.lasting(wait.since)) else ""
        yield f"{wait.count:,} {wait.kind}{'s' * (wait.count != 1)} {verb} in {wait.call}{line}{lasting}"
    others = sum(wait.count for wait in waits[SHOWN_OUTSIDE:])
    if others:
        yield f"{others:,} more in other calls"


def _print_head(console: Console, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
    word = SafeText(diagnosis.verdict.upper(), STYLES[diagnosis.verdict])
    _print_hanging(console, word.append("  "), SafeText(headline(diagnosis), "bold"))
    taken = strftime("%Y-%m-%d %H:%M:%S", localtime(snapshot.taken_at))
    job = f", job {diagnosis.job} only" if diagnosis.job else ""
    console.print(SafeText(f"Ray {snapshot.ray_version} at {snapshot.address}, {taken}{job}", "dim"))
    for note in snapshot.notes:
        console.print(SafeText(note, "yellow"))


def _print_failures(console: Console, diagnosis: Diagnosis) -> None:
    """What failed beside waits that are in no finding."""
    if diagnosis.failed_before:
        console.print()
    for failed in diagnosis.failed_before:
        _print_step(console, step_of_failure(failed))


def _print_finding(console: Console, number: int, finding: Finding, *, is_only: bool) -> None:
    """One finding; its summary is in the headline already where it is the only one."""
    console.print()
    summary = "" if is_only else f": {finding.summary}"
    lasting = (
        f", there {time}" if finding.kind in ("deadlock", "stalled") and (time := names.lasting(finding.since)) else ""
    )
    title = SafeText.assemble((f"{finding.kind}{certainty(finding)}{lasting}", "bold"), summary)
    _print_hanging(console, SafeText(f"{number}. ", "bold"), title)
    for step in finding.explanation:
        _print_step(console, step)
    _print_hanging(console, SafeText("   Way out: ", "bold green"), SafeText(finding.advice))


def certainty(finding: Finding) -> str:
    """How sure a finding is, to be said after its kind; empty for kinds that are no claim for good."""
    if finding.kind not in ("deadlock", "infeasible", "orphaned"):
        return ""
    if finding.confirmed:
        return ", confirmed by a second look"
    if finding.assumed:
        return f", suspected: seen in two looks, and assuming that {words.listed(finding.assumed)}"
    return ", suspected: not confirmed by a second look"


def _print_step(console: Console, step: Step) -> None:
    _print_hanging(console, SafeText("   - "), SafeText(step.text))
    if step.file is not None:
        line = SafeText("       ").append(f"{short_path(step.file)}:{step.line}", "cyan")
        if step.source:
            line.append(f"  {step.source}")
        console.print(line, no_wrap=True, overflow="ellipsis")


def _print_stacks(console: Console, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
    """One distributed stack for each separate beginning of a wait; what stands in one is not begun again."""
    if not diagnosis.findings:
        return
    observed = Observed(snapshot, snapshot.samples[0])
    console.print()
    console.print(SafeText("Distributed stack", "bold").append(", from who waits to what it waits for", "not bold"))
    shown: set[Key] = set()
    printed = left_out = 0
    for finding in diagnosis.findings[:SHOWN_FINDINGS]:
        beginnings = roots(diagnosis.vertices, {*finding.members, *finding.blocked_behind, *finding.helpers})
        for key, *others in alike(diagnosis.vertices, beginnings):
            if key in shown:
                continue
            if printed == SHOWN_STACKS:
                left_out += 1 + len(others)
                continue
            node = msgspec.structs.replace(stitch(observed, diagnosis.vertices, key), count=1 + len(others))
            shown |= vertices_in(node)
            _print_stack(console, node, snapshot.sources)
            printed += 1
    _print_rest(console, left_out, "begin elsewhere")


def _print_stack(console: Console, node: StackNode, sources: Sources) -> None:
    tree = Tree(_node_text(node), guide_style="dim")
    _grow(tree, node, sources, set())
    console.print(tree)


def _grow(tree: Tree, node: StackNode, sources: Sources, grown: set[Key]) -> None:
    """Adds a node's frames and branches; one that was grown before is only named, and so are those beyond so many."""
    grown.add(node.vertex)
    frames, half = node.frames, SHOWN_FRAMES // 2
    if node.who.torn and not node.repeats:
        tree.add(SafeText(TORN_STACK, "yellow"))
    for frame in frames if len(frames) <= SHOWN_FRAMES else frames[:half]:
        tree.add(_frame_text(frame, sources))
    if len(frames) > SHOWN_FRAMES:
        tree.add(SafeText(f"and {len(frames) - 2 * half:,} frames in between", "dim"))
        for frame in frames[-half:]:
            tree.add(_frame_text(frame, sources))
    for child in node.children[:SHOWN_BRANCHES]:
        branch = tree.add(_node_text(child, node.wait_kind))
        if child.vertex in grown and child.children:
            branch.add(SafeText("as above", "dim"))
        elif len(grown) >= SHOWN_NODES and child.children:
            branch.add(SafeText("and so on from there", "dim"))
        else:
            _grow(branch, child, sources, grown)
    if node.goes_on:
        tree.add(SafeText("and so on from there", "dim"))
    left_out = node.left_out + sum(child.count for child in node.children[SHOWN_BRANCHES:])
    if left_out:
        tree.add(SafeText(f"and {left_out:,} more, not followed", "dim"))


def _print_children(console: Console, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
    """What the processes do that were started by those who take part in a finding."""
    taking_part = {
        diagnosis.vertices[key].worker_id
        for finding in diagnosis.findings
        for key in (*finding.members, *finding.blocked_behind, *(one.vertex for one in finding.final_blockers))
    }
    stacks = Stacks(Observed(snapshot, snapshot.samples[0]), diagnosis.vertices) if diagnosis.findings else None
    workers = [worker for worker in snapshot.workers if worker.worker_id in taking_part]
    of_worker = [
        (worker, children) for worker in workers if stacks and (children := stacks.children_of(worker.worker_id))
    ]
    if not of_worker or stacks is None:
        return
    console.print()
    console.print(SafeText("Child processes", "bold"))
    for worker, children in of_worker[:SHOWN_CHILDREN]:
        title = SafeText(f"{stacks.name_of(worker)}  ", "bold").append(
            _process(stacks.ranks_of(worker), worker.pid), "dim"
        )
        tree = Tree(title, guide_style="dim")
        for child in children[:SHOWN_CHILDREN]:
            place = _process(stacks.ranks_of(worker, child.process), child.process.pid)
            branch = tree.add(SafeText(child.name).append(f"  {place}", "dim"))
            for strand in child.strands[:SHOWN_CHILDREN]:
                branch.add(_strand_text(stacks, strand, snapshot.sources))
            _add_rest(branch, len(child.strands) - SHOWN_CHILDREN, "threads")
        _add_rest(tree, len(children) - SHOWN_CHILDREN, "processes")
        console.print(tree)
    _print_rest(console, len(of_worker) - SHOWN_CHILDREN, "workers with child processes")


def _process(ranks: str, pid: int) -> str:
    return f"{ranks}, pid {pid}" if ranks else f"pid {pid}"


def _strand_text(stacks: Stacks, strand: Strand, sources: Sources) -> SafeText:
    """A thread of a child process: what it is in, and the line of the user's code that is nearest."""
    text = SafeText(f"{strand.name} ", no_wrap=True, overflow="ellipsis").append(f"{strand.doing} ", "bold")
    frames = stacks.frames_of(strand.key)
    frame = names.user_frame(frames) or (frames[0] if frames else None)
    if strand.doing == "waits":
        text.append(f"in {strand.words}  ")
    if strand.is_torn:
        text.append(f"({TORN_STACK})  ", "yellow")
    if frame:
        text.append_text(_frame_text(frame, sources))
    return text


def _add_rest(tree: Tree, count: int, what: str) -> None:
    if count > 0:
        tree.add(SafeText(f"and {count:,} more {what}", "dim"))


def _node_text(node: StackNode, via: str | None = None) -> SafeText:
    text = SafeText(no_wrap=True, overflow="ellipsis")
    if via:
        text.append(f"{via} → ", "magenta")
    if node.count > 1:
        text.append(f"{node.count:,} × ", "bold")
    text.append(node.who.execution, "bold")
    if node.repeats:
        return text.append(" … which is above", "red")
    if node.never:
        return text.append(f"  {node.never}", "red")
    is_each_known = node.count > 1 and len(set(node.ranks)) == node.count
    ranks = f"{names.ranks_in_words(node.ranks)}, " if is_each_known else ""
    first = f"{ranks}first: " if node.count > 1 else ""
    return text.append(f"  {first}{node.who.short_place}" if node.who.short_place else "", "dim")


def _frame_text(frame: Frame, sources: Sources) -> SafeText:
    text = SafeText(no_wrap=True, overflow="ellipsis").append(f"{frame.function}  ")
    text.append(f"{short_path(frame.file)}:{frame.line}", "cyan")
    return text.append(f"  {sources.get(frame.file, {}).get(frame.line, '').strip()}".rstrip(), "dim")


def _print_foot(console: Console, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
    coverage = diagnosis.coverage
    whole = "all" if coverage.workers.seen == coverage.workers.total else "only"
    console.print()
    console.print(
        SafeText("Seen  ", "bold").append(
            f"{whole} {coverage.workers.seen} of {coverage.workers.total} workers and drivers on "
            f"{coverage.nodes.seen} of {coverage.nodes.total} nodes",
            "not bold",
        )
    )
    if set(coverage.access) - {"memory", "state only"}:
        ways = (f"{count} by {way}" for way, count in coverage.access.items())
        console.print(SafeText("      ").append(", ".join(ways)))
    failures = failures_in_words(snapshot, coverage.failures)
    for failure in failures[:SHOWN_FAILURES]:
        _print_hanging(console, SafeText("      "), SafeText(failure, "yellow"))
    _print_rest(console, len(failures) - SHOWN_FAILURES, "failures")
    console.print(SafeText("Took  ", "bold").append(" ".join(_timing(snapshot)), "not bold"))


def _timing(snapshot: Snapshot) -> Iterator[str]:
    looks = " + ".join(f"{sample.ended_s - sample.began_s:.2f}" for sample in snapshot.samples)
    yield f"{snapshot.total_s:.2f} s (samples {looks} s);"
    paused = [pause for pause in pauses_ms(snapshot) if pause]
    yield (
        f"{len(paused)} looks paused a process, for at most {max(paused):.0f} ms" if paused else "nothing was paused"
    )


def failures_in_words(snapshot: Snapshot, failures: Sequence[Failure]) -> list[str]:
    """All of them; what failed alike for several processes of a node, or in both looks, as one."""
    alike: dict[tuple[object, ...], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.stage, failure.node_id, failure.reason, failure.remedy), []).append(failure)
    return [
        failure_in_words(snapshot, same[0], processes=len({failure.pid for failure in same if failure.pid}))
        for same in alike.values()
    ]


def failure_in_words(snapshot: Snapshot, failure: Failure, *, processes: int = 1) -> str:
    """What was not seen, where, why, after how long, and what to do about it; for one or several processes alike."""
    node = next((node for node in snapshot.nodes if node.node_id == failure.node_id), None)
    pid = f"{processes} processes, as pid {failure.pid}" if processes > 1 else f"pid {failure.pid}"
    where = ", ".join(part for part in (pid if failure.pid else "", f"node {node.ip}" if node else "") if part)
    after = f" (after {failure.elapsed_s:.1f} s)" if failure.elapsed_s >= 0.1 else ""
    remedy = f" {failure.remedy}" if failure.remedy else ""
    return f"{failure.stage}{f', {where}' if where else ''}: {failure.reason}{after}.{remedy}"


def _print_rest(console: Console, count: int, what: str) -> None:
    if count > 0:
        console.print(SafeText(f"   and {count:,} more {what}", "dim"))


def _print_hanging(console: Console, lead: Text, body: Text) -> None:
    """Prints ``lead`` and then ``body``, wrapped beside it."""
    for index, line in enumerate(body.wrap(console, max(20, console.width - lead.cell_len))):
        line.rstrip()
        console.print(lead + line if index == 0 else SafeText(" " * lead.cell_len) + line)


def short_path(file: str) -> str:
    """Relative to the working directory, if there is one and it is shorter; without what is before site-packages."""
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in file:
            return file.rpartition(marker)[2]
    if not os.path.isabs(file):
        return file
    try:
        relative = os.path.relpath(file)
    except FileNotFoundError:
        return file
    return relative if len(relative) < len(file) and not relative.startswith("..") else file

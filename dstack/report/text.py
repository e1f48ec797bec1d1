"""The report that is read at 3 a.m.: verdict, diagram, fix, then what was not observed.

On request it has details: a sentence for each member, the stitched stacks, and child processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import localtime, strftime

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from dstack.analysis.findings.failures import step as step_of_failure
from dstack.analysis.findings.kinds.stalled import NOT_PROVEN
from dstack.analysis.findings.recorder_dumps import step as step_of_dumps
from dstack.analysis.index.shown_frames import innermost_shown
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.distributed_stack import StackNode, group_similar, roots, stitch, vertices_in
from dstack.analysis.views.stack_pages import StackPages, ThreadSummary, child_threads, worker_name
from dstack.model.diagnosis import Diagnosis, Finding, Verdict
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Frame
from dstack.report.check_json import pauses_ms
from dstack.report.finding import (
    advice_rows,
    assumption_rows,
    kind_in_words,
    picture,
    remark_rows,
    status,
    status_sentence,
)
from dstack.report.not_observed import gaps_in_words, other_failures
from dstack.report.rich_text import (
    Row,
    SafeText,
    lines_of,
    place_of,
    plain_text,
    print_lines,
    print_rows,
    shortened_left,
    wrapped,
)
from dstack.report.summaries import STYLE_OF_VERDICT, headline
from dstack.version import untested_ray
from dstack.words import SHOWN, capitalised, plural, shortly, word

WIDTH = 100
FIRST_LINES = 15
"""What a reader sees without searching; the fix is in these lines."""
MANY = 1000
"""No limit, as far as a reader cares."""
NOT_OBSERVED = "Not observed: "
SHORT: tuple[Verdict, ...] = ("unknown", "running", "idle")
"""The verdicts whose report is a few lines, without diagrams."""
SHORT_BLOCKERS, SHORT_FINDINGS = 2, 2
"""The final blockers, and the findings, that such a report shows."""
SHOWN_FRAMES = 100
SHOWN_BRANCHES = 10
MAX_INDENT = 40
"""Further to the right nothing is readable on a page of 80 columns."""
INDENT = 4
LONGEST_LOCATION = 44
SHOWN_STEPS = 200
SHOWN_CHILDREN = 10
VERBS: Mapping[Activity, str] = {"waiting": "waits", "running": "runs", "off CPU": "rests"}


def print_report(console: Console, analysed: AnalysedSnapshot, *, details: bool = False) -> None:
    """Prints the report, 100 columns wide at most; with ``details`` all members, stacks and failures."""
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    diagnosis = analysed.diagnosis
    if not details and diagnosis.verdict in SHORT:
        _print_short(console, analysed)
        return
    head = [*_headline(console, diagnosis), *_status_lines(console, analysed)]
    print_lines(console, head)
    _print_dumped(console, diagnosis)
    _print_failed_before(console, diagnosis)
    shown = diagnosis.findings if details else diagnosis.findings[:SHOWN]
    for number, finding in enumerate(shown, 1):
        _print_finding(console, finding, number, len(head))
    if len(shown) < len(diagnosis.findings):
        _print_rest(console, len(diagnosis.findings) - len(shown))
    if analysed.starving:
        console.print()
    _print_starving(console, analysed, SHOWN)
    _print_memory(console, analysed)
    if details:
        print_details(console, analysed)
    console.print()
    _print_foot(console, analysed, MANY if details else SHOWN, details=details)


def _print_short(console: Console, analysed: AnalysedSnapshot) -> None:
    """Where nothing is stuck: what runs, what everything depends on, and what to do if that is slow."""
    diagnosis = analysed.diagnosis
    print_lines(console, _headline(console, diagnosis))
    print_rows(console, (Row("", "", SafeText(note, "yellow")) for note in analysed.snapshot.notes))
    _print_dumped(console, diagnosis)
    for step in (*diagnosis.remarks, *map(step_of_failure, diagnosis.failed_before)):
        print_rows(console, remark_rows(step))
    for finding in diagnosis.findings[:1]:
        for step in (*finding.brief[:SHORT_BLOCKERS], *map(step_of_failure, finding.failed_before)):
            print_rows(console, remark_rows(step))
        if finding.is_slow:
            print_rows(console, advice_rows(finding))
    for finding in diagnosis.findings[1:SHORT_FINDINGS]:
        print_rows(console, [Row("Also: ", " " * 6, SafeText(finding.summary))])
    if len(diagnosis.findings) > SHORT_FINDINGS:
        _print_rest(console, len(diagnosis.findings) - SHORT_FINDINGS)
    _print_starving(console, analysed, 1)
    _print_memory(console, analysed)
    _print_foot(console, analysed, 1)


def report_text(analysed: AnalysedSnapshot, *, details: bool = False) -> str:
    """The report as plain text, without colours; 100 columns wide at most."""
    return plain_text(lambda console: print_report(console, analysed, details=details), WIDTH)


def _headline(console: Console, diagnosis: Diagnosis) -> Iterator[Text]:
    lead = f"{diagnosis.verdict.upper()}  "
    first, *others = wrapped(SafeText(headline(diagnosis), "bold"), console, max(20, console.width - len(lead)))
    yield SafeText(lead, STYLE_OF_VERDICT[diagnosis.verdict]) + first
    for line in others:
        yield SafeText(" " * len(lead)) + line


def _status_lines(console: Console, analysed: AnalysedSnapshot) -> Iterator[Text]:
    """How sure the verdict is, since when it stands, and what the snapshot notes."""
    if status := _status(analysed.diagnosis):
        yield from lines_of(console, [Row("", "", SafeText(status))])
    yield from lines_of(console, (Row("", "", SafeText(note, "yellow")) for note in analysed.snapshot.notes))


def _status(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return f"{capitalised(NOT_PROVEN)}." if diagnosis.verdict == "stalled" else ""
    text = status_sentence(diagnosis.findings[0])
    if len(diagnosis.findings) > 1:
        text += f" This is the first of {len(diagnosis.findings):,} findings."
    return text.strip()


def _print_dumped(console: Console, diagnosis: Diagnosis) -> None:
    if diagnosis.dumped:
        print_rows(console, remark_rows(step_of_dumps(diagnosis.dumped)))


def _print_failed_before(console: Console, diagnosis: Diagnosis) -> None:
    """What rests, and what failed, beside waits that are in no finding."""
    if diagnosis.failed_before or diagnosis.explanation:
        console.print()
    for step in diagnosis.explanation:
        print_rows(console, remark_rows(step))
    for failed in diagnosis.failed_before:
        print_rows(console, remark_rows(step_of_failure(failed)))


def _print_finding(console: Console, finding: Finding, number: int, above: int) -> None:
    """One finding; the summary of the first is the headline.

    The fix is below the picture, but above one that is so high that the fix would not be in the first lines.
    """
    console.print()
    if number > 1:
        lead = f"{number}. {kind_in_words(finding.kind)}: "
        sure = f" ({text})" if (text := status(finding)) else ""
        title = SafeText(f"{finding.summary}{sure}", "bold")
        print_rows(console, [Row(lead, " " * len(lead), title)])
        console.print()
    drawn, fix = lines_of(console, picture(finding)), lines_of(console, advice_rows(finding))
    is_late = number == 1 and above + 1 + len(drawn) + 1 + len(fix) > FIRST_LINES
    remarks = [row for step in finding.diagram.remarks for row in remark_rows(step)]
    rest = lines_of(console, [*assumption_rows(finding), *remarks])
    parts = (fix, drawn, rest) if is_late else (drawn, fix, rest)
    for at, lines in enumerate(filter(None, parts)):
        print_lines(console, [*[Text()] * (at > 0), *lines])


def _print_rest(console: Console, count: int) -> None:
    console.print()
    console.print(SafeText(f"{plural(count, 'more finding')}: --details prints {word(count, 'it', 'them')}.", "dim"))


def _print_starving(console: Console, analysed: AnalysedSnapshot, shown: int) -> None:
    """What is free on one node while tasks wait for it on another."""
    lead = "Free elsewhere: "
    for text in analysed.starving[:shown]:
        print_rows(console, [Row(lead, " " * len(lead), SafeText(f"{text}."))])
    rest = len(analysed.starving) - shown
    if rest > 0:
        console.print(SafeText(f"{' ' * len(lead)}and {plural(rest, 'more such resource')}", "dim"))


def _print_memory(console: Console, analysed: AnalysedSnapshot) -> None:
    """Who holds which bytes of the object store, where a wait depends on it."""
    if not analysed.is_short_of_memory:
        return
    from dstack.report.memory_text import in_a_sentence

    if analysed.diagnosis.verdict not in SHORT:
        console.print()
    lead = "Object store: "
    print_rows(console, [Row(lead, " " * len(lead), SafeText(in_a_sentence(analysed.object_memory)))])


def _print_foot(console: Console, analysed: AnalysedSnapshot, shown: int, *, details: bool = False) -> None:
    """What another order could reach, what was not observed, then what was, and when."""
    _print_possible(console, analysed, shown, details=details)
    _print_gaps(console, analysed, shown)
    snapshot, job = analysed.snapshot, analysed.diagnosis.job
    taken = strftime("%Y-%m-%d %H:%M:%S", localtime(snapshot.taken_at))
    where = f" at {snapshot.address}" if details else ""
    origin = f"Ray {snapshot.ray_version}{where}, {taken}{f', job {job} only' if job else ''}"
    text = f"{_covered(analysed.diagnosis)}, {', '.join(_timing(snapshot, details=details))}; {origin}"
    print_rows(console, [Row("Observed: ", " " * 10, SafeText(text, "dim"))])
    if untested := untested_ray(snapshot.ray_version):
        console.print(SafeText(f"{untested}.", "dim"))


def _print_possible(console: Console, analysed: AnalysedSnapshot, shown: int, *, details: bool) -> None:
    """The deadlocks that another order of the same calls could reach, if the snapshot has a history of tasks."""
    if analysed.snapshot.history is None:
        return
    from dstack.report.prediction_text import headline as possible_headline
    from dstack.report.prediction_text import possible_rows

    found = analysed.prediction.possible
    for one in found[:shown]:
        text = f"{possible_headline(one)}. This is not so now: dstack predict shows how it could happen."
        print_rows(console, possible_rows(one) if details else [Row("Possible: ", " " * 10, SafeText(text))])
    if len(found) > shown:
        console.print(SafeText(f"{' ' * 10}and {plural(len(found) - shown, 'more possible deadlock')}", "dim"))


def _print_gaps(console: Console, analysed: AnalysedSnapshot, shown: int) -> None:
    gaps = gaps_in_words(analysed)
    is_open = analysed.diagnosis.incomplete and not analysed.diagnosis.is_stuck
    lead = "Inconclusive: " if is_open else NOT_OBSERVED
    _print_reasons(console, lead, [gap.text for gap in gaps], shown, "more such reason")
    _print_reasons(console, NOT_OBSERVED, other_failures(analysed, gaps), shown, "more failure")


def _covered(diagnosis: Diagnosis) -> str:
    """``7 of 7 workers and drivers, 2 of 2 nodes``."""
    workers, nodes = diagnosis.coverage.workers, diagnosis.coverage.nodes
    read = f"{workers.observed} of {workers.total} workers and drivers, {nodes.observed} of {nodes.total} nodes"
    return f"{read}{_access(diagnosis)}"


def _print_reasons(console: Console, lead: str, reasons: Sequence[str], shown: int, others: str) -> None:
    for reason in reasons[:shown]:
        print_rows(console, [Row(lead, " " * len(lead), SafeText(reason, "yellow"))])
    if len(reasons) > shown:
        console.print(SafeText(f"{' ' * len(lead)}and {plural(len(reasons) - shown, others)} (--details)", "yellow"))


def _access(diagnosis: Diagnosis) -> str:
    """How many were read in which way, where any was read otherwise than by its memory."""
    access = diagnosis.coverage.access
    if not set(access) - {"memory", "state only"}:
        return ""
    return f" ({', '.join(f'{count} by {way}' for way, count in access.items())})"


def _timing(snapshot: Snapshot, *, details: bool) -> Iterator[str]:
    """How long it took, and the pauses; with ``details`` also the samples, and that there were no pauses."""
    samples = " + ".join(f"{sample.ended_s - sample.began_s:.2f}" for sample in snapshot.samples)
    yield f"{snapshot.total_s:.2f} s{f' (samples {samples} s)' if details else ''}"
    paused = [pause for pause in pauses_ms(snapshot) if pause]
    if paused:
        yield f"{plural(len(paused), 'pause')} of at most {max(paused):.0f} ms"
    elif details:
        yield "no pauses"


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
    _print_gpus(console, analysed)


def _print_gpus(console: Console, analysed: AnalysedSnapshot) -> None:
    """Print the GPUs of each node that has any, and the processes that use them."""
    if not any(node.host.gpus or node.host.xids or node.host.nvml_silent_s for node in analysed.snapshot.nodes):
        return
    from dstack.report.cluster_text import gpu_details

    for node, texts in gpu_details(analysed):
        console.print()
        console.print(SafeText(f"GPUs of {names.node(node)}", "bold"))
        print_rows(console, (Row("- ", "  ", SafeText(text)) for text in texts))


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

"""Stacks as lines of outlines: the cluster process by process, the merged tree, and the page beside either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import TypeVar

from dstack.analysis import names
from dstack.analysis.members import member
from dstack.analysis.merging import Branch, Words
from dstack.analysis.missing import Company, Missing, company
from dstack.analysis.outliers import Marked, Outlier
from dstack.analysis.running import Doing, Execution, Place
from dstack.analysis.stacks import Residents, Run, Stack, Stacks, Strand
from dstack.model import Frame, Node, Origin, Worker
from dstack.report.safe_text import SafeText, visible
from dstack.report.text import short_path
from dstack.tui.outline import INDENT, Line
from dstack.tui.verdict import wrapped

T = TypeVar("T")
AROUND = 3
"""So many lines of source are shown before and after a frame's own."""
SHOWN_OUTLIERS = 10
"""Up to so many outliers, the branches that lead to them are unfolded at first."""
SHOWN = 1_000
"""So many of a list are shown; the rest is counted."""
DOING_STYLES: Mapping[Doing, str] = {"waits": "yellow", "runs": "green", "rests": "dim"}
"""Not by colour alone: the words say the same."""
WORDS: tuple[tuple[Doing, str, str], ...] = (
    ("waits", "waits", "wait"),
    ("runs", "runs", "run"),
    ("rests", "off CPU", "off CPU"),
)
ORIGINS: Mapping[Origin, str] = {"user": "", "library": "a library", "ray": "Ray", "stdlib": "Python"}


@dataclass(frozen=True)
class About:
    """What a line is about: an execution or other vertex to go to, workers to mark, a branch, a line of code."""

    vertex: str | None = None
    workers: tuple[str, ...] = ()
    path: tuple[Place, ...] | None = None
    place: tuple[str, int] | None = None
    onward: tuple[str, ...] = ()


# The cluster, process by process


def node_lines(stacks: Stacks, marked: set[str]) -> list[Line]:
    """One line a node, its processes below, and in each the threads and coroutines."""
    nodes = stacks.nodes
    return [_node(stacks, node, marked, is_open=len(nodes) == 1 or number < 3) for number, node in enumerate(nodes)]


def _node(stacks: Stacks, node: Node, marked: set[str], *, is_open: bool) -> Line:
    workers = stacks.workers_on(node)
    ids = tuple(worker.worker_id for worker in workers)
    doings = [stacks.doings.get(worker_id, {}) for worker_id in ids]
    counts: dict[Doing, int] = {doing: sum(one.get(doing, 0) for one in doings) for doing, _, _ in WORDS}
    text = SafeText(mark_of(ids, marked)).append(f"node {node.ip}", "bold")
    text.append(f"  {plural(len(workers), 'process', 'processes')}{', head' * node.is_head}", "dim")
    text.append(f"  {doing_in_words(counts)}" if any(counts.values()) else "")
    return Line(
        f"node/{node.node_id}",
        text,
        lambda: [_process(stacks, worker, marked) for worker in workers],
        is_open=is_open,
        data=About(workers=ids),
        also=node.hostname,
    )


def _process(stacks: Stacks, worker: Worker, marked: set[str]) -> Line:
    counts = stacks.doings.get(worker.worker_id, {})
    text = SafeText(mark_of((worker.worker_id,), marked)).append(stacks.name_of(worker), "bold" if counts else "")
    text.append(f"  pid {worker.pid}", "dim").append(f"  {doing_in_words(counts)}" if counts else "")
    if not counts:
        text.append(f"  {stacks.residents(worker).trouble}", "dim")
    return Line(
        f"worker/{worker.worker_id}",
        text,
        lambda: _strands(stacks.residents(worker)),
        is_open=bool(counts),
        data=About(workers=(worker.worker_id,)),
    )


def _strands(residents: Residents) -> list[Line]:
    lines = [_strand(strand) for strand in residents.strands]
    if residents.others:
        text = SafeText(f"{plural(len(residents.others), 'thread')} of Ray and its libraries", "dim italic")
        data = About(workers=(residents.worker.worker_id,))
        key = f"others/{residents.worker.worker_id}"
        lines.append(Line(key, text, lambda: [_strand(strand) for strand in residents.others], data=data))
    return lines


def _strand(strand: Strand) -> Line:
    text = _doing(strand.doing).append(strand.name)
    text.append(f"  {strand.words}", "dim")
    return Line(strand.key, text, data=About(vertex=strand.key, workers=(strand.worker_id,)))


# All merged


@dataclass(frozen=True)
class Tree:
    """A merged tree, the outliers in it, and the words that were looked for: what leads to these is unfolded."""

    root: Branch
    odd: Marked
    words: Words

    def lines(self) -> list[Line]:
        """Each branch with how many, what they do, and how many stand out."""
        return [self._line(child, is_open=child.depth < 2) for child in self.root.children]

    def _line(self, branch: Branch, *, is_open: bool) -> Line:
        place = branch.place
        assert place is not None
        outliers = self.odd.within(branch)
        is_own = place.origin == "user"
        text = SafeText().append(f"{branch.count:,} × ", "bold").append(short(place.name), "bold" if is_own else "")
        if outliers:
            text.append(f"  ! {plural(len(outliers), 'outlier')}", "bold yellow")
        text.append(f"  {doing_in_words(branch.doing)}", "" if is_own else "dim")
        if place.is_frame:
            text.append(f"  {at(place)}", "cyan")
        is_only = len(branch.children) == 1 and not branch.own
        return Line(
            branch_key(branch.path),
            text,
            (lambda: [self._line(child, is_open=is_only) for child in branch.children]) if branch.children else (),
            is_open=is_open or is_only or self._leads_on(branch, outliers),
            data=About(path=branch.path, place=(place.file, place.line) if place.is_frame else None),
        )

    def _leads_on(self, branch: Branch, outliers: Sequence[Execution]) -> bool:
        """Whether it is to be unfolded for what is below it: a few outliers, or what was looked for."""
        if outliers and len(self.odd.within(self.root)) <= SHOWN_OUTLIERS:
            return True
        if not self.words or self.words.along(branch.path):
            return False
        return any(self.words.along(execution.path) for execution in branch.executions[:SHOWN_OUTLIERS])


def branch_key(path: Sequence[Place]) -> str:
    """The same for the same branch of whatever tree."""
    return "\0".join(f"{place.name}\1{place.file}\1{place.line}" for place in path)


# The page of a branch


def branch_page(stacks: Stacks, root: Branch, branch: Branch, odd: Mapping[str, Outlier], width: int) -> list[Line]:
    """Where the branch is, who is in it, who stands out there, and who of alike workers is not there."""
    place = branch.place
    lines: list[Line] = []
    if place is not None:
        lines += _said("name", place.name, width, "bold")
    if place is not None and place.is_frame:
        lines.append(Line("place", SafeText(at(place), "cyan"), data=About(place=(place.file, place.line))))
        lines += _source("source", stacks.observed.snapshot.sources, place.file, place.line)
    share = f" of {root.count:,}" if branch.count < root.count else ""
    lines += _said("count", f"{branch.count:,}{share} here: {doing_in_words(branch.doing)}", width, "bold")
    lines += _who(stacks, branch)
    within = [odd[one.key] for one in branch.executions if one.key in odd]
    if within:
        lines += _listed("outliers", plural(len(within), "outlier"), within, _outlier_of(stacks), "bold yellow")
    lines += _absent(stacks, company(root, branch, stacks.missing))
    if place is None:
        unseen = [one for one in stacks.missing if one.why == "not seen"]
        if unseen:
            title = f"{plural(len(unseen), 'process', 'processes')} not seen: may be anywhere"
            lines += _listed("unseen", title, unseen, _missing, "yellow")
    return lines


def _who(stacks: Stacks, branch: Branch) -> Iterator[Line]:
    kinds: dict[str, list[Execution]] = {}
    for execution in branch.executions:
        kinds.setdefault(execution.kind, []).append(execution)
    for kind, executions in sorted(kinds.items(), key=lambda item: -len(item[1])):
        nodes = len({execution.node for execution in executions})
        title = f"{len(executions):,} × {kind}" + (f" on {nodes:,} nodes" if nodes > 1 else "")
        yield from _listed(f"who/{kind}", title, executions, _execution_of(stacks), is_open=branch.count <= AROUND)


def _absent(stacks: Stacks, companies: Iterable[Company]) -> Iterator[Line]:
    """Who of the same kinds is elsewhere, idle, dead or not seen; of kinds of which there is but one, nothing."""
    for one in companies:
        if not one.elsewhere and not one.missing:
            continue
        title = f"Not here: {one.all - one.here:,} of {one.all:,} {one.kind}"
        reasons = [f"{len(one.elsewhere):,} elsewhere"] if one.elsewhere else []
        for why in dict.fromkeys(absent.why for absent in one.missing):
            reasons.append(f"{sum(absent.why == why for absent in one.missing):,} {why}")
        everybody: list[Execution | Missing] = [*one.missing, *one.elsewhere]
        yield from _listed(
            f"absent/{one.kind}/{one.job_id}",
            f"{title}: {names.listed(reasons)}",
            everybody,
            _absentee_of(stacks),
            "yellow",
        )


def _absentee_of(stacks: Stacks) -> Callable[[Execution | Missing], tuple[SafeText, About]]:
    of_execution = _execution_of(stacks)
    return lambda one: _missing(one) if isinstance(one, Missing) else of_execution(one)


def _execution_of(stacks: Stacks) -> Callable[[Execution], tuple[SafeText, About]]:
    def line(one: Execution) -> tuple[SafeText, About]:
        text = _doing(one.doing).append(one.name)
        text.append(f"  {member(stacks.observed, stacks.vertices[one.key]).short_place}", "dim")
        return text, About(vertex=one.key, workers=(one.worker_id,))

    return line


def _outlier_of(stacks: Stacks) -> Callable[[Outlier], tuple[SafeText, About]]:
    of_execution = _execution_of(stacks)

    def line(one: Outlier) -> tuple[SafeText, About]:
        text, about = of_execution(one.execution)
        return text.append(f"  {one.most:,} of {one.alike:,} alike went on elsewhere", "yellow"), about

    return line


def _missing(one: Missing) -> tuple[SafeText, About]:
    return SafeText(f"{one.name} ").append(one.detail, "yellow"), About(
        workers=(one.worker_id,) if one.worker_id else ()
    )


# The page of one stack


def stack_page(stacks: Stacks, stack: Stack, width: int) -> list[Line]:
    """Who, in which frames with the source around them, and what it waits for, to go on to."""
    lines = _said("who", stack.sentence or stack.name, width, "bold")
    if not stack.sentence and stack.place:
        lines += _said("where", stack.place, width, "dim")
    own = [index for run in stack.runs if not run.is_aside for index, frame in run.frames if frame.origin == "user"]
    for run in stack.runs:
        lines += _run(stacks, stack, run, min(own, default=-1))
    if stack.call_at is None:
        lines += _onward(stack)
    if not stack.runs and not stack.onward:
        lines.append(Line("nothing", SafeText("No stack was seen.", "dim italic")))
    return lines


def _run(stacks: Stacks, stack: Stack, run: Run, innermost: int) -> list[Line]:
    lines = [_frame(stacks, stack, index, frame, is_open=index == innermost) for index, frame in run.frames]
    if not run.is_aside or len(lines) == 1:
        return lines
    whose = names.listed(list(dict.fromkeys(ORIGINS[frame.origin] or "yours" for _, frame in run.frames)))
    text = SafeText(f"{plural(len(lines), 'frame')} of {whose}", "dim italic")
    return [Line(f"aside/{run.frames[0][0]}", text, lines)]


def _frame(stacks: Stacks, stack: Stack, index: int, frame: Frame, *, is_open: bool) -> Line:
    is_call = index == stack.call_at
    name = (stack.call if is_call else "") or short(frame.function)
    text = (
        SafeText()
        .append(name, "bold" if frame.origin == "user" else "")
        .append(f"  {short_path(frame.file)}:{frame.line}", "cyan")
    )
    if is_call:
        text.append("  waits", DOING_STYLES["waits"])
    children = [*_source(f"source/{index}", stacks.observed.snapshot.sources, frame.file, frame.line)]
    values = stack.locals.get(index, {})
    if values:
        children.append(
            Line(
                f"locals/{index}",
                SafeText(plural(len(values), "local"), "italic"),
                [
                    Line(f"local/{index}/{name}", SafeText(f"{name} = ").append(value, "green"))
                    for name, value in values.items()
                ],
                is_open=is_open,
            )
        )
    onward = _onward(stack) if is_call else []
    data = About(place=(frame.file, frame.line), onward=_straight_on(stack) if is_call else ())
    return Line(f"frame/{index}", text, [*children, *onward], is_open=is_open or is_call, data=data)


def _straight_on(stack: Stack) -> tuple[str, ...]:
    return tuple(one.keys[0] for one in stack.onward)


def _onward(stack: Stack) -> list[Line]:
    lines = []
    for one in stack.onward[:SHOWN]:
        count = f"{len(one.keys):,} × " if len(one.keys) > 1 else ""
        text = SafeText().append("→ ", "magenta").append(f"{count}{one.name}", "bold").append(f"  {one.place}", "dim")
        lines.append(Line(f"onward/{one.keys[0]}", text, data=About(vertex=one.keys[0], onward=(one.keys[0],))))
    if stack.left_out:
        lines.append(Line("onward/more", SafeText(f"and {stack.left_out:,} more", "dim")))
    return lines


def stack_in_words(stack: Stack) -> str:
    """A stack as plain text, whole, for a message to somebody."""
    lines = [stack.sentence or f"{stack.name} ({stack.place})"]
    for run in stack.runs:
        for index, frame in run.frames:
            call = f" ({stack.call})" if index == stack.call_at and stack.call else ""
            lines.append(f"  {frame.file}:{frame.line} in {frame.function}{call}")
    lines += [f"  → {one.name}{f' ({one.place})' if one.place else ''}" for one in stack.onward]
    return "\n".join(map(visible, lines))


# Parts


def _source(key: str, sources: Mapping[str, Mapping[int, str]], file: str, line: int) -> Iterator[Line]:
    known = sources.get(file, {})
    around = {number: known[number] for number in range(line - AROUND, line + AROUND + 1) if number in known}
    texts = dedent("\n".join(around.values())).split("\n")
    for number, code in zip(around, texts, strict=False):
        margin = f"{'›' if number == line else ' '}{number:>4} "
        text = (
            SafeText()
            .append(margin, "" if number == line else "dim")
            .append(code.rstrip(), "bold" if number == line else "dim")
        )
        yield Line(f"{key}/{number - line}", text, data=About(place=(file, number)))


def _said(key: str, text: str, width: int, style: str = "") -> list[Line]:
    return [Line(f"{key}/{row}", line) for row, line in enumerate(wrapped(text, width - INDENT, style))]


def _listed(
    key: str,
    title: str,
    things: Sequence[T],
    line_of: Callable[[T], tuple[SafeText, About]],
    style: str = "",
    *,
    is_open: bool = False,
) -> list[Line]:
    """A line that unfolds into one for each thing."""

    def lines() -> list[Line]:
        made = [(number, *line_of(thing)) for number, thing in enumerate(things[:SHOWN])]
        shown = [Line(f"{key}/{about.vertex or number}", text, data=about) for number, text, about in made]
        rest = len(things) - SHOWN
        return [*shown, Line(f"{key}/more", SafeText(f"and {rest:,} more", "dim"))] if rest > 0 else shown

    return [Line(key, SafeText(title, style), lines, is_open=is_open)]


def mark_of(workers: Sequence[str], marked: set[str]) -> str:
    """``◆ `` where all of these are marked, ``◇ `` where some are."""
    count = sum(worker in marked for worker in workers)
    return "◆ " if workers and count == len(workers) else "◇ " if count else ""


def short(function: str) -> str:
    """A function's name without those it is defined in."""
    return function.rpartition("<locals>.")[2]


def _doing(doing: Doing) -> SafeText:
    word = next(one for known, one, _ in WORDS if known == doing)
    return SafeText().append(f"{word}  ", DOING_STYLES[doing])


def at(place: Place) -> str:
    """``train.py:12``."""
    return f"{short_path(place.file)}:{place.line}"


def doing_in_words(counts: Mapping[Doing, int]) -> str:
    """``10 wait, 1 runs``."""
    parts = [
        f"{count:,} {one if count == 1 else many}" for doing, one, many in WORDS if (count := counts.get(doing, 0))
    ]
    return ", ".join(parts)


def plural(count: int, one: str, many: str = "") -> str:
    """``1 thread`` or ``12 threads``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"

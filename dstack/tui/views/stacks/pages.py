"""The page beside a tree of stacks: one stack with what it waits for, or a branch with who is in it and who is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dstack import words
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.absent_workers import Company, Missing, company
from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.outliers import Outlier
from dstack.analysis.stacks.stack_tree import Branch
from dstack.analysis.views.thread_pages import Onward, Run, Stack, Stacks
from dstack.model import Frame
from dstack.report.paths import location
from dstack.report.safe_text import SafeText
from dstack.tui.views.stacks.lines import (
    DOING_STYLES,
    FEW,
    ORIGINS,
    About,
    at,
    doing_in_words,
    doing_word,
    listed,
    said,
    short,
    source_lines,
)
from dstack.tui.widgets.outline_line import Line
from dstack.vertex_keys import Key
from dstack.visible import visible
from dstack.words import plural

SHOWN_PARTS = 3
"""So many parts of a run that are elsewhere are named in one line."""

# The page of a branch


def branch_page(stacks: Stacks, root: Branch, branch: Branch, odd: Mapping[Key, Outlier]) -> list[Line]:
    """Where the branch is, who is in it, who stands out there, and who of alike workers is not there."""
    place = branch.place
    lines: list[Line] = []
    if place is not None:
        lines += said("name", place.name, "bold")
    if place is not None and place.is_frame:
        lines.append(Line("place", SafeText(at(place), "cyan"), data=About(place=(place.file, place.line))))
        lines += source_lines("source", stacks.index.snapshot.sources, place.file, place.line)
    share = f" of {root.count:,}" if branch.count < root.count else ""
    lines += said("count", f"{branch.count:,}{share} here: {doing_in_words(branch.doing)}", "bold")
    lines += _who(stacks, branch)
    within = [odd[one.key] for one in branch.executions if one.key in odd]
    if within:
        lines += listed(
            "outliers",
            _outliers_in_words(within),
            within,
            _outlier_of(stacks),
            "bold yellow",
            is_open=len(within) <= FEW,
        )
    lines += _absent(stacks, company(root, branch, stacks.missing))
    if place is None:
        unseen = [one for one in stacks.missing if one.why == "not read"]
        if unseen:
            title = f"{plural(len(unseen), 'process', 'processes')} not read: may be anywhere"
            lines += listed("unseen", title, unseen, _missing, "yellow")
        unread = [one for one in stacks.missing if one.why == "unreadable"]
        if unread:
            title = f"{plural(len(unread), 'process', 'processes')} with an unreadable stack: may be anywhere"
            lines += listed("unreadable", title, unread, _missing, "yellow")
    return lines


def _outliers_in_words(within: Sequence[Outlier]) -> str:
    """``1 outlier``, and by their ranks, where these tell them apart, what they are elsewhere than."""
    named = list(dict.fromkeys(one.words for one in within if one.slice))
    more = f"; {len(named) - SHOWN_PARTS:,} more" if len(named) > SHOWN_PARTS else ""
    told = f": {'; '.join(named[:SHOWN_PARTS])}{more}" if named else ""
    return f"{plural(len(within), 'outlier')}{told}"


def _who(stacks: Stacks, branch: Branch) -> Iterator[Line]:
    kinds: dict[str, list[Execution]] = {}
    for execution in branch.executions:
        kinds.setdefault(execution.kind, []).append(execution)
    for kind, executions in sorted(kinds.items(), key=lambda item: -len(item[1])):
        nodes = len({execution.node for execution in executions})
        ranks = f", {found}" if (found := stacks.slice(executions)) else ""
        title = f"{len(executions):,} × {kind}{ranks}" + (f" on {nodes:,} nodes" if nodes > 1 else "")
        yield from listed(f"who/{kind}", title, executions, _execution_of(stacks), is_open=branch.count <= FEW)


def _absent(stacks: Stacks, companies: Iterable[Company]) -> Iterator[Line]:
    """Who of the same kinds is elsewhere, idle, dead or not seen; of kinds of which there is but one, nothing."""
    for one in companies:
        if not one.elsewhere and not one.missing:
            continue
        title = f"Not here: {one.all - one.here:,} of {one.all:,} {one.kind}"
        part = stacks.teams.slice_of(one.elsewhere)
        reasons = [f"{one.away:,} elsewhere{f' {part.aside}' if part else ''}"] if one.elsewhere else []
        for why in dict.fromkeys(absent.why for absent in one.missing):
            reasons.append(f"{sum(absent.why == why for absent in one.missing):,} {why}")
        everybody: list[Execution | Missing] = [*one.missing, *one.elsewhere]
        yield from listed(
            f"absent/{one.kind}/{one.job_id}",
            f"{title}: {words.listed(reasons)}",
            everybody,
            _absentee_of(stacks),
            "yellow",
            is_open=len(everybody) <= FEW,
        )


def _absentee_of(stacks: Stacks) -> Callable[[Execution | Missing], tuple[SafeText, About]]:
    of_execution = _execution_of(stacks)
    return lambda one: _missing(one) if isinstance(one, Missing) else of_execution(one)


def _execution_of(stacks: Stacks) -> Callable[[Execution], tuple[SafeText, About]]:
    def line(one: Execution) -> tuple[SafeText, About]:
        text = doing_word(one.doing).append(one.name)
        text.append(f"  {details_of(stacks.index, stacks.vertices[one.key]).short_place}", "dim")
        return text, About(vertex=one.key, workers=(one.worker_id,))

    return line


def _outlier_of(stacks: Stacks) -> Callable[[Outlier], tuple[SafeText, About]]:
    of_execution = _execution_of(stacks)

    def line(one: Outlier) -> tuple[SafeText, About]:
        text, about = of_execution(one.execution)
        return text.append("" if one.slice else f"  {one.words}", "yellow"), about

    return line


def _missing(one: Missing) -> tuple[SafeText, About]:
    return SafeText(f"{one.name} ").append(one.detail, "yellow"), About(
        workers=(one.worker_id,) if one.worker_id else ()
    )


# The page of one stack


def stack_page(stacks: Stacks, stack: Stack) -> list[Line]:
    """Who, in which frames with the source around them, and what it waits for, to go on to."""
    lines = said("who", stack.sentence or stack.name, "bold")
    if not stack.sentence and stack.place:
        lines += said("where", stack.place, "dim")
    if not stack.runs and not stack.onward:
        lines.append(Line("nothing", SafeText("No stack was read.", "dim italic")))
    return lines + _frames(stacks, stack, "")


def _frames(stacks: Stacks, stack: Stack, under: str) -> list[Line]:
    """The frames, and for whom the last one waits; ``under`` begins the keys of what unfolds below another stack."""
    page = _Page(stacks, stack, under)
    lines = [Line(f"{under}torn", SafeText(f"! {TORN_STACK}", "yellow"))] if stack.is_torn else []
    lines += [line for run in stack.runs for line in page.run(run)]
    return lines if stack.call_at is not None else lines + page.onward()


class _Page:
    """The lines of one stack."""

    def __init__(self, stacks: Stacks, stack: Stack, under: str) -> None:
        self._stacks = stacks
        self._stack = stack
        self._under = under
        own = (index for run in stack.runs for index, frame in run.frames if frame.origin == "user")
        self._innermost = min(own, default=-1)

    def run(self, run: Run) -> list[Line]:
        """Frames that stand together; several of others' are one line that unfolds."""
        lines = [self._frame(index, frame) for index, frame in run.frames]
        if not run.is_aside or len(lines) == 1:
            return lines
        whose = words.listed(list(dict.fromkeys(ORIGINS[frame.origin] for _, frame in run.frames)))
        text = SafeText(f"{len(lines):,} {whose} frames", "dim italic")
        return [Line(f"{self._under}aside/{run.frames[0][0]}", text, lines)]

    def onward(self) -> list[Line]:
        """What is waited for; below each unfolds its own stack."""
        lines = [self._target(one) for one in self._stack.onward]
        if self._stack.left_out:
            text = SafeText(f"and {self._stack.left_out:,} more", "dim")
            lines.append(Line(f"{self._under}onward/more", text))
        return lines

    def _frame(self, index: int, frame: Frame) -> Line:
        is_call = index == self._stack.call_at
        name = (self._stack.call if is_call else "") or short(frame.function)
        text = SafeText().append(name, "bold" if frame.origin == "user" else "")
        text.append(f"  {location(frame.file, frame.line)}", "cyan")
        if is_call:
            text.append("  waits", DOING_STYLES["waits"])
            text.append(", Enter follows" if self._stack.onward else "", "dim")
        sources = self._stacks.index.snapshot.sources
        is_open = index == self._innermost
        children = [*source_lines(f"{self._under}source/{index}", sources, frame.file, frame.line)]
        children += self._locals(index, is_open)
        children += self.onward() if is_call else []
        onward = tuple(one.keys[0] for one in self._stack.onward) if is_call else ()
        data = About(place=(frame.file, frame.line), onward=onward, under=self._under)
        return Line(f"{self._under}frame/{index}", text, children, is_open=is_open or is_call, data=data)

    def _locals(self, index: int, is_open: bool) -> list[Line]:
        values = self._stack.locals.get(index, {})
        lines = [
            Line(f"{self._under}local/{index}/{name}", SafeText().append(f"{name} = ").append(value, "green"))
            for name, value in values.items()
        ]
        text = SafeText(plural(len(values), "local variable"), "italic")
        return [Line(f"{self._under}locals/{index}", text, lines, is_open=is_open)] if values else []

    def _target(self, one: Onward) -> Line:
        count = f"{len(one.keys):,} × " if len(one.keys) > 1 else ""
        text = SafeText().append("→ ", "magenta").append(f"{count}{one.name}", "bold").append(f"  {one.place}", "dim")
        key = onward_key(one.keys[0], self._under)
        vertex = self._stacks.vertices[one.keys[0]]
        return Line(
            key,
            text,
            (lambda: self._below(one.keys[0], key)) if vertex.kind == "execution" or vertex.wait else (),
            data=About(vertex=one.keys[0], onward=(one.keys[0],)),
        )

    def _below(self, vertex: Key, key: str) -> list[Line]:
        stack = self._stacks.stack(vertex)
        return _frames(self._stacks, stack, f"{key}/") if stack else []


def onward_key(vertex: Key, under: str = "") -> str:
    """The line of what is waited for, on the page of who waits."""
    return f"{under}onward/{vertex}"


def stack_in_words(stack: Stack) -> str:
    """A stack as plain text, to be copied."""
    lines = [stack.sentence or f"{stack.name} ({stack.place})"]
    lines += [f"  ({TORN_STACK})"] if stack.is_torn else []
    for run in stack.runs:
        for index, frame in run.frames:
            call = f" ({stack.call})" if index == stack.call_at and stack.call else ""
            lines.append(f"  {frame.file}:{frame.line} in {frame.function}{call}")
    lines += [f"  → {one.name}{f' ({one.place})' if one.place else ''}" for one in stack.onward]
    return "\n".join(map(visible, lines))

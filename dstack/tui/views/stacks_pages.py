"""The page beside the trees of stacks: one stack with source, locals and dependencies, or one merged branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from dstack import words
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.peers import AbsentWorker, BranchPeers, Outlier, branch_peers
from dstack.analysis.stacks.stack_tree import StackBranch
from dstack.analysis.views.all_stacks import Stacks
from dstack.analysis.views.stack_pages import DependencyLink, FrameRun, StackPage
from dstack.model.profile import PathStep
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Frame
from dstack.report import stacks_text
from dstack.report.rich_text import SafeText, location
from dstack.tui.views.stacks_trees import FEW, About, MergedTree, list_lines, sentence_lines, source_lines
from dstack.tui.widgets.outline import Line
from dstack.words import grouped, plural, visible


def stack_page(stacks: Stacks, stack: StackPage) -> list[Line]:
    """The sentence about the execution, its frames, and the stacks that it waits for."""
    lines = sentence_lines("execution", stack.sentence or stack.name, "bold")
    if not stack.sentence and stack.place:
        lines += sentence_lines("where", stack.place, "dim")
    if not stack.runs and not stack.dependencies:
        lines.append(Line("nothing", SafeText("No stack was read.", "dim italic")))
    return lines + _stack_lines(stacks, stack, "")


def _stack_lines(stacks: Stacks, stack: StackPage, prefix: str) -> list[Line]:
    """The frames, and the targets of the wait; ``prefix`` begins the keys of lines that unfold below another stack."""
    parts = _StackLines(stacks, stack, prefix)
    lines = [Line(f"{prefix}torn", SafeText(f"! {TORN_STACK}", "yellow"))] if stack.is_torn else []
    lines += [line for run in stack.runs for line in parts.run(run)]
    return lines if stack.call_at is not None else lines + parts.targets()


class _StackLines:
    """The lines of one stack."""

    def __init__(self, stacks: Stacks, stack: StackPage, prefix: str) -> None:
        self._stacks = stacks
        self._stack = stack
        self._prefix = prefix
        own = (index for run in stack.runs for index, frame in run.frames if frame.origin == "user")
        self._innermost = min(own, default=-1)

    def run(self, run: FrameRun) -> list[Line]:
        """Consecutive frames; an import, or several frames of other code, are one line that unfolds."""
        lines = [self._frame(index, frame) for index, frame in run.frames]
        if not run.is_foldable or len(lines) == 1:
            return lines
        if run.imported:
            text = self._frame_text(run.imported, is_call=False)
        else:
            origins = words.listed(list(dict.fromkeys(stacks_text.ORIGINS[frame.origin] for _, frame in run.frames)))
            text = SafeText(f"{len(lines):,} {origins} frames", "dim italic")
        return [Line(f"{self._prefix}aside/{run.frames[0][0]}", text, lines)]

    def targets(self) -> list[Line]:
        """The targets of the wait; the stack of each unfolds below it."""
        lines = [self._target(one) for one in self._stack.dependencies]
        if self._stack.left_out:
            text = SafeText(f"and {self._stack.left_out:,} more", "dim")
            lines.append(Line(f"{self._prefix}onward/more", text))
        return lines

    def _frame(self, index: int, frame: Frame) -> Line:
        is_call = index == self._stack.call_at
        is_open = index == self._innermost
        sources = self._stacks.index.snapshot.sources
        children = [*source_lines(f"{self._prefix}source/{index}", sources, frame.file, frame.line)]
        children += self._locals(index, is_open)
        children += self.targets() if is_call else []
        targets = tuple(one.keys[0] for one in self._stack.dependencies) if is_call else ()
        data = About(location=(frame.file, frame.line), targets=targets, prefix=self._prefix)
        text = self._frame_text(frame, is_call=is_call)
        return Line(f"{self._prefix}frame/{index}", text, children, is_open=is_open or is_call, data=data)

    def _frame_text(self, frame: Frame, *, is_call: bool) -> SafeText:
        name = (self._stack.call if is_call else "") or stacks_text.short(frame.function)
        text = SafeText().append(name, "bold" if frame.origin == "user" else "")
        text.append(f"  {location(frame.file, frame.line)}", "cyan")
        if is_call:
            text.append("  waits", stacks_text.ACTIVITY_STYLES["waiting"])
            text.append(", Enter follows" if self._stack.dependencies else "", "dim")
        return text

    def _locals(self, index: int, is_open: bool) -> list[Line]:
        values = self._stack.locals.get(index, {})
        lines = [
            Line(f"{self._prefix}local/{index}/{name}", SafeText().append(f"{name} = ").append(value, "green"))
            for name, value in values.items()
        ]
        text = SafeText(plural(len(values), "local variable"), "italic")
        return [Line(f"{self._prefix}locals/{index}", text, lines, is_open=is_open)] if values else []

    def _target(self, target: DependencyLink) -> Line:
        first = target.keys[0]
        count = f"{len(target.keys):,} × " if len(target.keys) > 1 else ""
        text = SafeText().append("→ ", "magenta").append(f"{count}{target.name}", "bold")
        text.append(f"  {target.place}", "dim")
        key = target_key(first, self._prefix)
        vertex = self._stacks.vertices[first]
        has_stack = vertex.kind == "execution" or bool(vertex.wait)
        children = (lambda: self._below(first, key)) if has_stack else ()
        return Line(key, text, children, data=About(vertex=first, targets=(first,)))

    def _below(self, vertex: Key, key: str) -> list[Line]:
        stack = self._stacks.pages.page(vertex)
        return _stack_lines(self._stacks, stack, f"{key}/") if stack else []


def target_key(vertex: Key, prefix: str = "") -> str:
    """The key of the line of a target, on the page of its waiter."""
    return f"{prefix}onward/{vertex}"


def stack_in_words(stack: StackPage) -> str:
    """A stack as plain text, for the clipboard."""
    lines = [stack.sentence or f"{stack.name} ({stack.place})"]
    lines += [f"  ({TORN_STACK})"] if stack.is_torn else []
    for run in stack.runs:
        frames = ((-1, run.imported),) if run.imported else run.frames
        for index, frame in frames:
            call = f" ({stack.call})" if index == stack.call_at and stack.call else ""
            lines.append(f"  {frame.file}:{frame.line} in {frame.function}{call}")
    lines += [f"  → {one.name}{f' ({one.place})' if one.place else ''}" for one in stack.dependencies]
    return "\n".join(map(visible, lines))


def branch_page(tree: MergedTree, branch: StackBranch) -> list[Line]:
    """The frame, the executions by kind, the outliers, and the workers of the same kinds that are not in the branch."""
    stacks, root, outliers = tree.stacks, tree.root, tree.outliers_by_key
    share = f" of {root.count:,}" if branch.count < root.count else ""
    return [
        *(_frame(stacks, branch.place) if branch.place is not None else ()),
        *sentence_lines(
            "count", f"{branch.count:,}{share} here: {stacks_text.activities_in_words(branch.activity)}", "bold"
        ),
        *_executions(stacks, branch),
        *_outliers(stacks, [outliers[one.key] for one in branch.executions if one.key in outliers]),
        *_absent(stacks, branch_peers(root, branch, stacks.absent_workers)),
        *(_unread(stacks) if branch.place is None else ()),
    ]


def _frame(stacks: Stacks, place: PathStep) -> Iterator[Line]:
    yield from sentence_lines("name", place.name, "bold")
    if place.is_frame:
        location = (place.file, place.line)
        yield Line("place", SafeText(stacks_text.frame_location(place), "cyan"), data=About(location=location))
        yield from source_lines("source", stacks.index.snapshot.sources, *location)


def _executions(stacks: Stacks, branch: StackBranch) -> Iterator[Line]:
    kinds = grouped((execution.kind, execution) for execution in branch.executions)
    for kind, executions in sorted(kinds.items(), key=lambda item: -len(item[1])):
        nodes = len({execution.node for execution in executions})
        ranks = f", {found}" if (found := stacks.ranks_in_words(executions)) else ""
        title = f"{len(executions):,} × {kind}{ranks}" + (f" on {nodes:,} nodes" if nodes > 1 else "")
        yield from list_lines(
            f"executions/{kind}", title, executions, partial(_execution, stacks), is_open=branch.count <= FEW
        )


def _outliers(stacks: Stacks, outliers: Sequence[Outlier]) -> list[Line]:
    if not outliers:
        return []
    title, is_open = stacks_text.outliers_in_words(outliers), len(outliers) <= FEW
    return list_lines("outliers", title, outliers, partial(_outlier, stacks), "bold yellow", is_open=is_open)


def _absent(stacks: Stacks, peers: Sequence[BranchPeers]) -> Iterator[Line]:
    """The workers of each kind that are in other code, idle, dead or not read; no line for a kind without any."""
    for kind in peers:
        absent: list[Execution | AbsentWorker] = [*kind.absent, *kind.elsewhere]
        if absent:
            title = f"Not here: {kind.all - kind.here:,} of {kind.all:,} {kind.kind}: {_reasons(stacks, kind)}"
            key = f"absent/{kind.kind}/{kind.job_id}"
            yield from list_lines(
                key, title, absent, partial(_elsewhere_or_missing, stacks), "yellow", is_open=len(absent) <= FEW
            )


def _reasons(stacks: Stacks, kind: BranchPeers) -> str:
    """``1 elsewhere, 1 not read and 1 idle``."""
    part = stacks.rank_sets.rank_set_of(kind.elsewhere)
    reasons = [f"{kind.away:,} elsewhere{f' {part.aside}' if part else ''}"] if kind.elsewhere else []
    for why in dict.fromkeys(missing.why for missing in kind.absent):
        reasons.append(f"{sum(missing.why == why for missing in kind.absent):,} {why}")
    return words.listed(reasons)


def _unread(stacks: Stacks) -> Iterator[Line]:
    """The processes that may be in any branch."""
    for why, state in (("not read", "not read"), ("unreadable", "with an unreadable stack")):
        missing = [one for one in stacks.absent_workers if one.why == why]
        if missing:
            title = f"{plural(len(missing), 'process', 'processes')} {state}: may be anywhere"
            yield from list_lines(why, title, missing, _missing, "yellow")


def _execution(stacks: Stacks, execution: Execution) -> tuple[SafeText, About]:
    text = stacks_text.activity_word(execution.activity).append(execution.name)
    text.append(f"  {details_of(stacks.index, stacks.vertices[execution.key]).short_place}", "dim")
    return text, About(vertex=execution.key, workers=(execution.worker_id,))


def _outlier(stacks: Stacks, outlier: Outlier) -> tuple[SafeText, About]:
    text, about = _execution(stacks, outlier.execution)
    return text.append("" if outlier.rank_set else f"  {outlier.words}", "yellow"), about


def _elsewhere_or_missing(stacks: Stacks, absent: Execution | AbsentWorker) -> tuple[SafeText, About]:
    return _missing(absent) if isinstance(absent, AbsentWorker) else _execution(stacks, absent)


def _missing(missing: AbsentWorker) -> tuple[SafeText, About]:
    workers = (missing.worker_id,) if missing.worker_id else ()
    return SafeText(f"{missing.name} ").append(missing.detail, "yellow"), About(workers=workers)

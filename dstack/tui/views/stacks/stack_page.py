"""The page of one stack: its frames with source and locals, and the stacks that it waits for."""

from __future__ import annotations

from dstack import words
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.views.stack_pages import DependencyLink, FrameRun, StackPage
from dstack.analysis.views.thread_pages import Stacks
from dstack.observed import Frame
from dstack.report.paths import location
from dstack.report.safe_text import SafeText
from dstack.tui.views.stacks.line_parts import ACTIVITY_STYLES, ORIGINS, About, sentence_lines, short, source_lines
from dstack.tui.widgets.outline_tree import Line
from dstack.vertex_keys import Key
from dstack.visible import visible
from dstack.words import plural


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
        """Consecutive frames; several frames of other code are one line that unfolds."""
        lines = [self._frame(index, frame) for index, frame in run.frames]
        if not run.is_foldable or len(lines) == 1:
            return lines
        origins = words.listed(list(dict.fromkeys(ORIGINS[frame.origin] for _, frame in run.frames)))
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
        text = self._frame_text(frame, is_call)
        return Line(f"{self._prefix}frame/{index}", text, children, is_open=is_open or is_call, data=data)

    def _frame_text(self, frame: Frame, is_call: bool) -> SafeText:
        name = (self._stack.call if is_call else "") or short(frame.function)
        text = SafeText().append(name, "bold" if frame.origin == "user" else "")
        text.append(f"  {location(frame.file, frame.line)}", "cyan")
        if is_call:
            text.append("  waits", ACTIVITY_STYLES["waiting"])
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
        for index, frame in run.frames:
            call = f" ({stack.call})" if index == stack.call_at and stack.call else ""
            lines.append(f"  {frame.file}:{frame.line} in {frame.function}{call}")
    lines += [f"  → {one.name}{f' ({one.place})' if one.place else ''}" for one in stack.dependencies]
    return "\n".join(map(visible, lines))

"""The stitched stack of an open chain as numbered steps: it indents only where waits branch, not at every wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.views.distributed_stack import StackNode
from dstack.model import Snapshot
from dstack.observed import Frame
from dstack.report.paths import place_of, shortened_left
from dstack.report.safe_text import SafeText
from dstack.vertex_keys import Key
from dstack.words import plural, shortly

SHOWN_FRAMES = 100
SHOWN_BRANCHES = 10
MAX_INDENT = 40
"""Further to the right nothing is readable on a page of 80 columns."""
INDENT = 4
LONGEST_LOCATION = 44
SHOWN_NAMES = 3


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
            text = f"{node.wait_kind} → {shortly(called, SHOWN_NAMES)}, as above"
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

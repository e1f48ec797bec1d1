"""What the Flame view draws, whatever was counted: a tree, the weights of its branches, and the texts of its cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.cells import cell_len
from rich.text import Text

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.icicle import Cell, Weights
from dstack.analysis.stacks.stack_tree import PathBranch
from dstack.report.safe_text import SafeText
from dstack.tui.views.stacks.line_parts import ORIGINS, frame_location, short
from dstack.visible import visible

SHOWN_KINDS = 3


class Drawing(Protocol):
    """A tree to draw; each kind of data has one."""

    @property
    def root(self) -> PathBranch[Any]:
        """The tree."""
        ...

    @property
    def weights(self) -> Weights[Any]:
        """The widths of its branches."""
        ...

    @property
    def head(self) -> Sequence[str]:
        """What is drawn, and what is left out, for the line above the chart."""
        ...

    @property
    def empty(self) -> str:
        """The text of a chart without cells."""
        ...

    def label(self, cell: Cell[Any]) -> str:
        """The text in a cell."""
        ...

    def tone(self, cell: Cell[Any]) -> str:
        """``more``, ``less`` or ``same`` where it is compared, else empty; the label says the same."""
        ...

    def figures(self, cell: Cell[Any], shown: int) -> Iterator[Text]:
        """The lines about a cell; ``shown`` is the weight of all that the zoom shows."""
        ...

    def matches(self, branch: PathBranch[Any], words: tuple[str, ...]) -> bool:
        """Whether a branch has all words of the filter."""
        ...


@dataclass(frozen=True, slots=True)
class NoDrawing:
    """Nothing, and the reason."""

    empty: str = ""
    head: Sequence[str] = ()

    @property
    def root(self) -> PathBranch[Any]:
        """An empty tree."""
        return PathBranch[Any]((), 0, 0, 0)

    @property
    def weights(self) -> Weights[Any]:
        """No weights."""
        return Weights(self.root, lambda _: 0)

    def label(self, cell: Cell[Any]) -> str:
        """No text."""
        return ""

    def tone(self, cell: Cell[Any]) -> str:
        """None."""
        return ""

    def figures(self, cell: Cell[Any], shown: int) -> Iterator[Text]:
        """No lines."""
        return iter(())

    def matches(self, branch: PathBranch[Any], words: tuple[str, ...]) -> bool:
        """False."""
        return False


def folded_name(cell: Cell[Any]) -> Text:
    """The name of a cell of several narrow branches."""
    widest = ", ".join(short(branch.place.name) for branch in cell.branches[:SHOWN_KINDS] if branch.place)
    text = SafeText().append(f"{len(cell.branches):,} narrow branches", "bold")
    return text.append(f": {widest}, … Enter zooms in")


def frame_name(place: PathStep, source: str = "") -> Text:
    """The name of a frame with its location, its source line and its origin."""
    text = SafeText().append(place.name, "bold").append(f"  {frame_location(place)}", "cyan")
    if place.name != place.function:
        text.append(f"  in {place.function}")
    text.append(f"  {source}" if source else "", "italic")
    return text.append(f"  {ORIGINS[place.origin]} code", "dim")


def row_as_text(drawing: Drawing, row: tuple[Cell[Any], ...]) -> str:
    """A row of cells as a line of plain text."""
    line = ""
    for cell in row:
        label = f"|{visible(drawing.label(cell))}"
        line = line.ljust(cell.start) + label[: cell.width].ljust(cell.width)
    return line.rstrip()


def longer(label: str, words: str, cell: Cell[Any]) -> str:
    """The label with further words, if there are any and the cell has room for them."""
    whole = f"{label}  {words}"
    return whole if words and cell_len(whole) < cell.width - 1 else label


def percent(share: float) -> str:
    """``12 %``, ``0.3 %``."""
    return f"{share:.0f} %" if share >= 9.5 or share == 0 else f"{share:.1f} %"


def share(part: int, total: int) -> str:
    """A part of a total in percent."""
    return percent(100 * part / total if total else 0.0)

"""The base of the peer views: the lines on top, the filter, and what a view can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input

from dstack.tui.host import Host
from dstack.tui.source import Look
from dstack.tui.views.top_bar import TopBar
from dstack.vertex_keys import Key

Place = tuple[str, int]
"""A file, as the node has it, and a line."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of the command palette that has no key."""

    title: str
    tooltip: str
    choose: Callable[[], None]


class View(Screen[None]):
    """One of the peer views.

    A view composes its body, shows a :class:`Look` whenever there is another one, and filters. It keeps its cursor,
    folds and scroll when it shows another look. What a person can take from it, it answers when asked.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash",
            "search",
            "Filter",
            key_display="/",
            tooltip="Show only what contains these words, ranks or labels, such as rank:3 or tp:1",
            id="view.filter",
        ),
        Binding("escape", "clear", "Clear", show=False, tooltip="Close and clear the filter", id="view.clear"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.look: Look | None = None

    @property
    def host(self) -> Host:
        """The application that shows this view."""
        assert isinstance(self.app, Host)
        return self.app

    def compose(self) -> ComposeResult:
        """The frame around every view's own body."""
        yield TopBar()
        yield from self.compose_body()
        field = Input(placeholder="Words to find, or rank:3, tp:1, label:value; Esc clears", id="filter")
        field.display = False
        yield field
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Shows what has come in while another view was on the screen."""
        self.offer(self.host.shown)
        self.refresh_top()

    def offer(self, look: Look | None) -> None:
        """Shows the look unless it is shown already."""
        if look is not None and look is not self.look:
            self.look = look
            self.show(look)

    def refresh_top(self) -> None:
        """Tells again on top how old the look is and what is under way."""
        if self.query("#coverage"):  # which is not there before the view has been composed
            status = self.host.status
            self.query_one(TopBar).tell(self.look, status, list(self.app.MODES), self.app.current_mode)

    # What a view is made of: each has its own, and Textual's metaclass leaves no room for abc's

    def compose_body(self) -> ComposeResult:
        """The view's own widgets."""
        raise NotImplementedError

    def show(self, look: Look) -> None:
        """Shows another look."""
        raise NotImplementedError

    def filtered(self, text: str) -> int:
        """Shows only what has all the words of the text; returns how many have."""
        raise NotImplementedError

    # What a view can be asked for; None where there is nothing of the kind

    def to_copy(self) -> str | None:
        """What ``y`` copies: the stack, id or finding under the cursor."""
        return None

    def to_export(self) -> str | None:
        """What ``e`` writes: all that is shown, as plain text."""
        return None

    def to_open(self) -> Place | None:
        """What ``o`` opens."""
        return None

    def choices(self) -> Iterable[Choice]:
        """What the command palette offers besides the keys."""
        return ()

    def reveal(self, vertex: Key) -> bool:
        """Goes to a vertex of the wait-for graph; false where it is not in this view."""
        return False

    # The filter

    @property
    def filter_text(self) -> str:
        """The words looked for."""
        return self.query_one("#filter", Input).value

    def action_search(self) -> None:
        """Opens the filter."""
        field = self.query_one("#filter", Input)
        field.display = True
        self.set_focus(field)  # now: what is typed next belongs there

    def action_clear(self) -> None:
        """Closes the filter and shows everything again."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.focus_body()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters as one types."""
        if event.input.id == "filter":
            event.stop()
            count = self.filtered(event.value)
            event.input.border_subtitle = f"{count:,} found" if event.value.strip() else ""

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keeps the filter and goes back to what it left."""
        if event.input.id == "filter":
            event.stop()
            self.focus_body()

    def focus_body(self) -> None:
        """Gives the keys to the first widget of the body that takes them."""
        found: list[Any] = [one for one in self.query("*") if one.can_focus and one.id != "filter" and one.display]
        if found:
            found[0].focus()

"""The base of the views whose body is an outline, with or without details below it."""

from __future__ import annotations

from collections.abc import Sequence

from dstack.tui.views.base import View
from dstack.tui.widgets.outline import Outline
from dstack.vertex_keys import Key


class OutlineView(View):
    """A view of one outline: the filter, the export and the way to a vertex are those of its lines."""

    def filtered(self, text: str) -> int:
        """Show only lines that contain all words, with their ancestors and descendants; return how many match."""
        return self._outline.filter(text)

    def to_export(self) -> str | None:
        """All unfolded lines."""
        return self._outline.as_text()

    def reveal(self, vertex: Key) -> bool:
        """Unfold the outline down to a vertex, and select it."""
        keys = self._path_to(vertex)
        if keys and self.filter_text:
            self.action_clear()
        self.call_after_refresh(self._outline.scroll_to_cursor)  # for a view that was not on the screen before
        return self._outline.reveal(keys)

    def _path_to(self, vertex: Key) -> Sequence[str]:
        """The keys of the lines from the root down to a vertex; empty if it is not in this view."""
        return ()

    @property
    def _outline(self) -> Outline:
        return self.query_one(Outline)

    @property
    def _data(self) -> object:
        """The data of the line under the cursor."""
        line = self._outline.cursor_line if self.is_mounted else None
        return line.data if line else None

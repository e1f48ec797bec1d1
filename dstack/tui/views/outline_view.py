"""What those views have in common whose body is an outline, perhaps with details below."""

from __future__ import annotations

from collections.abc import Sequence

from dstack.tui.views.base import View
from dstack.tui.widgets.outline import Outline
from dstack.vertex_keys import Key


class OutlineView(View):
    """A view of one outline: it is filtered and written as such, and a vertex is where its lines lead to."""

    def filtered(self, text: str) -> int:
        """Shows only lines with these words, and where they stand."""
        return self._outline.filter(text)

    def to_export(self) -> str | None:
        """All that is unfolded."""
        return self._outline.as_text()

    def reveal(self, vertex: Key) -> bool:
        """Unfolds the outline down to a vertex."""
        keys = self._way_to(vertex)
        if keys and self.filter_text:
            self.action_clear()
        self.call_after_refresh(self._outline.scroll_to_cursor)  # where the view was not on the screen yet
        return self._outline.reveal(keys)

    def _way_to(self, vertex: Key) -> Sequence[str]:
        """The keys of the lines down to a vertex; none where it is not in this view."""
        return ()

    @property
    def _outline(self) -> Outline:
        return self.query_one(Outline)

    @property
    def _data(self) -> object:
        """What the line under the cursor is about."""
        line = self._outline.cursor_line if self.is_mounted else None
        return line.data if line else None

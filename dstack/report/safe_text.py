"""Rich text that may hold text from strangers."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from dstack.visible import visible


class SafeText(Text):
    """Rich text that takes only what is :func:`dstack.visible.visible`, and never reads markup."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(visible(text), *arguments, **options)

    def append(self, text: Any, style: Any = None) -> SafeText:
        """Adds text, made visible."""
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self

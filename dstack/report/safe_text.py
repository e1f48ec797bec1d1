"""Text from strangers, made harmless: nothing of it reaches the terminal but characters one can see."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text

UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Control characters, escape sequences' beginnings, and what turns or hides the text around it."""


def visible(text: str) -> str:
    """The text with every such character as its escape code, and tabs as spaces."""
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text.replace("\t", " "))


class SafeText(Text):
    """Rich text that takes only what is :func:`visible`, and never reads markup."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(visible(text), *arguments, **options)

    def append(self, text: Any, style: Any = None) -> SafeText:
        """Adds text, made visible."""
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self

"""The peer views, in the order of their keys."""

from __future__ import annotations

from dstack.tui.verdict import VerdictView
from dstack.tui.view import View

VIEWS: dict[str, type[View]] = {
    "verdict": VerdictView,
}
"""By the name of their mode; the keys 1 to 6 count them."""

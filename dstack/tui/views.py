"""The peer views, in the order of their keys."""

from __future__ import annotations

from dstack.tui.cluster import ClusterView
from dstack.tui.flame import FlameView
from dstack.tui.history import HistoryView
from dstack.tui.stacks import StacksView
from dstack.tui.verdict import VerdictView
from dstack.tui.view import View
from dstack.tui.waits import WaitsView

VIEWS: dict[str, type[View]] = {
    "verdict": VerdictView,
    "waits": WaitsView,
    "stacks": StacksView,
    "flame": FlameView,
    "cluster": ClusterView,
    "history": HistoryView,
}
"""By the name of their mode; the keys 1 to 6 count them."""

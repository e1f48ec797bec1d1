"""The peer views, in the order of their keys."""

from __future__ import annotations

from dstack.tui.views.base import View
from dstack.tui.views.cluster.view import ClusterView
from dstack.tui.views.flame.view import FlameView
from dstack.tui.views.history.view import HistoryView
from dstack.tui.views.stacks.view import StacksView
from dstack.tui.views.verdict.view import VerdictView
from dstack.tui.views.waits.view import WaitsView

VIEWS: dict[str, type[View]] = {
    "verdict": VerdictView,
    "waits": WaitsView,
    "stacks": StacksView,
    "flame": FlameView,
    "cluster": ClusterView,
    "history": HistoryView,
}
"""The views by mode; their keys are 1 to 6."""

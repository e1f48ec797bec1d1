"""Labels that a program gives its own processes, which dstack reads from their memory."""

from __future__ import annotations

LABELS: dict[str, object] = {}


def label(**labels: str | int | float | None) -> None:
    """Set labels of this process, such as ``dstack.label(tp=1, stage="rollout")``; None removes a label.

    The call only updates a dict: it sends and computes nothing. Values are str, int, float or bool; values of other
    types are not shown, and long texts are truncated.
    """
    LABELS.update(labels)

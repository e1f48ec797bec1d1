"""Labels that a program gives its own processes, which dstack reads from their memory."""

from __future__ import annotations

LABELS: dict[str, object] = {}


def label(**labels: str | int | float | None) -> None:
    """Set labels of this process, such as ``dstack.label(tp=1, stage="rollout")``; None removes one.

    It costs the update of a dict: nothing is sent or computed. Values are str, int, float or bool; any other is not
    shown, and long texts are cut.
    """
    LABELS.update(labels)

"""A constant age of snapshots, for the expected screens."""

from __future__ import annotations

import pytest

from dstack.tui.views import bars


@pytest.fixture
def fixed_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every snapshot is 12 seconds old."""
    monkeypatch.setattr(bars, "now_for", lambda shown: shown.analysed.snapshot.taken_at + 12)

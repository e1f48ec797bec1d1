"""For pictures the time stands still."""

from __future__ import annotations

import pytest

from dstack.tui.views import top_bar


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is always as old as it takes to read this."""
    monkeypatch.setattr(top_bar, "now_for", lambda look: look.snapshot.taken_at + 12)

"""What the plugin attaches to a session and to its tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dstack.pytest_plugin.settings import Settings

if TYPE_CHECKING:
    from dstack.pytest_plugin.phase import Phase

SETTINGS = pytest.StashKey[Settings]()
BEGAN = pytest.StashKey[float]()
TIMEOUT_S = pytest.StashKey[float | None]()
PHASE: pytest.StashKey[Phase] = pytest.StashKey()
IS_LAST_OF_MODULE = pytest.StashKey[bool]()
SECTION = "dstack"
"""The name of the plugin's sections in reports."""

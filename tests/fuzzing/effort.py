"""How much is tried of what there are endless variants of: random examples, mutations, repetitions.

``EFFORT`` is ``quick`` unless set (``make test``), ``thorough`` in ``make test-all``, and ``search`` in
``make search``, which tries other variants each time.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

EFFORT = os.environ.get("EFFORT", "quick")
IS_SEARCH = EFFORT == "search"

_SHARE = {"quick": 0.2, "thorough": 1.0, "search": 50.0}[EFFORT]


def tries(thorough: int) -> int:
    """How many to try where a thorough run tries so many."""
    return max(1, round(thorough * _SHARE))


def examples(thorough: int = 100, **others: Any) -> settings:
    """Hypothesis' settings for a test of which a thorough run tries so many examples."""
    return settings(max_examples=tries(thorough), deadline=None, derandomize=not IS_SEARCH, **others)

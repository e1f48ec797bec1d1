"""The number of random examples, mutations and repetitions of a test.

``EFFORT`` is ``quick`` by default (``make test``), ``thorough`` in ``make test-all`` and ``search`` in ``make search``,
which uses a new random seed each time.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

EFFORT = os.environ.get("EFFORT", "quick")
IS_SEARCH = EFFORT == "search"

_SHARE = {"quick": 0.1, "thorough": 1.0, "search": 50.0}[EFFORT]


def tries(thorough: int) -> int:
    """The number of tries now, where a thorough run has ``thorough``."""
    return max(1, round(thorough * _SHARE))


def examples(thorough: int = 100, **others: Any) -> settings:
    """Hypothesis' settings for a test that has ``thorough`` examples in a thorough run.

    Random snapshots may be too large to be drawn, or slow to draw on a busy machine: no failures of what they test.
    """
    suppressed = [HealthCheck.data_too_large, HealthCheck.too_slow, *others.pop("suppress_health_check", ())]
    return settings(
        max_examples=tries(thorough),
        deadline=None,
        derandomize=not IS_SEARCH,
        report_multiple_bugs=False,
        suppress_health_check=suppressed,
        **others,
    )

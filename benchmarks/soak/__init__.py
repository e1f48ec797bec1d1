"""Healthy programs under load and faults, read all the while: `python -m benchmarks.soak`, see `__main__.py`."""

ALARMS = ("deadlock", "orphaned", "infeasible")
"""The kinds of findings that say that a wait never ends."""
SHOWN = (*ALARMS, "stalled")
"""The kinds whose snapshots are kept; `stalled` claims no proof, so it is counted, but allowed."""

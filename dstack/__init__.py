"""Explains a hung Ray application from outside.

Public names are resolved when first used, so that ``import dstack`` loads neither Ray nor anything else.
"""

from __future__ import annotations

from dstack.version import __version__

TYPE_CHECKING = False  # typing would take longer to load than all the rest
if TYPE_CHECKING:
    from typing import Any

    from dstack.api import (
        DeadlockFound,
        Profiling,
        Session,
        assert_no_deadlock,
        check,
        profile,
        session,
        snapshot,
        to_networkx,
    )
    from dstack.errors import ClusterError, DstackError, SnapshotFileError, UsageError
    from dstack.files.snapshot_file import load
    from dstack.guarding import Hang, guard
    from dstack.labels import label
    from dstack.model.diagnosis import Diagnosis
    from dstack.model.snapshot import Snapshot
    from dstack.spans import span

__all__ = [
    "ClusterError",
    "DeadlockFound",
    "Diagnosis",
    "DstackError",
    "Hang",
    "Profiling",
    "Session",
    "Snapshot",
    "SnapshotFileError",
    "UsageError",
    "__version__",
    "assert_no_deadlock",
    "check",
    "guard",
    "label",
    "load",
    "profile",
    "session",
    "snapshot",
    "span",
    "to_networkx",
]

_HOMES = {
    "ClusterError": "errors",
    "DeadlockFound": "api",
    "Diagnosis": "model.diagnosis",
    "DstackError": "errors",
    "Hang": "guarding",
    "Profiling": "api",
    "Session": "api",
    "Snapshot": "model.snapshot",
    "SnapshotFileError": "errors",
    "UsageError": "errors",
    "assert_no_deadlock": "api",
    "check": "api",
    "guard": "guarding",
    "label": "labels",
    "load": "files.snapshot_file",
    "profile": "api",
    "session": "api",
    "snapshot": "api",
    "span": "spans",
    "to_networkx": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

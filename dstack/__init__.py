"""Explains a hung Ray application from outside.

Public names are resolved when first used, so that ``import dstack`` loads neither Ray nor anything else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dstack.capture import check, snapshot
    from dstack.diagnosis import Diagnosis
    from dstack.errors import ClusterError, DstackError, SnapshotFileError, UsageError
    from dstack.model import Snapshot
    from dstack.snapshot_file import load

__version__ = "0.1.0"

__all__ = [
    "ClusterError",
    "Diagnosis",
    "DstackError",
    "Snapshot",
    "SnapshotFileError",
    "UsageError",
    "__version__",
    "check",
    "load",
    "snapshot",
]

_HOMES = {
    "ClusterError": "errors",
    "Diagnosis": "diagnosis",
    "DstackError": "errors",
    "Snapshot": "model",
    "SnapshotFileError": "errors",
    "UsageError": "errors",
    "check": "capture",
    "load": "snapshot_file",
    "snapshot": "capture",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

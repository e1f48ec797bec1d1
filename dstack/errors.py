"""The exceptions dstack raises, each with an exit code and, where there is one, a remedy.

    DstackError                 exit 3, unless a subclass defines another code
    |-- UsageError              exit 2: invalid arguments or options
    |-- ClusterError            exit 3: the cluster is unreachable or not supported
    `-- SnapshotFileError       exit 3: the file cannot be read or written

A failure that affects one node, process or thread raises nothing: it is recorded as a
:class:`dstack.observed.node.Failure` in the snapshot.
"""

from __future__ import annotations

import errno
import sys

from dstack.words import visible


class DstackError(Exception):
    """Base class of all errors of dstack, with a ``message`` and, if there is one, a ``remedy``."""

    exit_code = 3

    def __init__(self, message: str, remedy: str | None = None) -> None:
        self.message = visible(message)
        self.remedy = visible(remedy) if remedy else None
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class UsageError(DstackError):
    """Invalid arguments or options."""

    exit_code = 2


class ClusterError(DstackError):
    """The cluster is unreachable, denies access, or dstack does not support its version or this platform."""


class SnapshotFileError(DstackError):
    """A snapshot file cannot be read or written."""


def require_linux() -> None:
    """Raise :class:`ClusterError` unless this is Linux: only there can processes be read from outside."""
    if sys.platform != "linux":
        raise ClusterError(
            f"dstack reads the processes of a cluster only on Linux; this Python runs on {sys.platform}.",
            "Save a file on a node of the cluster: dstack snapshot -o FILE. Here show, check, stacks, graph, timeline,"
            " report and tui work on it.",
        )


def as_dstack_error(error: Exception) -> DstackError:
    """The error itself if it is a :class:`DstackError`; else one that names the exceeded limit or an internal error."""
    if isinstance(error, DstackError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return DstackError("dstack reached the limit of open files.", "Raise the limit: ulimit -n 1024")
    if number == errno.EAGAIN or "can't start new thread" in str(error):
        return DstackError("dstack reached the limit of processes and threads.", "Raise the limit: ulimit -u 4096")
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        return DstackError("dstack ran out of memory.", "Raise the limit (ulimit -v unlimited) or free memory.")
    if number == errno.ENOSPC:
        return DstackError("dstack cannot write: no space is left.", "Free some space, or redirect the output.")
    what = f"{type(error).__name__}: {error}"
    return DstackError(
        f"Internal error in dstack: {what}", "Run it again with dstack -v, and please report the output."
    )

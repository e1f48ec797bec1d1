"""The exceptions dstack raises, each with an exit code and, where there is one, a remedy.

    DstackError                 exit 3 unless a subclass says otherwise
    |-- UsageError              exit 2: the request itself makes no sense
    |-- ClusterError            exit 3: the cluster cannot be reached or understood
    `-- SnapshotFileError       exit 3: the file cannot be read or written

What fails for one node, process or thread is not an exception: it is a :class:`dstack.model.Failure`.
"""

from __future__ import annotations

import errno

from dstack.visible import visible


class DstackError(Exception):
    """A failure that ends the command: one sentence, and what to do about it, both fit for a terminal."""

    exit_code = 3

    def __init__(self, message: str, remedy: str | None = None) -> None:
        self.message = visible(message)
        self.remedy = visible(remedy) if remedy else None
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class UsageError(DstackError):
    """The request itself makes no sense."""

    exit_code = 2


class ClusterError(DstackError):
    """The cluster cannot be reached, refuses us, or is of a version dstack does not know."""


class SnapshotFileError(DstackError):
    """A snapshot file cannot be read or written."""


def as_dstack_error(error: Exception) -> DstackError:
    """The error itself if it is one of these, else one that names the system's limit, or dstack, as the cause."""
    if isinstance(error, DstackError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return DstackError("dstack may not open as many files as it needs.", "Allow it more: ulimit -n 1024")
    if number == errno.EAGAIN or "can't start new thread" in str(error):
        return DstackError(
            "dstack may not start as many processes and threads as it needs.", "Allow it more: ulimit -u 4096"
        )
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        return DstackError("dstack gets no more memory.", "Allow it more: ulimit -v unlimited")
    what = f"{type(error).__name__}: {error}"
    return DstackError(f"dstack itself failed: {what}", "Please report it, with -v.")

"""The exceptions dstack raises, each with an exit code and, where there is one, a remedy.

    DstackError                 exit 3 unless a subclass says otherwise
    |-- UsageError              exit 2: the request itself makes no sense
    |-- ClusterError            exit 3: the cluster cannot be reached or understood
    `-- SnapshotFileError       exit 3: the file cannot be read or written

What fails for one node, process or thread is not an exception: it is a :class:`dstack.model.Failure`.
"""

from __future__ import annotations

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

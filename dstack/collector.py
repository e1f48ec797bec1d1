"""Takes snapshots in a process of their own, which can be ended at any time, whatever it waits for.

``python -m dstack.collector PARENT ADDRESS TIMEOUT_S [native] [locals] [nonblocking]`` ends with the process and thread
that has started it, and writes to standard output lines of a
word and the rest: ``progress`` and what is being done; ``early`` or ``snapshot`` and a number, followed by so many
bytes of a snapshot file; or ``error`` and, as JSON, its class, what went wrong and what to do about it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from typing import IO

from dstack import errors
from dstack.child import child_command, die_with
from dstack.errors import ClusterError, DstackError
from dstack.model import Snapshot


class Collector:
    """A live source of snapshots of one cluster. Each is taken by a child process that ends with it.

    ``options`` are those of :func:`dstack.snapshot` that are to be on, by name.
    """

    is_live = True

    def __init__(self, address: str | None, timeout_s: float = 30.0, options: Collection[str] = ()) -> None:
        self.name = address or os.environ.get("RAY_ADDRESS") or "auto"
        self._command = child_command("dstack.collector", str(os.getpid()), address or "", str(timeout_s), *options)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_cancelled = False

    def take(self, progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        """A new snapshot.

        ``progress`` is told in a few words what is being done, ``early`` gets what was seen before the second look.
        Raises :class:`dstack.DstackError`, also when it was cancelled meanwhile.
        """
        with self._lock:
            if self._is_cancelled:
                raise ClusterError("Cancelled.")
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        with self._child as child:
            assert child.stdout is not None
            try:
                return self._receive(child.stdout, progress, early)
            finally:
                child.kill()

    @staticmethod
    def _receive(stream: IO[bytes], progress: Callable[[str], None], early: Callable[[Snapshot], None]) -> Snapshot:
        from dstack.snapshot_file import loads

        for line in stream:
            word, _, rest = line.decode("utf-8", "replace").rstrip("\n").partition(" ")
            match word:
                case "progress":
                    progress(rest)
                case "early":
                    early(loads(stream.read(int(rest))))
                case "snapshot":
                    return loads(stream.read(int(rest)))
                case "error":
                    name, message, remedy = json.loads(rest)
                    raise getattr(errors, name)(message, remedy)
        raise ClusterError("The process that takes snapshots has ended.", "Try again with r, or: dstack -v snapshot")

    def cancel(self) -> None:
        """Ends a ``take`` that is under way, at once, and all that would follow."""
        with self._lock:
            self._is_cancelled = True
            if self._child is not None:
                with contextlib.suppress(OSError):
                    self._child.kill()


def main() -> None:
    """Takes one snapshot and writes it to standard output, as this module says."""
    die_with(int(sys.argv[1]))
    from dstack import capture
    from dstack.snapshot_file import dumps

    address, timeout_s, options = sys.argv[2] or None, float(sys.argv[3]), dict.fromkeys(sys.argv[4:], True)
    output = sys.stdout.buffer
    sys.stdout = sys.stderr  # nobody else writes there

    def write(word: str, rest: str, data: bytes = b"") -> None:
        output.write(f"{word} {rest}\n".encode() + data)
        output.flush()

    def write_snapshot(word: str, taken: Snapshot) -> None:
        data = dumps(taken)
        write(word, str(len(data)), data)

    try:
        taken = capture.snapshot(
            address,
            timeout_s=timeout_s,
            progress=lambda text: write("progress", text),
            early=lambda one: write_snapshot("early", one),
            **options,
        )
        write_snapshot("snapshot", taken)
    except DstackError as error:
        write("error", json.dumps([type(error).__name__, error.message, error.remedy]))
    except BrokenPipeError:
        sys.stderr = None  # who asked has gone


if __name__ == "__main__":
    main()

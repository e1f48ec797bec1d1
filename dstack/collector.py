"""Takes snapshots in a child process, which can be killed at any time, even while it is blocked.

The arguments of the process are ADDRESS TIMEOUT_S DEADLINE WATCH_S HISTORY [native] [locals] [pause]. It ends with the
thread that has started it, and sends messages (see :mod:`dstack.child`): ``progress`` with the current step; ``early``
and ``snapshot`` with a snapshot file; or ``error`` with JSON: class, message, remedy and traceback. DEADLINE is the
``time.monotonic()`` by which it must end; that clock is the same in all processes of a host.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from typing import IO, TYPE_CHECKING, Any

from dstack import errors
from dstack.child import Messages, send, start_child
from dstack.errors import ClusterError, as_dstack_error
from dstack.gc_pause import GcPause

if TYPE_CHECKING:  # the child is started before the rest is loaded
    from dstack.model import Snapshot

LATE_S = 5.0
"""The time beyond the timeout in which the child process starts and hands over the snapshot."""
HANDOVER_S = 1.0
"""The child process stops reading this long before it would be killed."""
WHOLE_HISTORY = 100_000
"""The maximum number of attempts of tasks in a history: as many as the GCS keeps by default."""
SAVED_HISTORY = 20_000
"""The same for snapshots that are saved without being asked for a history: about 1 MB in a file."""
REAP_S = 1.0
"""The longest wait for a killed process; the kernel may keep it longer."""
LONGER = "Use a longer timeout, or run dstack on a host with more free CPU time."


class Collector:
    """A live source of snapshots of one cluster; a new child process takes each of them.

    ``address`` may be a function, which is called for each snapshot. ``options`` are the names of the options of
    :func:`dstack.snapshot` that are on; ``watch_s`` is its argument. ``history`` is the maximum number of attempts of
    tasks in the snapshot's history; it may be set between two snapshots. Another thread can cancel it, even before it
    is used: it ends a running snapshot and takes no more.
    """

    def __init__(
        self,
        address: str | Callable[[], str | None] | None,
        timeout_s: float = 30.0,
        options: Collection[str] = (),
        watch_s: float | None = None,
        history: int = 0,
    ) -> None:
        fixed = None if callable(address) else address
        self.name = fixed or os.environ.get("RAY_ADDRESS") or "auto"
        self.is_cancelled = False
        self._address = address if callable(address) else lambda: fixed
        self._timeout_s = timeout_s
        self._options = options
        self._watch_s = watch_s
        self.history = history
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def take(
        self, progress: Callable[[str], None] | None = None, early: Callable[[Snapshot], None] | None = None
    ) -> Snapshot:
        """Takes a snapshot, at most :data:`LATE_S` after its timeout.

        ``progress`` is called with a short description of each step, first when the child has been started. ``early``
        is called with the first sample, if there will be a second one. If the second one times out, the result is the
        first one with a failure. Raises :class:`dstack.DstackError`, also if it was cancelled.
        """
        address = self._address() or ""
        deadline = time.monotonic() + self._limit_s
        with self._lock:
            if self.is_cancelled:
                raise ClusterError("Cancelled.")
            times = (str(self._timeout_s), str(deadline - HANDOVER_S), str(self._watch_s or ""))
            terms = (*times, str(self.history), *self._options)
            self._child = child = start_child("dstack.collector", address, *terms)
        assert child.stdout is not None
        try:
            return self._receive(Messages(child.stdout), deadline, progress or (lambda _: None), early)
        except EOFError:
            raise ClusterError("Cancelled.") if self.is_cancelled else _why_ended(child) from None
        finally:
            child.kill()
            child.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(REAP_S)

    def _receive(
        self,
        messages: Messages,
        deadline: float,
        progress: Callable[[str], None],
        early: Callable[[Snapshot], None] | None,
    ) -> Snapshot:
        first: bytes | None = None
        step = "starting"
        progress(step)
        from dstack.snapshot_file import loads

        while True:
            try:
                message = messages.receive(deadline)
            except TimeoutError:
                limit_s = self._limit_s
                if first is None:
                    raise ClusterError(
                        f"The snapshot timed out after {limit_s:g} s; the last step was: {step}.", LONGER
                    ) from None
                return _without_second_sample(loads(first), limit_s)
            match message.kind:
                case "progress":
                    step = message.payload.decode("utf-8", "replace")
                    progress(step)
                case "early":
                    first = message.payload
                    if early is not None:
                        early(loads(message.payload))
                case "snapshot":
                    return loads(message.payload)
                case "error":
                    name, message, remedy, where = json.loads(message.payload)
                    raise getattr(errors, name)(message, remedy) from _InChild(where)

    @property
    def _limit_s(self) -> float:
        return self._timeout_s + (self._watch_s or 0.0) + LATE_S

    def request_history(self) -> bool:
        """Have further snapshots include the whole history of tasks."""
        self.history = WHOLE_HISTORY
        return True

    def cancel(self) -> None:
        """Ends a running :meth:`take` at once, and makes later ones fail."""
        with self._lock:
            self.is_cancelled = True
            if self._child is not None:
                with contextlib.suppress(OSError):
                    self._child.kill()


class _InChild(Exception):
    """The traceback of an error in the child process, shown as the cause of that error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _without_second_sample(first: Snapshot, limit_s: float) -> Snapshot:
    from msgspec.structs import replace

    from dstack.model import Failure

    late = Failure(
        stage="node probe",
        reason=f"the second sample timed out after {limit_s:g} s",
        cause="timeout",
        remedy=LONGER,
        sample=2,
    )
    return replace(first, failures=(*first.failures, late))


def _why_ended(child: subprocess.Popen[bytes]) -> ClusterError:
    """The error for a child without a result; it has closed its pipe, so it ends soon."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(REAP_S)
    how = "sent no result" if child.returncode is None else f"exited with code {child.returncode}"
    if child.returncode is not None and child.returncode < 0:
        how = f"was ended by signal {-child.returncode}"
    return ClusterError(
        f"The process that takes snapshots {how}.",
        "Try again. If it happens again, check whether this host is out of memory.",
    )


def main(messages: IO[bytes], arguments: list[str]) -> None:
    """Takes one snapshot and sends it, as the module's docstring describes."""
    address, timeout_s, deadline, watch_s, history, *options = arguments
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        try:
            times = (float(timeout_s), float(deadline), float(watch_s) if watch_s else None)
            _take(messages, address or None, times, int(history), options)
        except BrokenPipeError:
            raise
        except Exception as error:
            import traceback

            known = as_dstack_error(error)
            said = [type(known).__name__, known.message, known.remedy, traceback.format_exc()]
            send(messages, "error", json.dumps(said).encode())


def _take(
    messages: IO[bytes],
    address: str | None,
    times: tuple[float, float, float | None],
    history: int,
    options: Collection[str],
) -> None:
    timeout_s, deadline, watch_s = times
    with GcPause():
        from dstack import capture
        from dstack.snapshot_file import dumps

    gc.freeze()  # loaded modules stay: the garbage collector need not scan them again
    left_s = min(timeout_s, deadline - (watch_s or 0.0) - time.monotonic())
    if left_s <= 0:
        raise ClusterError("The start of dstack took longer than the timeout.", LONGER)
    given = {"watch_s": watch_s, "history": history}
    terms: dict[str, Any] = {**dict.fromkeys(options, True), **{name: value for name, value in given.items() if value}}
    taken = capture.snapshot(
        address,
        timeout_s=left_s,
        progress=lambda text: send(messages, "progress", text.encode("utf-8", "replace")),
        early=lambda one: send(messages, "early", dumps(one)),
        **terms,
    )
    send(messages, "snapshot", dumps(taken))

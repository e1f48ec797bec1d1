"""``dstack.guard``: takes a snapshot from outside when a piece of driver code does not return in time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, cast

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.api import DeadlockFound, resolved
from dstack.collecting.collector import Collector, Terms
from dstack.errors import DstackError, UsageError
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot
from dstack.probes.connection.own_cluster import own_worker
from dstack.processes.interruption import InterruptibleCode, is_interruptible
from dstack.report.text import report_text

F = TypeVar("F", bound=Callable[..., Any])
NOT_DEADLOCKED = "it is not part of a confirmed deadlock, nor blocked behind one"


@dataclass(frozen=True)
class Hang:
    """Passed to ``on_hang`` when guarded code did not return within ``after_s`` seconds.

    It has the ``snapshot``, its ``diagnosis`` and the printable ``report``. If the verdict is ``clear`` or ``blocked``,
    the code is slow or waits for something outside Ray. ``left_alone`` is the reason why the blocked call is not
    interrupted; it is None if the call will be interrupted, or without ``break_deadlock``.
    """

    after_s: float
    snapshot: Snapshot = field(repr=False)
    diagnosis: Diagnosis = field(repr=False)
    report: str = field(repr=False)
    left_alone: str | None = None


@dataclass(frozen=True)
class _Settings:
    timeout_s: float
    on_hang: Callable[[Hang], object]
    address: str | None
    break_deadlock: bool
    look_s: float


class guard:
    """Print a report of the cluster if the guarded code does not return within ``timeout_s`` seconds.

        with dstack.guard(60):
            ray.get(results)

    It is a context manager, also for ``async with``, and a decorator of functions and coroutine functions. The report
    goes to standard error, unless ``on_hang`` is given: it is called with a :class:`Hang`, in another thread.
    ``address`` is that of :func:`dstack.snapshot`, resolved after the timeout. ``look_s`` is the time limit of the
    snapshot. If the code returns while the snapshot is taken, it was slow, not stuck, and nothing is printed.

    With ``break_deadlock``, :class:`dstack.DeadlockFound` interrupts a call that is part of a confirmed deadlock, or
    blocked behind one. This works in the main thread, unless the program has its own SIGINT handler, and for awaits
    within ``async with``. In other threads Python cannot interrupt a blocked call: the report says so, and the call
    stays blocked.

    Raises :class:`dstack.UsageError` for a time limit that is not positive. If the snapshot fails, the reason is
    printed to standard error. A guard cannot work while C code holds the GIL; use ``dstack check`` from outside then.
    """

    def __init__(
        self,
        timeout_s: float,
        on_hang: Callable[[Hang], object] | None = None,
        *,
        address: str | None = "auto",
        break_deadlock: bool = False,
        look_s: float = 30.0,
    ) -> None:
        if not timeout_s > 0 or not look_s > 0:
            raise UsageError(
                "The timeout_s and look_s of a guard must be positive numbers of seconds.", "Give larger numbers."
            )
        self._settings = _Settings(timeout_s, on_hang or _print_report, address, break_deadlock, look_s)
        self._watch: _Watch | None = None

    def __enter__(self) -> guard:
        self._begin(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watch = self._end()
        watch.interruptible.end()
        watch.finish()
        if watch.is_interrupted:
            raise watch.found() from error

    async def __aenter__(self) -> guard:
        self._begin(asyncio.current_task())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watch = self._end()
        watch.is_over.set()
        if watch.is_interrupted and (uncancel := getattr(watch.task, "uncancel", None)):  # from Python 3.11 on
            uncancel()
        await asyncio.to_thread(watch.finish)
        if watch.is_interrupted:
            raise watch.found() from error

    def __call__(self, function: F) -> F:
        """Wraps a function; each call gets its own guard."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_coroutine(*args: Any, **kwargs: Any) -> Any:
                async with self._copy():
                    return await function(*args, **kwargs)

            return cast(F, guarded_coroutine)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self._copy():
                return function(*args, **kwargs)

        return cast(F, guarded)

    def _copy(self) -> guard:
        copy = guard(1.0)
        copy._settings = self._settings
        return copy

    def _begin(self, task: asyncio.Task[Any] | None) -> None:
        if self._watch is not None:
            raise UsageError("This guard is already in use.", "Create one guard for each piece of code.")
        self._watch = _Watch(self._settings, task)

    def _end(self) -> _Watch:
        watch, self._watch = self._watch, None
        assert watch is not None
        return watch


class _Watch:
    """A thread that watches one piece of code, which runs in the thread that made this object, or in ``task``."""

    def __init__(self, settings: _Settings, task: asyncio.Task[Any] | None) -> None:
        self.task = task
        self.interruptible = InterruptibleCode()
        self.is_over = threading.Event()
        self._settings = settings
        self._os_thread_id = threading.get_native_id()
        self._is_main_thread = threading.current_thread() is threading.main_thread()
        self._is_task_cancelled = False
        self._hang: Hang | None = None
        self._collector = Collector(lambda: resolved(settings.address), Terms(settings.look_s))
        self._thread = threading.Thread(target=self._run, name="dstack.guard", daemon=True)
        self._thread.start()
        if settings.break_deadlock and task is None:
            self.interruptible.begin()

    @property
    def is_interrupted(self) -> bool:
        """Whether the code was interrupted."""
        return self._is_task_cancelled or self.interruptible.is_interrupted

    def found(self) -> DeadlockFound:
        """The deadlock for which it was interrupted."""
        assert self._hang is not None
        return DeadlockFound(self._hang.report, self._hang.snapshot, self._hang.diagnosis)

    def finish(self) -> None:
        """Cancels a running snapshot once the code has returned, and waits for ``on_hang`` if that has begun."""
        self.is_over.set()
        self._collector.cancel()
        self._thread.join()

    def _run(self) -> None:
        if self.is_over.wait(self._settings.timeout_s):
            return
        try:
            hang = self._inspect()
        except DstackError as error:
            if not self.is_over.is_set():
                print(f"dstack could not take a snapshot of the hang. {error}", file=sys.stderr)
            return
        if self.is_over.is_set():
            return
        self._hang = hang
        try:
            self._settings.on_hang(hang)
        finally:
            if self._settings.break_deadlock and hang.left_alone is None:
                self._interrupt()

    def _inspect(self) -> Hang:
        with self._collector as collector:
            analysed = collector.take_analysed(AnalysedSnapshot.of)
        left_alone = self._why_left_alone(analysed) if self._settings.break_deadlock else None
        report = report_text(analysed)
        return Hang(self._settings.timeout_s, analysed.snapshot, analysed.diagnosis, report, left_alone)

    def _why_left_alone(self, analysed: AnalysedSnapshot) -> str | None:
        """The reason not to interrupt the code, or None to interrupt it."""
        diagnosis = analysed.diagnosis
        worker = own_worker(analysed.snapshot)
        deadlocks = [one for one in diagnosis.findings if one.kind == "deadlock" and one.confirmed]
        stuck = [diagnosis.vertices[key] for one in deadlocks for key in (*one.members, *one.blocked_behind)]
        own = [one for one in stuck if worker and one.worker_id == worker.worker_id]
        if self.task is not None:
            is_in_it = any(one.coroutine_id == hex(id(self.task)) for one in own)
            return None if is_in_it else NOT_DEADLOCKED
        if not self._is_main_thread:
            return "Python can interrupt blocked calls only in the main thread"
        if not any(one.os_thread_id == self._os_thread_id for one in own):
            return NOT_DEADLOCKED
        return None if is_interruptible() else "the program has its own SIGINT handler"

    def _interrupt(self) -> None:
        if self.task is None:
            self.interruptible.interrupt()
            return
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self.task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        assert self.task is not None
        if not self.is_over.is_set():
            self._is_task_cancelled = self.task.cancel()


def _print_report(hang: Hang) -> None:
    alone = f"The blocked call is not interrupted: {hang.left_alone}.\n" if hang.left_alone else ""
    print(
        f"dstack: the guarded code did not return within {hang.after_s:g} s.\n\n{hang.report}{alone}",
        file=sys.stderr,
        flush=True,
    )

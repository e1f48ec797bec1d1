"""``dstack.guard``: a look from outside, should a piece of driver code not come back in time."""

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

from dstack.analysis.diagnose import diagnose
from dstack.api import DeadlockFound, resolved
from dstack.collector import Collector
from dstack.diagnosis import Diagnosis
from dstack.errors import DstackError, UsageError
from dstack.interruption import Interruption, is_breakable
from dstack.model import Snapshot
from dstack.probes.own_cluster import own_worker
from dstack.report.text import report_text

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Hang:
    """What was seen of a cluster after a piece of code had not come back for ``after_s`` seconds.

    ``report`` is what is printed where nobody else takes it. The verdict may be ``clear`` or ``blocked``: then the code
    is slow, or waits for something outside Ray. ``left_alone`` says why the blocked call is not broken; it is None
    where it is about to be, and where nobody asked for it.
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
    """Looks at the cluster from outside when the code within does not come back in ``timeout_s`` seconds.

        with dstack.guard(60):
            ray.get(results)

    A context manager, for ``async with`` too, and a decorator of functions and of coroutine functions. The report goes
    to standard error; or ``on_hang`` is called with a :class:`Hang`, in a thread of its own. ``address`` is that of
    :func:`dstack.snapshot`, looked up when the time is over, and ``look_s`` is how long the look may take. Code that
    comes back while it is being looked at was slow, not stuck: nothing is told of it.

    With ``break_deadlock``, a call that is part of a confirmed deadlock, or behind one, ends with
    :class:`dstack.DeadlockFound`: in the main thread, unless the program handles SIGINT itself, and what is awaited
    within ``async with``. A program that ignores SIGINT does not handle it. In other threads Python cannot end a
    blocked call: it is left alone, and the report says so.

    Raises :class:`dstack.UsageError` for a number of seconds that is none. Where the look fails, standard error says
    why. While code keeps the GIL, nothing in its process can begin to look: see ``dstack check`` for that.
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
            raise UsageError("A guard needs a positive number of seconds, and so does its look.")
        self._settings = _Settings(timeout_s, on_hang or _print_report, address, break_deadlock, look_s)
        self._watch: _Watch | None = None

    def __enter__(self) -> guard:
        self._begin(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watch = self._end()
        watch.interruption.end()
        watch.finish()
        if watch.is_broken:
            raise watch.found() from error

    async def __aenter__(self) -> guard:
        self._begin(asyncio.current_task())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watch = self._end()
        watch.is_over.set()
        if watch.is_broken and (uncancel := getattr(watch.task, "uncancel", None)):  # from Python 3.11 on
            uncancel()
        await asyncio.to_thread(watch.finish)
        if watch.is_broken:
            raise watch.found() from error

    def __call__(self, function: F) -> F:
        """The function with a guard of its own around each call."""
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
            raise UsageError("This guard is around something already.", "Make one for each piece of code.")
        self._watch = _Watch(self._settings, task)

    def _end(self) -> _Watch:
        watch, self._watch = self._watch, None
        assert watch is not None
        return watch


class _Watch:
    """A thread that waits beside one piece of code, which runs in the thread that made this, or in ``task``."""

    def __init__(self, settings: _Settings, task: asyncio.Task[Any] | None) -> None:
        self.task = task
        self.interruption = Interruption()
        self.is_over = threading.Event()
        self._settings = settings
        self._os_thread_id = threading.get_native_id()
        self._is_main_thread = threading.current_thread() is threading.main_thread()
        self._is_cancelled = False
        self._hang: Hang | None = None
        self._collector: Collector | None = None
        self._thread = threading.Thread(target=self._run, name="dstack.guard", daemon=True)
        self._thread.start()
        if settings.break_deadlock and task is None:
            self.interruption.begin()

    @property
    def is_broken(self) -> bool:
        """Whether the code was broken off."""
        return self._is_cancelled or self.interruption.is_struck

    def found(self) -> DeadlockFound:
        """The deadlock for which it was."""
        assert self._hang is not None
        return DeadlockFound(self._hang.report, self._hang.snapshot, self._hang.diagnosis)

    def finish(self) -> None:
        """The code has come back: ends a look that is under way, and waits for ``on_hang`` if that has begun."""
        self.is_over.set()
        if self._collector is not None:
            self._collector.cancel()
        self._thread.join()

    def _run(self) -> None:
        if self.is_over.wait(self._settings.timeout_s):
            return
        try:
            hang = self._look()
        except DstackError as error:
            if not self.is_over.is_set():
                print(f"dstack could not look at what hangs. {error}", file=sys.stderr)
            return
        if self.is_over.is_set():
            return
        self._hang = hang
        try:
            self._settings.on_hang(hang)
        finally:
            if self._settings.break_deadlock and hang.left_alone is None:
                self._break_off()

    def _look(self) -> Hang:
        settings = self._settings
        collector = self._collector = Collector(resolved(settings.address), settings.look_s)
        if self.is_over.is_set():
            collector.cancel()
        taken = collector.take(_ignore, _ignore)
        diagnosis = diagnose(taken)
        left_alone = self._why_not(taken, diagnosis) if settings.break_deadlock else None
        return Hang(settings.timeout_s, taken, diagnosis, report_text(taken, diagnosis), left_alone)

    def _why_not(self, taken: Snapshot, diagnosis: Diagnosis) -> str | None:
        """Why the code is not to be broken off, None where it is."""
        worker = own_worker(taken)
        deadlocks = [one for one in diagnosis.findings if one.kind == "deadlock" and one.confirmed]
        stuck = [diagnosis.vertices[key] for one in deadlocks for key in (*one.members, *one.blocked_behind)]
        own = [one for one in stuck if worker and one.worker_id == worker.worker_id]
        if self.task is not None:
            is_in_it = any(one.coroutine_id == hex(id(self.task)) for one in own)
            return None if is_in_it else "it is not seen to wait for a confirmed deadlock"
        if not any(one.os_thread_id == self._os_thread_id for one in own):
            return "it is not seen to wait for a confirmed deadlock"
        if not self._is_main_thread:
            return "Python can end blocked calls of the main thread only"
        return None if is_breakable() else "this program handles SIGINT itself"

    def _break_off(self) -> None:
        if self.task is None:
            self.interruption.strike()
            return
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self.task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        assert self.task is not None
        if not self.is_over.is_set():
            self._is_cancelled = self.task.cancel()


def _print_report(hang: Hang) -> None:
    alone = f"The call is left alone: {hang.left_alone}.\n" if hang.left_alone else ""
    print(f"dstack: no return within {hang.after_s:g} s.\n\n{hang.report}{alone}", file=sys.stderr, flush=True)


def _ignore(_: object) -> None:
    pass

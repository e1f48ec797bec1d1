"""Prints reports and progress."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from dstack.errors import DstackError
from dstack.files.file_output import explained_stdout
from dstack.processes.signals import CleanUp
from dstack.words import encodable, visible

if TYPE_CHECKING:
    from rich.console import Console

    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.model.diagnosis import Diagnosis
    from dstack.model.snapshot import Snapshot

SHOWN_AFTER_S, TURN_S, ERASED_WITHIN_S = 0.3, 0.1, 0.3
"""When progress is shown, how often it is drawn, and how long its end is awaited."""
TURNING = "|/-\\"
ERASE_REST = "\x1b[K"
Form = Literal["report", "details", "json"]
"""The forms in which a snapshot can be printed."""


def print_snapshot(
    snapshot: Snapshot,
    form: Form = "report",
    job: str | None = None,
    *,
    within_s: float | None = None,
    nodes_settle_s: float = 60.0,
) -> Diagnosis:
    """Explains a snapshot and prints the report. The time limit is for the explanation, not for printing."""
    analysed = explained(snapshot, job, within_s=within_s, nodes_settle_s=nodes_settle_s)
    return print_analysed(analysed, form, within_s=within_s)


def explained(
    snapshot: Snapshot, job: str | None = None, *, within_s: float | None = None, nodes_settle_s: float = 60.0
) -> AnalysedSnapshot:
    """The snapshot with its diagnosis; ends the command if that takes longer."""
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot

    with show_progress("explaining"), _ended_after(within_s):
        return AnalysedSnapshot.of(snapshot, job=job, nodes_settle_s=nodes_settle_s)


def print_analysed(analysed: AnalysedSnapshot, form: Form = "report", *, within_s: float | None = None) -> Diagnosis:
    """Prints the report of a diagnosis; the time limit is for making it."""
    with show_progress("writing the report"), _ended_after(within_s):
        text = rendered(analysed, form)
    print_text(text)
    return analysed.diagnosis


def print_text(text: str | bytes) -> None:
    """Writes text or bytes to standard output; a reader that has closed it is no error."""
    try:
        with explained_stdout():
            if isinstance(text, bytes):
                sys.stdout.buffer.write(text)
            else:
                sys.stdout.write(encodable(text, stdout_encoding()))
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()


def stdout_encoding() -> str:
    """The encoding of standard output; UTF-8 where it has none."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def rendered(analysed: AnalysedSnapshot, form: Form) -> str | bytes:
    """The report as text, or as the bytes of a JSON document."""
    if form == "json":
        from dstack.report.check_json import check_json

        return check_json(analysed)
    from dstack.report.text import print_report

    return console_text(lambda console: print_report(console, analysed, details=form == "details"))


def console_text(show: Callable[[Console], None]) -> str:
    """What a function prints on a console, with the colours and the width of standard output; writes nothing there."""
    from rich.console import Console

    printed = _LikeStdout()
    with show_progress("writing"):
        show(Console(file=printed, highlight=False))
    return printed.getvalue()


class _LikeStdout(io.StringIO):
    @property
    def encoding(self) -> str:  # type: ignore[override]  # typed as writeable
        """That of standard output, by which a console chooses what it draws with."""
        return stdout_encoding()

    def isatty(self) -> bool:
        """Whether standard output is a terminal."""
        return sys.stdout is not None and sys.stdout.isatty()


@contextmanager
def _ended_after(seconds: float | None) -> Iterator[None]:
    """Ends the command with an error if the block takes longer."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, _time_out, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _time_out(seconds: float) -> NoReturn:
    error = DstackError(
        f"The analysis of the snapshot did not finish within {seconds:g} s.",
        "Analyse it without a time limit: dstack snapshot -o FILE, then dstack show FILE.",
    )
    if Spinner.shown is not None:
        Spinner.shown.end()
    with suppress(OSError):
        click.echo(f"Error: {error.message}\n{error.remedy}", err=True)
    end_at_once(error.exit_code)


def discard_unprintable_output() -> None:
    """Discards buffered output that cannot be written, so that Python does not report it again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Discards further output, so that the exit code stays right if the reader closes the pipe, as ``head`` does."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def end_at_once(code: int) -> NoReturn:
    """Ends this process without waiting for threads that are blocked in calls."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


@contextmanager
def show_progress(step: str = "connecting") -> Iterator[Callable[[str], None]]:
    """Shows the current step on standard error if that is a terminal; never waits for a terminal that does not read.

    The line appears after :data:`SHOWN_AFTER_S`, and is erased at the end. Within another one, it is a step of that.
    """
    with CleanUp():
        if Spinner.shown is None and sys.stderr is not None and sys.stderr.isatty():
            with Spinner(step) as spinner:
                yield spinner.show
            return
        show: Callable[[str], None] = Spinner.shown.show if Spinner.shown else lambda _: None
        show(step)
        yield show


class Spinner:
    """A line on a terminal that shows a step, by a thread of its own; at most one at a time, which is ``shown``."""

    shown: Spinner | None = None

    def __init__(self, step: str) -> None:
        self._step = step
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dstack-progress", daemon=True)

    def __enter__(self) -> Spinner:
        Spinner.shown = self
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        Spinner.shown = None
        self.end()

    def end(self) -> None:
        """Erase the line."""
        self._ended.set()
        self._thread.join(ERASED_WITHIN_S)

    def show(self, step: str) -> None:
        """Show another step."""
        self._step = step

    def _run(self) -> None:
        is_drawn = False
        wait_s = SHOWN_AFTER_S
        while not self._ended.wait(wait_s):
            is_drawn, wait_s = True, TURN_S
            at = int(time.monotonic() / TURN_S)
            _write_progress(f"{TURNING[at % len(TURNING)]} {visible(self._step)}")
        if is_drawn:
            _write_progress("")


def _write_progress(line: str) -> None:
    """Replaces the line on the terminal, unless that accepts no output; the line is no longer than the terminal."""
    with suppress(OSError, ValueError):
        if select.select([], [sys.stderr], [], 0)[1]:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            text = f"\r{encodable(line[: columns - 1], sys.stderr.encoding)}{ERASE_REST}"
            os.write(sys.stderr.fileno(), text.encode(sys.stderr.encoding, "replace"))

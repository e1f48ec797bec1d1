"""Prints reports and progress."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from dstack.errors import DstackError
from dstack.files.file_output import explained_stdout
from dstack.processes.signals import CleanUp
from dstack.words import encodable

if TYPE_CHECKING:
    from rich.console import Console

    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.model.diagnosis import Diagnosis
    from dstack.model.snapshot import Snapshot

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

    with _ended_after(within_s):
        return AnalysedSnapshot.of(snapshot, job=job, nodes_settle_s=nodes_settle_s)


def print_analysed(analysed: AnalysedSnapshot, form: Form = "report", *, within_s: float | None = None) -> Diagnosis:
    """Prints the report of a diagnosis; the time limit is for making it."""
    with _ended_after(within_s):
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
def show_progress() -> Iterator[Callable[[str], None]]:
    """Shows the current step on standard error if that is a terminal; never waits for a terminal that does not read."""
    with CleanUp():
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        from dstack.report.rich_text import SafeText

        spinner = Spinner("dots", "connecting")
        terminal = Console(stderr=True)
        with Live(spinner, console=terminal, transient=True, redirect_stdout=False, redirect_stderr=False):
            yield lambda text: spinner.update(text=SafeText(text))

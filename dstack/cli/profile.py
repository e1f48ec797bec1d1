"""The command ``profile``: where the wall-clock time of a whole job goes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from dstack.cli.inputs import address_option, force_option, job_option
from dstack.cli.output import console_text, print_text
from dstack.cli.record import note_saved, output_format, recorded, save
from dstack.errors import UsageError, require_linux
from dstack.words import visible

if TYPE_CHECKING:
    from dstack.collecting.recorder import Recorder
    from dstack.model.profile import Profile

DEFAULT_HZ = 5.0


@click.command(epilog="dstack profile -- python train.py  runs a program, and profiles the cluster that it uses.")
@address_option
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long to sample. [default: until Ctrl-C]",
)
@click.option(
    "--rate",
    "rate_hz",
    type=click.FloatRange(min=0.1, max=50),
    default=DEFAULT_HZ,
    show_default=True,
    metavar="HZ",
    help="Samples per second.",
)
@job_option
@click.option("--of", metavar="NAME", default="", help="Follow a class, an actor or a rank instead of the drivers.")
@click.option("--all", "everything", is_flag=True, help="Follow all threads and coroutines of the application.")
@click.option("--last", is_flag=True, help="A wait for several things belongs to the one that ended last.")
@force_option
@click.option("-o", "--output", metavar="FILE", help="Its suffix is the format. [default: the heaviest chains as text]")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def profile(
    address: str | None,
    duration_s: float | None,
    rate_hz: float,
    job: str | None,
    of: str,
    everything: bool,
    last: bool,
    force: bool,
    output: str | None,
    program: tuple[str, ...],
) -> None:
    """Show where the wall-clock time of a whole job goes.

    Follows the main thread of each driver through its waits, across processes and nodes, to what runs, queues or is
    missing at their ends. Ctrl-C ends it, and keeps what was sampled.
    """
    from dstack.collecting.recorder import FOR_EVER_S, new_profile
    from dstack.model.profile import ProfileOptions

    if of and everything:
        raise UsageError("--of and --all exclude each other.", "Give one of them.")
    require_linux()
    suffix = output_format(output, force=force) if output else ""
    options = ProfileOptions(of=of, everything=everything, last=last)
    record = partial(new_profile, address, duration_s or FOR_EVER_S, rate_hz, options, job)
    found, code = _profile_of(program, record) if program else _profile(record())
    if output:
        save(found, output, suffix, force=force)
        _note(found, output, suffix)
    else:
        from dstack.report.profile_text import print_profile

        print_text(console_text(lambda console: print_profile(console, found)))
    if code:
        sys.exit(code)


def _profile(recorder: Recorder[Profile], ends: Callable[[], int] = lambda: 0) -> tuple[Profile, int]:
    """The profile, and the exit code: that of the program that ``ends``, or of a signal other than Ctrl-C."""
    with recorded(recorder) as (found, received):
        code = ends()
    return found, code or (128 + received[0] if received and received[0] != signal.SIGINT else 0)


def _profile_of(program: Sequence[str], record: Callable[..., Recorder[Profile]]) -> tuple[Profile, int]:
    """Run a program to its end, and profile it meanwhile; Ctrl-C ends both."""
    try:
        process = subprocess.Popen(program)
    except OSError as error:
        raise UsageError(f"{program[0]} cannot be run: {error.strerror}.", "Check the command after --.") from error
    recorder = record(program=process.pid)

    def stop_with_program() -> None:
        process.wait()
        if recorder.has_begun:
            recorder.stop()  # else the recorder itself finds that there is no such process

    threading.Thread(target=stop_with_program, name="dstack-program", daemon=True).start()
    return _profile(recorder, process.wait)


def _note(found: Profile, output: str, suffix: str) -> None:
    """Say what was sampled, what was not, and what to do next."""
    from dstack.report.profile_text import profile_shortfalls, profile_summary

    for line in (profile_summary(found), *profile_shortfalls(found)):
        click.echo(visible(line), err=True)
    note_saved(output, suffix)

"""The command ``record``: samples the stacks of a running cluster for some time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dstack.cli.inputs import address_option, force_option, job_option, seconds_option
from dstack.cli.output import show_progress
from dstack.errors import ClusterError
from dstack.files.file_output import STDOUT, require_new, write_file
from dstack.processes.signals import CleanUp, Ended, ending_signals
from dstack.words import visible

if TYPE_CHECKING:
    from dstack.collecting.recorder import Recorder
    from dstack.model.profile import Sampled
    from dstack.model.recording import Recording

Result = TypeVar("Result")

DEFAULT_S = 10.0
DEFAULT_HZ = 20.0
FEW = 0.01
"""With a smaller share of samples that show code of the application, its waits are more than what it runs."""
NOTHING_RAN = "Nothing of the application ran in these {:.1f} s, so nothing was saved."
WAITS_NOW = "Its threads and coroutines are now:"
NEXT_FOR_WAITS = "See where its time goes with: dstack profile{} -o profile.html"
NEXT_STEPS = {
    ".speedscope.json": "Open it at https://www.speedscope.app, which reads it in the browser.",
    ".html": "Open it in a browser.",
    ".json": "Show it with: dstack tui {}",
    ".json.gz": "Show it with: dstack tui {}",
}


@click.command()
@address_option
@seconds_option("--duration", "duration_s", default=DEFAULT_S, help="How long to record. Ctrl-C ends it earlier.")
@click.option(
    "--rate",
    "rate_hz",
    type=click.FloatRange(min=1, max=1000),
    default=DEFAULT_HZ,
    show_default=True,
    metavar="HZ",
    help="Samples per second of each process.",
)
@click.option("--gil", is_flag=True, help="Only threads that hold the global interpreter lock (py-spy).")
@click.option("--idle", is_flag=True, help="Include threads that do not run.")
@click.option("--native", is_flag=True, help="Include C and C++ frames (py-spy). Pauses processes for each sample.")
@job_option
@force_option
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Its suffix is the format: .html, .speedscope.json, .folded, .txt, .json or .json.gz; - for folded stacks.",
)
def record(
    address: str | None,
    duration_s: float,
    rate_hz: float,
    gil: bool,
    idle: bool,
    native: bool,
    job: str | None,
    force: bool,
    output: str,
) -> None:
    """Record which code runs on all nodes, as a flame graph.

    Samples the stacks of all workers, merged by node, class and rank. Ctrl-C ends it, and keeps what was recorded.
    If nothing runs, it saves nothing, and says what waits.
    """
    suffix = output_format(output, force=force)
    from dstack.collecting.recorder import new_recording
    from dstack.model.recording import RecordingOptions

    options = RecordingOptions(idle=idle, gil=gil, native=native)
    with recorded(new_recording(address, duration_s, rate_hz, options, job)) as (recording, received):
        pass  # signals do what they did again
    if received and not recording.coverage.processes:
        raise Ended(received[0])
    if not recording.coverage.processes:
        raise _nothing(recording)
    from dstack.analysis.stacks.weighted_stacks import app_samples

    samples = app_samples(recording)
    if samples:
        save(recording, output, suffix, force=force)
    _note(recording, output, suffix, is_saved=samples > 0)
    if samples < FEW * recording.coverage.taken and not received:
        _say_what_waits(address, recording.options.job_id)
    if received and received[0] != signal.SIGINT:
        sys.exit(128 + received[0])


def output_format(output: str, *, force: bool) -> str:
    """The format of a file that can be written, before anything is sampled. Raises :class:`UsageError`."""
    from dstack.report.sampled_files import format_of

    require_new(output, force=force)
    return format_of(output)


def save(sampled: Sampled, output: str, suffix: str, *, force: bool) -> None:
    """Write a recording or a profile, whole even if a signal arrives."""
    from dstack.report.sampled_files import sampled_file

    with show_progress("writing the file"):
        data = sampled_file(sampled, suffix)
    with CleanUp():
        write_file(output, data, force=force)


@contextmanager
def recorded(recorder: Recorder[Result]) -> Iterator[tuple[Result, list[int]]]:
    """What was recorded, and the signals that ended it; until the context ends, signals do nothing else."""
    with show_progress() as progress, _stopped_by_signals(recorder) as received:
        try:
            result = recorder.record(progress)
        except ClusterError:
            if received:
                raise Ended(received[0]) from None
            raise
        yield result, received


@contextmanager
def _stopped_by_signals(recorder: Recorder[Any]) -> Iterator[list[int]]:
    """Signals end the recording, and nothing else; yields their numbers."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        recorder.stop()

    before = {number: signal.signal(number, stop) for number in ending_signals()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(recording: Recording) -> ClusterError:
    """The error for a recording of no process."""
    for failure in recording.failures:
        return ClusterError(f"No process could be recorded: {failure.reason}.", failure.remedy)
    what = "No process was recorded: the cluster has no workers or drivers, or none of the job."
    return ClusterError(what, "Start the program first, or leave out --job.")


def _note(recording: Recording, output: str, suffix: str, *, is_saved: bool) -> None:
    """Say what was recorded, what was not, and what to do next."""
    from dstack.report.summaries import recording_summary, shortfalls

    for line in (recording_summary(recording), *shortfalls(recording)):
        click.echo(visible(line), err=True)
    if is_saved:
        note_saved(output, suffix)
    else:
        click.echo(NOTHING_RAN.format(recording.duration_s), err=True)


def note_saved(output: str, suffix: str) -> None:
    """Say how to look at a file that was written."""
    if output != STDOUT:
        hint = NEXT_STEPS.get(suffix, "Draw it with flamegraph.pl or inferno-flamegraph.").format(visible(output))
        click.echo(f"Saved. {hint}", err=True)


def _say_what_waits(address: str | None, job_id: str | None) -> None:
    """Say what the application does instead of running, from a snapshot, and which command profiles its waits."""
    from dstack.cli.inputs import take_snapshot
    from dstack.collecting.collector import Terms

    with suppress(ClusterError):  # the cluster may have ended
        snapshot = take_snapshot(address, Terms())
        from dstack.analysis.views.all_stacks import ChosenStacks
        from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
        from dstack.report.stacks_text import group_titles

        titles = group_titles(ChosenStacks(AnalysedSnapshot.of(snapshot).stacks, job=job_id))
        for line in (WAITS_NOW, *titles) if titles else ():
            click.echo(visible(line), err=True)
    click.echo(NEXT_FOR_WAITS.format(f" --address {visible(address)}" if address else ""), err=True)

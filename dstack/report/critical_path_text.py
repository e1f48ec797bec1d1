"""The critical path of a run as text, and what changes would do to it; a module of its own as other reports use it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from dstack.analysis.history.critical_path import CriticalPath, Kind
from dstack.analysis.history.simulation import ActorCount, Change, Faster, ResourceTotal
from dstack.analysis.history.what_if import Prediction, WhatIf
from dstack.model.diagnosis import Diagnosis
from dstack.report.rich_text import SafeText
from dstack.words import listed, plural, short_duration

if TYPE_CHECKING:
    from rich.table import Table

    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.timeline import Timeline

COLUMNS = ("function", "share", "time", "what")
WHAT: dict[Kind, str] = {
    "runs": "runs",
    "queued": "runs; calls queue for its actor",
    "resources": "runs; tasks need its resources",
    "arguments": "waits for arguments",
    "starts": "starts",
}
PREDICTED = "With a change, by a simulation of this run"
LEAST_PART = 0.02
MOST_ROWS = 6
QUICK_ATTEMPTS = 5_000
LONG = 1.3
"""An iteration is mentioned if it took so many times the median."""


def print_critical_path(
    console: Console, path: CriticalPath, what_if: WhatIf, asked: Sequence[Sequence[Change]]
) -> None:
    """Print the largest parts of the path, and predictions: of the changes that were asked for, else proposals."""
    console.print(SafeText(f"{path_title(path)}:"), soft_wrap=True)
    console.print(_parts(path))
    if longest := longest_in_words(path):
        console.print(SafeText(longest), soft_wrap=True)
    for line in predictions_in_words(what_if, asked):
        console.print(SafeText(line), soft_wrap=True)


def path_title(path: CriticalPath) -> str:
    """``Critical path of an iteration of driver train.py, 2.6 s in the median of 7``."""
    if path.iterations is None:
        return f"Critical path of {path.whose}, {short_duration(path.step_s)}"
    count = len(path.iterations.durations_s)
    return f"Critical path of an iteration of {path.whose}, {short_duration(path.step_s)} in the median of {count:,}"


def path_rows(path: CriticalPath) -> list[tuple[str, ...]]:
    """The cells of the largest shares, one for each of :data:`COLUMNS`."""
    return [
        (share.function, f"{share.part:.0%}", short_duration(share.seconds), WHAT[share.kind])
        for share in path.shares[:MOST_ROWS]
        if share.part >= LEAST_PART
    ]


def _parts(path: CriticalPath) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in COLUMNS:
        is_text = title in ("function", "what")
        table.add_column(Text(title, "dim"), justify="left" if is_text else "right", no_wrap=True)
    for row in path_rows(path):
        table.add_row(*map(SafeText, row))
    return table


def longest_in_words(path: CriticalPath) -> str:
    """``The longest one took 3.5 s, of which 3.1 s are Reward.score.``; empty if none was much longer than others."""
    if path.iterations is None:
        return ""
    longest = max(path.by_iteration, key=lambda one: one.step_s, default=None)
    if longest is None or longest.step_s < LONG * path.step_s:
        return ""
    most = longest.shares[0]
    took = f"The longest one took {short_duration(longest.step_s)}"
    return f"{took}, of which {short_duration(most.seconds)} are {most.function}."


def path_in_words(path: CriticalPath) -> str:
    """The title with the largest shares, in one line."""
    parts = [f"{function} {share} ({what})" for function, share, _, what in path_rows(path)[:3]]
    return f"{path_title(path)}: {listed(parts)}."


def shown_path(diagnosis: Diagnosis, timeline: Timeline | None) -> CriticalPath | None:
    """The critical path; None of a run that is stuck, or likely is: being faster would not help it."""
    return None if timeline is None or diagnosis.verdict in ("deadlock", "hang", "stalled") else timeline.critical_path


def quick_path(analysed: AnalysedSnapshot) -> CriticalPath | None:
    """The critical path of what runs, for a first screen; None of a long history, which takes long to link."""
    history, diagnosis = analysed.snapshot.history, analysed.diagnosis
    is_quick = history is not None and len(history.attempts) <= QUICK_ATTEMPTS and diagnosis.verdict == "running"
    return analysed.timeline.critical_path if is_quick and analysed.timeline else None


def most_of_path_in_words(diagnosis: Diagnosis, path: CriticalPath | None) -> str:
    """``69 % Reward.score, of the critical path of an iteration, 2.7 s``; empty unless something runs."""
    if path is None or diagnosis.verdict != "running":
        return ""
    parts: dict[str, float] = defaultdict(float)
    for share in path.shares:
        parts[share.function] += share.part
    whose = "of an iteration, " if path.iterations else "of "
    function = max(parts, key=lambda name: parts[name])
    return f"{100 * parts[function]:.0f} % {function}, of the critical path {whose}{short_duration(path.step_s)}"


def best_change_in_words(diagnosis: Diagnosis, what_if: WhatIf | None) -> str:
    """``2 actors of Reward instead of 1: 1.7 s instead of 2.7 s, by a simulation of this run.``; or empty.

    A change of actors or resources comes before one of code, as it is easier to make.
    """
    if what_if is None or diagnosis.verdict != "running":
        return ""
    proposals = sorted(what_if.proposals, key=lambda one: any(isinstance(change, Faster) for change in one.changes))
    lines = [_prediction_in_words(one.changes, one, what_if) for one in proposals[:1]]
    return f"{lines[0]}, by a simulation of this run." if lines else ""


def predictions_in_words(what_if: WhatIf, asked: Sequence[Sequence[Change]] = ()) -> Iterator[str]:
    """A heading, and lines as ``Reward.score twice as fast: 1.5 s instead of 2.6 s``; or why there are none."""
    if not what_if.is_trusted:
        if asked:
            yield _not_trusted(what_if)
        return
    proposals = [] if asked else what_if.proposals
    made = [(changes, what_if.predict(changes)) for changes in asked] or [(one.changes, one) for one in proposals]
    if made:
        yield f"{PREDICTED}:"
    for changes, prediction in made:
        yield f"  {_prediction_in_words(changes, prediction, what_if)}"


def _prediction_in_words(changes: Sequence[Change], prediction: Prediction | None, what_if: WhatIf) -> str:
    words = listed([change_in_words(one, what_if) for one in changes])
    return f"{words}: {_outcome(prediction, what_if)}"


def _outcome(prediction: Prediction | None, what_if: WhatIf) -> str:
    if prediction is None:
        return "not known, as the simulation does not come to its end"
    return f"{short_duration(prediction.seconds)} instead of {short_duration(what_if.recorded_s)}"


def _not_trusted(what_if: WhatIf) -> str:
    if what_if.simulated_s is None:
        return "Nothing is predicted: the simulation of the run does not come to its end."
    times = f"{short_duration(what_if.simulated_s)}, and the run took {short_duration(what_if.recorded_s)}"
    return f"Nothing is predicted: without a change, the simulation takes {times}."


def change_in_words(change: Change, what_if: WhatIf) -> str:
    """``Reward.score twice as fast``, ``2 actors of Reward instead of 1``, ``16 CPU instead of 8``."""
    if isinstance(change, Faster):
        return f"{change.function} {'twice' if change.times == 2 else f'{change.times:g} times'} as fast"
    if isinstance(change, ActorCount):
        before = what_if.model.actors_of(change.class_name)
        return f"{plural(change.count, 'actor')} of {change.class_name} instead of {before}"
    if isinstance(change, ResourceTotal):
        return f"{change.total:g} {change.resource} instead of {what_if.model.resources.total(change.resource):g}"
    return f"{change.function} not asking for {change.resource}"

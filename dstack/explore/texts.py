"""What an exploration found, in words."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dstack.explore.program_runs import Result, Run
from dstack.explore.search import Exploration
from dstack.explore.settings import Setting
from dstack.report.summaries import headline
from dstack.words import duration, listed, plural, visible

RESULTS: Mapping[Result, str] = {
    "hang": "hung",
    "passed": "passed",
    "failed": "failed",
    "infeasible": "asked for more than there was",
    "undecided": "had not ended",
    "cancelled": "cancelled",
}


def run_line(run: Run) -> str:
    """One run: its setting, what was killed, its result, and what follows from that."""
    more = {
        "hang": f": {headline(run.analysed.diagnosis)}" if run.analysed else "",
        "failed": f" with exit code {run.exit_code}: {run.last_lines[-1] if run.last_lines else 'no output'}",
        "undecided": f": {headline(run.analysed.diagnosis)}" if run.analysed else ": it had no cluster of its own",
    }
    killed = f" (killed {listed(run.killed)})" if run.killed else ""
    return visible(
        f"{RESULTS[run.result]} after {duration(run.seconds)}, {run.setting}{killed}{more.get(run.result, '')}"
    )


def counted(runs: Sequence[Run]) -> str:
    """``18 passed, 1 failed and 1 had not ended``."""
    counts = Counter(run.result for run in runs)
    return listed([f"{counts[result]:,} {text}" for result, text in RESULTS.items() if counts[result]])


def hang_lines(exploration: Exploration, repeating: Sequence[str]) -> Iterator[str]:
    """Under which setting the program hangs, how often, and the command that repeats it."""
    assert exploration.found is not None
    setting, shrunk = exploration.found.setting, exploration.shrunk
    if not setting.parts:
        yield "It hangs without any change, in the first run."
        return
    how = ", as predicted from the plain run" if setting in exploration.hinted else ""
    found = f"Found in run {exploration.number}{how}: {setting}"
    if shrunk is None:
        yield f"It hung {setting.in_words()}. {found}"
    else:
        alone = " alone" if len(shrunk.setting.parts) == 1 else ""
        yield f"It hangs {shrunk.setting.in_words()}{alone}: {shrunk.hung} of {plural(shrunk.runs, 'run')}."
        if shrunk.setting != setting or how:
            yield found
    yield f"Repeat it with: {repeat_command(shrunk.setting if shrunk else setting, repeating)}"


def repeat_command(setting: Setting, program: Sequence[str]) -> str:
    """The command that runs a program under one setting."""
    return visible(f"dstack explore --repeat '{setting}' -- {shlex.join(program)}")


def none_lines(exploration: Exploration) -> Iterator[str]:
    """That no run hung, and what the others did that is worth a look."""
    runs = exploration.runs
    yield f"None of {plural(len(runs), 'run')} hung: {counted(runs)}."
    if not exploration.has_cluster:
        yield "No cluster was seen in the plain run: dstack inspects only clusters that the program itself starts."
    for result in ("failed", "undecided"):
        if chosen := [run for run in runs if run.result == result]:
            yield f"{_LEADS[result]} {run_line(chosen[0])}"


_LEADS = {
    "failed": "A run failed, which the plain one did not:",
    "undecided": "A run was undecided, use a longer --limit:",
}

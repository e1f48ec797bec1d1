"""How many links between the steps of known pipelines are found, and how many of these are wrong.

Each program runs by itself on one cluster. Its calls are named by step and item; dstack gets only the steps' names.

    python -m benchmarks.bench_chains [ITEMS]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from benchmarks.harness import Results, arguments
from dstack.analysis.history.chains import find_links
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.analysed_snapshot import EMPTY
from dstack.files.snapshot_file import load
from dstack.model.snapshot import TaskAttempt
from tests.clusters.ray_clusters import Example, ray_cluster
from tests.processes import wait_until

WORKLOAD = Path(__file__).with_name("workloads") / "known_pipelines.py"
KINDS = (
    *("tasks", "tasks-equal", "tasks-none", "threads", "threads-equal", "threads-none", "large", "noise", "joins"),
    *("actors", "pools", "coroutines", "mixed", "shared", "borrowed", "fetched"),
)
MAKERS = {"b": ("a",), "c": ("b",), "join": ("b", "other")}
"""By step: the steps that make its arguments."""
REPORTED_S = 60.0


@dataclass(frozen=True)
class Score:
    """How many links there are, and how many were found, rightly and wrongly."""

    existing: int
    right: int
    wrong: int


def newest_job(program: Example, file: Path) -> tuple[HistoryIndex, list[TaskAttempt]]:
    """The history of the program, once all of its calls are reported, without the items in names; and with them."""

    def reported() -> tuple[HistoryIndex, list[TaskAttempt]] | None:
        command = [sys.executable, "-m", "dstack", "snapshot", "--address", program.address, "-o", str(file), "--force"]
        subprocess.run([*command, "--history"], env=program.environment, capture_output=True, check=True)
        snapshot = load(file)
        assert snapshot.history is not None
        job = max(one.job_id for one in snapshot.history.attempts)
        own = [one for one in snapshot.history.attempts if one.job_id == job]
        if not all({"RUNNING", "FINISHED"} <= one.states.keys() for one in own if "/" in one.name):
            return None
        steps = tuple(replace(one, name=one.name.partition("/")[0]) for one in own)
        return HistoryIndex(SampleIndex(snapshot, EMPTY), replace(snapshot.history, attempts=steps)), own

    return wait_until(reported, deadline_s=REPORTED_S, what=lambda: "all calls reported")


def score(history: HistoryIndex, attempts: list[TaskAttempt]) -> Score:
    """The score of the links by time."""
    names = {one.task_id: one.name.partition("/")[::2] for one in attempts}
    steps = {step for step, _ in names.values()}
    users = sum(bool(steps & set(MAKERS.get(step, ()))) for step, _ in names.values())
    links = [link for link in find_links(history, history.attempts).links if link.basis == "time"]
    pairs = [(names[link.maker.task.task_id], names[link.user.task.task_id]) for link in links]
    right = sum(maker[0] in MAKERS.get(user[0], ()) and maker[1] == user[1] for maker, user in pairs)
    return Score(users, right, len(pairs) - right)


def main() -> None:
    (items,) = arguments(60)
    results = Results(f"Links between the steps of {items} items", ("", "links", "found", "wrong"))
    scores: list[Score] = []
    with ray_cluster(1, num_cpus=4) as cluster, tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            with cluster.run_example(WORKLOAD, [kind, str(items)]) as program:
                scores.append(score(*newest_job(program, Path(folder, "snapshot.json.gz"))))
            one = scores[-1]
            results.add(kind, f"{one.existing:,}", f"{one.right:,}", f"{one.wrong:,}")
    existing, right, wrong = (sum(getattr(one, name) for one in scores) for name in ("existing", "right", "wrong"))
    results.add("all", f"{existing:,}", f"{right:,}", f"{wrong:,}")
    results.show()


if __name__ == "__main__":
    main()

"""What the history of tasks costs when the GCS keeps as many attempts as it can, beside `ray timeline`.

All ways run in turns on one cluster: a snapshot that is saved without and with the history, and the traces of dstack
and of Ray. `ray timeline` connects to the cluster as a driver, and its trace has no waits, callers or queues.

    python -m benchmarks.bench_task_history [ROUNDS] [CALLS]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.harness import Action, Results, arguments, cost_of, in_turns, times_s
from tests.clusters.ray_clusters import RayCluster, ray_cluster

WORKLOAD = Path(__file__).with_name("workloads") / "many_tasks.py"
START_S = 600.0
WITHOUT = "dstack snapshot -o FILE --no-history"


def ways(cluster: RayCluster, folder: Path) -> dict[str, Action]:
    """Each way by its name; each writes its file anew."""

    def dstack(*words: str) -> None:
        run(cluster, "dstack", *words, "--address", cluster.address, "--force")

    file, trace = str(folder / "snapshot.json.gz"), str(folder / "trace.json.gz")
    return {
        WITHOUT: partial(dstack, "snapshot", "-o", file, "--no-history"),
        "dstack snapshot -o FILE (20,000 attempts)": partial(dstack, "snapshot", "-o", file),
        "dstack snapshot -o FILE --history": partial(dstack, "snapshot", "-o", file, "--history"),
        "dstack timeline -o FILE": partial(dstack, "timeline", "-o", trace),
        "ray timeline": partial(run, cluster, "ray.scripts.scripts", "timeline", "--address", cluster.address),
    }


def run(cluster: RayCluster, module: str, *words: str) -> None:
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


def gcs_of(cluster: RayCluster) -> psutil.Process:
    """The process of the GCS."""
    port = int(cluster.address.rpartition(":")[2])
    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    (pid,) = {one.pid for one in listening if one.laddr and one.laddr[1] == port and one.pid}
    return psutil.Process(pid)


def measured(cluster: RayCluster, rounds: int, calls: int) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        gcs, spent_s = gcs_of(cluster), dict[str, list[float]]()

        def counted(name: str, action: Action) -> None:
            before = sum(gcs.cpu_times()[:2])
            action()
            spent_s.setdefault(name, []).append(sum(gcs.cpu_times()[:2]) - before)

        actions: dict[str, Action] = {
            name: partial(counted, name, one) for name, one in ways(cluster, Path(folder)).items()
        }
        costs = in_turns(actions, rounds, cost_of)
    base = median(cost.wall_s for cost in costs[WITHOUT])
    title = f"The history of {calls:,} calls, n = {rounds}"
    results = Results(title, ("", "seconds, median", "min-max", "ratio", "CPU s", "CPU s of the GCS"))
    for name, several in costs.items():
        wall = [cost.wall_s for cost in several]
        results.add(
            name,
            *times_s(wall),
            f"{median(wall) / base:.1f}",
            f"{median(cost.cpu_s for cost in several):.2f}",
            f"{median(spent_s[name]):.2f}",
        )
    return results


def main() -> None:
    rounds, calls = arguments(5, 105_000)
    with (
        ray_cluster(1, num_cpus=2, auth="off") as cluster,
        cluster.run_example(WORKLOAD, [str(calls)], deadline_s=START_S),
    ):
        measured(cluster, rounds, calls).show()


if __name__ == "__main__":
    main()

"""What a change costs: the benchmarks that matter, of two commits in turns on the same blocked workers and driver.

The base is checked out beside this tree. A process of each commit keeps a session and takes samples and snapshots when
it is told to; what a session's first snapshot costs is measured with new ones. The driver waits for its actors, as in
a hang. Wall times on a shared machine vary by
half, CPU times by a tenth, so compare the ratios, which are medians over the rounds.

    make regress BASE=COMMIT
    python -m benchmarks.regress COMMIT [ROUNDS] [WORKERS]
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import psutil
import ray

from benchmarks.bench_snapshot import Ring, ring_of
from benchmarks.harness import Cost, Results, arguments, cost_of, py_spy, spread, target_process

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, WORKERS = 5, 25
CHECK, NEW, SNAPSHOT = "`dstack check`, cold", "a session's first snapshot", "warm snapshot"
SAMPLE, AFTER_RUN, RECORD = "warm sample", "sample after the workers ran", "1 s of a recording"
POLL_S = 0.05
LOOP = "`ray stack`'s loop"

MEASURED = """
import json, sys, time
from dstack.collecting import capture
from dstack.collecting.collector import Terms
from dstack.observed.reading_options import ReadingOptions
from dstack.probes.cluster import ClusterProbe
from dstack.probes.node_access.node_readers import ProbeSession
from dstack.probes.node_access.targets import targets

address = sys.argv[1]
RECORDING = {"rate_hz": 20.0, "seconds": 1.0, "idle": True, "gil": False, "native": False, "is_last": False}
with ProbeSession() as session:
    def sample():
        ClusterProbe(session, address, ReadingOptions(), lambda _: None).take_first_sample(20.0)
    def snapshot():
        global taken
        taken = capture.take(session, address, Terms())
    def record():
        session.local.record(targets(taken.workers), RECORDING)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        globals()[line.strip()]()
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
"""
"""Measures what it is told to, with the code of one commit; prints wall time and CPU time."""


def told(process: subprocess.Popen[str], what: str) -> str:
    """The line that a process prints when it has done what it is told to."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{what} could not be measured; the reason is above.")
    return line


class Hang:
    """A driver in a process of its own, which waits for actors that wait for each other."""

    def __init__(self, process: subprocess.Popen[str], orders: Path) -> None:
        assert process.stdout is not None
        self.address, self.pids = json.loads(process.stdout.readline())
        self._orders = orders

    def told(self, what: str) -> None:
        """Have it do this, and wait until that is done."""
        order = self._orders / what
        order.touch()
        while order.exists():
            time.sleep(POLL_S)

    def ray_stack(self) -> None:
        """Print all stacks as `ray stack` does."""
        for pid in self.pids:
            py_spy(pid, "--native")


@contextmanager
def hanging(workers: int) -> Iterator[Hang]:
    """Such a driver and its cluster."""
    with tempfile.TemporaryDirectory() as folder, target_process("regress", workers, folder) as process:
        found = Hang(process, Path(folder))
        yield found
        found.told("end")


def hang(workers: int, orders: Path) -> None:
    """Be the driver. Ray's own output goes to stderr.

    A thread does what files ask for: one that waits for another process would be a further finding.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with ring_of(workers) as ring:
        print("ready", json.dumps([ring.address, ring.pids]), sep="\n", file=replies, flush=True)
        threading.Thread(target=_obey, args=(ring, orders), daemon=True).start()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(ring.passed)


def _obey(ring: Ring, orders: Path) -> None:
    while True:
        for order, obey in {"work": ring.work, "end": ray.shutdown}.items():
            if (orders / order).exists():
                obey()
                (orders / order).unlink()
        time.sleep(POLL_S)


class Commit:
    """The code of one commit, and a process with a session that runs it."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        self._environment = {**os.environ, "PYTHONPATH": str(folder)}
        compileall.compile_dir(str(folder / "dstack"), quiet=1)  # as in an installation by pip
        self._session = self._begun()
        told(self._session, "snapshot")

    def close(self) -> None:
        """Ends its process."""
        self._session.kill()
        self._session.wait()

    def told(self, what: str) -> Cost:
        """The cost of a function of :data:`MEASURED` in the session that it keeps."""
        return Cost(*json.loads(told(self._session, what)))

    def new(self) -> Cost:
        """The cost of the first snapshot of a new session, after its imports."""
        with self._begun() as process:
            found = told(process, "snapshot")
            process.kill()
        return Cost(*json.loads(found))

    def check(self) -> Cost:
        """The cost of a command from its start to its end."""
        command = [sys.executable, "-m", "dstack", "check", "--address", self._address, "--json"]

        def run() -> None:
            done = subprocess.run(command, capture_output=True, check=False, env=self._environment, cwd=self._folder)
            assert json.loads(done.stdout)["verdict"] == "deadlock", done.stderr

        return cost_of(run)

    def _begun(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", MEASURED, self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
            cwd=self._folder,
        )


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(folder), commit], cwd=ROOT, check=True)
        try:
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT, check=True)


def measure(base: str, rounds: int, workers: int) -> Results:
    """Measure both commits."""
    found: dict[str, dict[str, list[Cost]]] = defaultdict(lambda: defaultdict(list))
    loops: list[Cost] = []
    with ExitStack() as stack:
        folder = stack.enter_context(checked_out(base))
        driver = stack.enter_context(hanging(workers))
        commits = {"base": Commit(folder, driver.address), "head": Commit(ROOT, driver.address)}
        for commit in commits.values():
            stack.callback(commit.close)
        for number in range(rounds):
            order = list(commits.items())[:: 1 if number % 2 else -1]
            for name, commit in order:
                for what, cost in one_round(commit, driver):
                    found[what][name].append(cost)
            loops.append(cost_of(driver.ray_stack))
    return as_table(f"{base} and this tree", workers, found, loops)


def one_round(commit: Commit, driver: Hang) -> Iterator[tuple[str, Cost]]:
    """One measurement of each figure."""
    yield CHECK, commit.check()
    yield NEW, commit.new()
    yield SNAPSHOT, commit.told("snapshot")
    yield SAMPLE, commit.told("sample")
    yield RECORD, commit.told("record")
    driver.told("work")
    yield AFTER_RUN, commit.told("sample")


def as_table(commits: str, workers: int, found: Mapping[str, Mapping[str, list[Cost]]], loops: list[Cost]) -> Results:
    columns = ("", "base ms", "min-max", "head ms", "min-max", "head / base")
    results = Results(f"{commits}, {workers} blocked workers, n = {len(loops)}, {os.cpu_count()} cores", columns)
    for what, costs in found.items():
        for unit in ("wall", "CPU"):
            if (what, unit) == (RECORD, "wall"):
                continue  # it is a second
            base, head = ([1000 * of(unit, one) for one in costs[name]] for name in ("base", "head"))
            ratio = median(after / before for before, after in zip(base, head, strict=True))
            cells = [cell for values in (base, head) for cell in (f"{median(values):,.0f}", spread(values, 0))]
            results.add(f"{what}: {unit}", *cells, f"{ratio:.2f}")
    loop = median(one.wall_s for one in loops)
    checks, snapshots = (median(one.wall_s for one in found[what]["head"]) for what in (CHECK, SNAPSHOT))
    cpu_ms = 1000 * median(one.cpu_s for one in found[SNAPSHOT]["head"]) / workers
    after = median(a.cpu_s / b.cpu_s for a, b in zip(found[AFTER_RUN]["head"], found[SAMPLE]["head"], strict=True))
    results.notes += [
        f"{LOOP} takes {loop:.1f} s: {loop / snapshots:.0f} times as long as a warm snapshot of the head, and "
        f"{loop / checks:.1f} times as long as its cold check.",
        f"A warm snapshot of the head takes {cpu_ms:.1f} ms of CPU a worker. After a run, a sample takes {after:.1f} "
        "times as much CPU as a warm one.",
        f"The load of the machine is {psutil.getloadavg()[0]:.1f}.",
    ]
    return results


def of(unit: str, cost: Cost) -> float:
    """Its wall time or its CPU time, in s."""
    return cost.wall_s if unit == "wall" else cost.cpu_s


def main() -> None:
    if len(sys.argv) < 2 or not sys.argv[1]:
        raise SystemExit("Name the commit to compare with: make regress BASE=COMMIT")
    base = sys.argv.pop(1)
    if base == "target":
        hang(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        measure(base, *arguments(ROUNDS, WORKERS)).show()


if __name__ == "__main__":
    main()

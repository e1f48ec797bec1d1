"""One look at one process, by how many threads it has and how deep they are, beside ``py-spy dump``.

All threads wait for an event, but one that ticks every millisecond: so the process is read without a pause first, and
then, for that thread, dumped with one. Everything is measured in one run, in turns, on the same process, without Ray.

    python -m benchmarks.bench_process [ROUNDS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

from benchmarks.tables import Results
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import Options, Target

PYSPY = str(Path(sys.executable).with_name("py-spy"))
OPTIONS: Options = {
    "native": False,
    "locals": False,
    "pause": False,
    "children": False,
    "thread_context": None,
    "deadline_s": 60.0,
}
SHAPES = ((10, 20), (50, 20), (200, 20), (10, 100), (10, 300))
"""Threads, and how many frames each has."""
TICK_S = 0.001


def target(threads: int, depth: int) -> None:
    """Is the process that is read, until it is killed."""
    end = threading.Event()

    def wait(deeper: int) -> None:
        if deeper:
            wait(deeper - 1)
        else:
            end.wait()

    for _ in range(threads):
        threading.Thread(target=wait, args=(depth,), daemon=True).start()
    print("ready", flush=True)
    while True:
        time.sleep(TICK_S)


@contextmanager
def process_of(threads: int, depth: int) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.bench_process", "target", str(threads), str(depth)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def spent() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """How long it takes, and of how much CPU time, in s."""
    began, before = time.perf_counter(), spent()
    action()
    return time.perf_counter() - began, spent() - before


def measure(rounds: int) -> Results:
    columns = ("", "dstack s", "CPU s", "answer KiB", "py-spy dump s", "py-spy dump --native s")
    results = Results(f"One process, by threads and depth, n = {rounds}", columns)
    probe = NodeProbe()
    for threads, depth in SHAPES:
        with process_of(threads, depth) as pid:
            ways = ways_to_look(probe, pid)
            answer = ways["dstack"]()
            runs: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, action in ways.items():
                    runs[name].append(timed(action))
        took = {name: median(took for took, _ in of_way) for name, of_way in runs.items()}
        results.add(
            f"{threads} threads of {depth} frames",
            f"{took['dstack']:.3f}",
            f"{median(cpu for _, cpu in runs['dstack']):.3f}",
            f"{len(json.dumps(answer)) / 1024:.0f}",
            f"{took['py-spy']:.3f}",
            f"{took['native']:.3f}",
        )
    return results


def ways_to_look(probe: NodeProbe, pid: int) -> dict[str, Callable[[], object]]:
    target: Target = {"worker_id": "w", "pid": pid, "port": 0, "is_driver": True}
    dump = [PYSPY, "dump", "--pid", str(pid)]
    return {
        "dstack": lambda: probe.sample([target], OPTIONS),
        "py-spy": lambda: subprocess.run(dump, capture_output=True, check=True),
        "native": lambda: subprocess.run([*dump, "--native"], capture_output=True, check=True),
    }


def main() -> None:
    if sys.argv[1:2] == ["target"]:
        target(*map(int, sys.argv[2:]))
    else:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5).show()


if __name__ == "__main__":
    main()

"""The cost of ``dstack record``: the slowdown of a CPU-bound actor, and the CPU time of dstack's sampler and of py-spy.

The actor does the same work with and without a recording, in pairs of changing order. The CPU time of its thread shows
the interference alone; its wall time includes what the sampler takes of a busy host. Both are ratios within one run.

    python -m benchmarks.bench_record [PAIRS] [WORKERS]
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import psutil
import ray

from benchmarks.harness import PYSPY, Results, arguments, children_cpu_s
from dstack.collecting.recorder import Recorder, new_recording
from dstack.model.recording import RecordingOptions
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import ReadTarget, RecordOptions

RATE_HZ = 20.0
UNITS = 30
SECONDS = 10


class Worker:
    def pid(self) -> int:
        return os.getpid()

    def work(self, units: int) -> tuple[float, float]:
        """The wall time and the CPU time of some work that makes many short calls."""
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(units):
            self.unit()
        return time.perf_counter() - wall, time.thread_time() - cpu

    def unit(self) -> int:
        return sum(self.square(number) for number in range(40_000))

    def square(self, number: int) -> int:
        return number * number

    def spin(self) -> None:
        while True:
            self.unit()

    def idle(self) -> None:
        time.sleep(3600)


@contextmanager
def being_recorded(recorder: Recorder[Any], module: str) -> Iterator[psutil.Process]:
    """The process that records this host by that module, from its first samples on."""
    begun = threading.Event()

    def note(step: str) -> None:
        if step.startswith("recorded"):
            begun.set()

    thread = threading.Thread(target=lambda: recorder.record(note))
    thread.start()
    begun.wait()
    (process,) = (one for one in psutil.Process().children() if module in " ".join(one.cmdline()))
    try:
        yield process
    finally:
        process.resume()
        recorder.stop()
        thread.join()


def slowdown(recording: psutil.Process, worker: Any, pairs: int, title: str) -> Results:
    """The ratio of the work's times with and without a recording, in pairs: in between, its process is stopped."""

    def work() -> tuple[float, float]:
        found: tuple[float, float] = ray.get(worker.work.remote(UNITS))
        return found

    work()
    found = []
    for number in range(pairs):
        times: dict[bool, tuple[float, float]] = {}
        for is_recorded in (True, False) if number % 2 else (False, True):
            recording.resume() if is_recorded else recording.suspend()
            times[is_recorded] = work()
        found.append((times[True], times[False]))
    results = Results(
        f"{title}, {pairs} pairs", ("time", "median ratio", "mean", "standard error", "least", "most", "work alone")
    )
    for index, name in enumerate(("wall time of the actor", "CPU time of its thread")):
        ratios = [one[index] / other[index] for one, other in found]
        figures = (median(ratios), mean(ratios), stdev(ratios) / len(ratios) ** 0.5, min(ratios), max(ratios))
        took = f"{median(other[index] for _, other in found):.2f} s"
        results.add(name, *(f"{figure:.4f}" for figure in figures), took)
    return results


def sampler_cpu(pids: dict[str, list[int]]) -> Results:
    """The CPU time per second and process, of dstack's sampler and of py-spy, for each kind of worker."""
    results = Results(
        f"CPU time of the sampler at {RATE_HZ:g} Hz, in ms per second and process",
        ("processes", "dstack", "py-spy record", "py-spy's over dstack's"),
    )
    for name, targets in pids.items():
        ours = 1000 * dstack_cpu_s(targets) / len(targets) / SECONDS
        theirs = 1000 * pyspy_cpu_s(targets) / len(targets) / SECONDS
        results.add(f"{len(targets)} {name}", f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.1f}")
    results.notes.append("py-spy: `record --nonblocking --threads`, one for each process, without its start.")
    return results


def dstack_cpu_s(pids: list[int]) -> float:
    """The CPU time of rounds over some seconds, without the first one."""
    probe = NodeProbe()
    targets: list[ReadTarget] = [
        {"worker_id": f"{pid:056x}", "pid": pid, "port": 0, "is_driver": False} for pid in pids
    ]
    options: RecordOptions = {
        "rate_hz": RATE_HZ,
        "seconds": 1.0,
        "idle": False,
        "gil": False,
        "native": False,
        "is_last": False,
    }
    probe.record(targets, options)
    return sum(probe.record(targets, options).coverage.sampler_cpu_s for _ in range(SECONDS))


def pyspy_cpu_s(pids: list[int]) -> float:
    """The CPU time that recordings of two lengths differ by, so that the start does not count."""
    return _pyspy_run_s(pids, SECONDS + 2) - _pyspy_run_s(pids, 2)


def _pyspy_run_s(pids: list[int], seconds: int) -> float:
    before = children_cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        terms = ["--nonblocking", "--threads", "--format", "raw", "--rate", f"{RATE_HZ:g}", "--duration", str(seconds)]
        runs = [
            subprocess.Popen(
                [PYSPY, "record", *terms, "--pid", str(pid), "--output", str(Path(folder) / str(pid))],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for pid in pids
        ]
        for run in runs:
            run.wait()
    return children_cpu_s() - before


def main() -> None:
    pairs, workers = arguments(60, 8)
    ray.init("local", num_cpus=1, log_to_driver=False)
    address = ray.get_runtime_context().gcs_address
    actor: Any = ray.remote(num_cpus=0)(Worker)
    worker, spinning, *idle = [actor.remote() for _ in range(2 + workers)]
    recorder = new_recording(address, 3600, RATE_HZ, RecordingOptions())
    with being_recorded(recorder, "dstack.collecting.recording_session") as process:
        slowdown(process, worker, pairs, f"Slowdown while recording at {RATE_HZ:g} Hz").show()
    pids = {"busy": [ray.get(spinning.pid.remote())], "idle": ray.get([one.pid.remote() for one in idle])}
    refs = [spinning.spin.remote(), *(one.idle.remote() for one in idle)]
    sampler_cpu(pids).show()
    del refs
    ray.shutdown()


if __name__ == "__main__":
    main()

"""Large numbers on real Ray: pending tasks of one owner, calls queued at one actor, threads of one process.

Each runs on its own cluster and is explained by ``dstack check``, as text and as JSON, in a separate process. The
figures are its duration, its peak memory, and the size of its output.

    python -m benchmarks.bench_limits [TASKS] [CALLS] [THREADS]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from benchmarks.harness import Results, arguments

TASKS, CALLS, THREADS = arguments(100_000, 10_000, 1_000)
VERDICTS = ("running", "idle", "stalled")
CHILD = """
import atexit, sys
from dstack.cli import main
atexit.register(lambda: sys.stderr.write(open("/proc/self/status").read()))
main()
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the dstack command. It reports its own peak: the kernel's figure for a child includes its parent's."""

    took_s: float
    peak_mib: float
    output: bytes


def sleep_long() -> None:
    time.sleep(3600)


def pass_on(value: object) -> object:
    return value


class Clerk:
    """An actor with slow calls."""

    def stamp(self) -> None:
        time.sleep(3600)

    def start_threads(self, count: int) -> None:
        """Start threads that all wait for one event."""
        self.end = threading.Event()
        for _ in range(count):
            threading.Thread(target=self.end.wait, daemon=True).start()


def remote(what: Any) -> Any:
    return ray.remote(num_cpus=0)(what)


def pending_tasks() -> list[Any]:
    sleeping, passing = remote(sleep_long), remote(pass_on)
    first = sleeping.remote()
    return [passing.remote(first) for _ in range(TASKS)]


def queued_calls() -> list[Any]:
    clerk = remote(Clerk).remote()
    return [clerk.stamp.remote() for _ in range(CALLS)]


def many_threads() -> list[Any]:
    clerk = remote(Clerk).remote()
    ray.get(clerk.start_threads.remote(THREADS))
    return [clerk.stamp.remote()]


@contextmanager
def waiting_for(begin: Callable[[], list[Any]]) -> Iterator[str]:
    """The address of a cluster whose driver has made these calls, and waits for them in a thread."""
    context = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        refs = begin()
        threading.Thread(target=ray.get, args=(refs,), daemon=True).start()
        time.sleep(5)
        yield context.address_info["address"]
    finally:
        ray.shutdown()


def run(address: str, *options: str) -> Run:
    """Run ``dstack check``, which must not report a deadlock or hang."""
    began = time.perf_counter()
    command = [sys.executable, "-c", CHILD, "check", "--address", address, *options]
    done = subprocess.run(command, capture_output=True, check=False)
    took_s = time.perf_counter() - began
    assert done.returncode in (0, 4), done.stderr
    peak_kib = re.findall(rb"VmHWM:\s+(\d+) kB", done.stderr)
    return Run(took_s, int(peak_kib[-1]) / 1024, done.stdout)


def main() -> None:
    columns = ("", "text s", "JSON s", "peak MiB", "lines", "JSON MiB", "waits reported")
    results = Results("Large numbers", columns)
    for name, begin in (
        (f"{TASKS:,} pending tasks", pending_tasks),
        (f"{CALLS:,} queued calls", queued_calls),
        (f"{THREADS:,} threads", many_threads),
    ):
        with waiting_for(begin) as address:
            text, as_json = run(address), run(address, "--json")
        document = json.loads(as_json.output)
        assert document["verdict"] in VERDICTS
        results.add(
            name,
            f"{text.took_s:.1f}",
            f"{as_json.took_s:.1f}",
            f"{max(text.peak_mib, as_json.peak_mib):.0f}",
            str(text.output.count(b"\n")),
            f"{len(as_json.output) / 2**20:.1f}",
            f"{sum(finding['waiters_total'] for finding in document['findings']):,}",
        )
    results.show()


if __name__ == "__main__":
    main()

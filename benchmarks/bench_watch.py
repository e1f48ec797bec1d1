"""The cost of ``dstack watch`` without findings: its share of one core with many busy workers.

All workers are in a long call, and a driver makes short calls. Glances are ten times as frequent as by default, and
their cost is divided by ten; then the benchmark waits for one snapshot. The figures are the CPU time of the watch and
of its children, in one run on one machine.

    python -m benchmarks.bench_watch [WORKERS] [SECONDS]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray

from benchmarks.harness import Results, arguments

WORKERS, SECONDS = arguments(100, 120)
EVERY_S = 30.0
FASTER = 10
STARTS_AT_ONCE = 10
NEVER_S = 1e6


class Clerk:
    def greet(self) -> None:
        pass

    def work(self) -> None:
        time.sleep(3600)


def start_workers() -> list[Any]:
    """Start workers that are all in a long call, except one, which gets short calls."""
    actor: Any = ray.remote(num_cpus=0)(Clerk)
    clerks: list[Any] = []
    while len(clerks) < WORKERS:
        few = [actor.remote() for _ in range(min(STARTS_AT_ONCE, WORKERS - len(clerks)))]
        ray.get([clerk.greet.remote() for clerk in few])
        clerks += few
    threading.Thread(target=ask_for_ever, args=(clerks[0],), daemon=True).start()
    return [clerk.work.remote() for clerk in clerks[1:]]


def ask_for_ever(clerk: Any) -> None:
    while True:
        ray.get(clerk.greet.remote())
        time.sleep(0.1)


@contextmanager
def watch(address: str, *options: str) -> Iterator[tuple[psutil.Process, Callable[[str], None]]]:
    """A watch, and a function that waits for its event."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        command = [sys.executable, "-m", "dstack", "watch", "--address", address, "--dir", directory, *options]
        with log.open("w") as stream, subprocess.Popen(command, stderr=stream) as process:
            try:
                yield psutil.Process(process.pid), lambda event: wait_for(event, log)
            finally:
                process.terminate()


def wait_for(event: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while f"  {event} " not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """The watch, and the process that holds its session."""
    return [process, *process.children(recursive=True)]


def spent_s(process: psutil.Process) -> float:
    """The CPU time so far of the watch and of its children."""
    times = [one.cpu_times() for one in family_of(process)]
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def rss_mib(process: psutil.Process) -> float:
    return float(sum(one.memory_info().rss for one in family_of(process)) / 2**20)


def polls(address: str) -> tuple[float, float, float]:
    """The share of one core that polls take, and the memory in MiB after the first polls and at the end."""
    options = ("--every", str(EVERY_S / FASTER), "--stuck-after", str(NEVER_S))
    with watch(address, *options) as (process, wait_for_event):
        wait_for_event("started")
        time.sleep(2 * EVERY_S / FASTER)
        before, memory = spent_s(process), rss_mib(process)
        time.sleep(SECONDS)
        return (spent_s(process) - before) / SECONDS / FASTER, memory, rss_mib(process)


def snapshot_cpu_s(address: str) -> float:
    """The CPU time in s of the first snapshot, with the polls before it."""
    with watch(address, "--every", "1", "--stuck-after", "2") as (process, wait_for_event):
        wait_for_event("started")
        before = spent_s(process)
        wait_for_event("seen")
        return spent_s(process) - before


def main() -> None:
    context = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    address = context.address_info["gcs_address"]
    calls = start_workers()
    share, memory, memory_later = polls(address)
    snapshot_s = snapshot_cpu_s(address)
    assert not ray.wait(calls, timeout=0)[0]
    results = Results(f"dstack watch, {WORKERS} busy workers on one node, for {SECONDS} s", ("", ""))
    results.add(f"polls every {EVERY_S:g} s, of one core", f"{share:.2%}")
    results.add("one poll, CPU", f"{share * EVERY_S * 1000:.0f} ms")
    results.add("one snapshot, CPU, by default at most 1 % of one core on average", f"{snapshot_s:.1f} s")
    results.add(
        f"memory at first, and {SECONDS / EVERY_S * FASTER:.0f} polls later",
        f"{memory:.0f}, {memory_later:.0f} MiB",
    )
    results.show()


if __name__ == "__main__":
    main()

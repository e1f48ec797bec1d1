"""The cost of ``dstack profile``: samples a second and CPU time with many workers, and the slowdown of a busy program.

The workers are blocked in a ring of calls, compute, or have nothing to do; the driver waits for one of them. The
slowdown is measured as that of a recording: pairs of the same work with and without a profile, in changing order.

    python -m benchmarks.bench_profile [PAIRS] [SECONDS] [WORKERS...]
"""

from __future__ import annotations

import os
import time
from typing import Any

import ray

from benchmarks.bench_record import Worker, being_recorded, slowdown
from benchmarks.harness import Results, arguments
from dstack.collecting.recorder import FOR_EVER_S, new_profile
from dstack.model.profile import Profile, ProfileOptions

RATE_HZ = 5.0
BUSY = 4
"""The workers that compute: as many as this machine may run beside all else."""
COLUMNS = ("workers", "samples a second", "of them unchanged", "CPU ms a sample", "CPUs of the node", "CPUs of 2 %")


class Member:
    def sit_beside(self, neighbour: Any) -> None:
        self.neighbour = neighbour

    def pass_token(self) -> None:
        ray.get(self.neighbour.pass_token.remote())


def profiled(address: str, seconds: float) -> Profile:
    return new_profile(address, seconds, RATE_HZ, ProfileOptions()).record(lambda _: None)


def measure(results: Results, name: str, address: str, seconds: float) -> None:
    """Add the row of one profile."""
    coverage = profiled(address, seconds).coverage
    per_s = coverage.rounds / seconds
    used = coverage.cpu_s / seconds
    results.add(
        name,
        f"{per_s:.1f}",
        f"{coverage.reused / coverage.rounds:.0%}",
        f"{1000 * coverage.cpu_s / coverage.rounds:.0f}",
        f"{used:.2f}",
        f"{used / 0.02:.0f}",
    )


def samples(address: str, workers: int, seconds: float) -> Results:
    results = Results(f"Samples of a profile at {RATE_HZ:g} Hz, {seconds:g} s each", COLUMNS)
    actor: Any = ray.remote(num_cpus=0)
    idle = [actor(Worker).remote() for _ in range(workers)]
    ray.get([one.pid.remote() for one in idle])
    measure(results, f"{workers} idle", address, seconds)
    spinning = [one.spin.remote() for one in idle[:BUSY]]
    measure(results, f"{workers}, of which {BUSY} compute", address, seconds)
    del spinning
    for one in idle:
        ray.kill(one)
    ring = [actor(Member).options(max_concurrency=2).remote() for _ in range(workers)]
    ray.get([member.sit_beside.remote(ring[number - 1]) for number, member in enumerate(ring)])
    blocked = ring[0].pass_token.remote()
    time.sleep(3)
    measure(results, f"{workers} blocked in a ring", address, seconds)
    del blocked
    for one in ring:
        ray.kill(one)
    results.notes.append(
        f"The last column is for how many CPUs of a node this is 2 %; this machine has {os.cpu_count()}."
    )
    return results


def main() -> None:
    pairs, seconds, *sizes = arguments(40, 20)
    ray.init("local", num_cpus=1, log_to_driver=False)
    address = ray.get_runtime_context().gcs_address
    for workers in sizes or (25, 200):
        samples(address, workers, seconds).show()
    worker: Any = ray.remote(num_cpus=0)(Worker).remote()
    recorder = new_profile(address, FOR_EVER_S, RATE_HZ, ProfileOptions())
    with being_recorded(recorder, "dstack.collecting.profile_session") as process:
        slowdown(process, worker, pairs, f"Slowdown while profiled at {RATE_HZ:g} Hz").show()
    ray.shutdown()


if __name__ == "__main__":
    main()

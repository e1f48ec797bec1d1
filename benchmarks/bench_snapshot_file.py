"""Size and speed of snapshot files of 1,000 and of 10,000 similar workers, each with its own waits.

Budget: 2 kB a worker at 1,000 similar workers.

    python -m benchmarks.bench_snapshot_file
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path

from benchmarks.tables import Results
from dstack.files.snapshot_file import load, save
from dstack.model.snapshot import Actor, Sample, Snapshot, Worker, WorkerSample
from dstack.observed.calls import Call, Refs
from dstack.observed.node import Ref, Task
from dstack.observed.processes import Frame, Process, Thread

THREADS = 8
DEPTH = 30


def id_of(number: int, digits: int) -> str:
    """An id that, like real ones, does not compress."""
    return hashlib.sha512(str(number).encode()).hexdigest()[:digits]


def snapshot_of(workers: int) -> Snapshot:
    """A cluster whose actors all wait for the next one, in two samples."""
    numbers = range(workers)
    samples = tuple(
        Sample(
            began_s=began_s,
            ended_s=began_s + 0.5,
            workers=tuple(
                WorkerSample(
                    id_of(i, 56),
                    (id_of(i, 48),),
                    Process(
                        pid=1000 + i,
                        started_at=1.7e9 + i / 7,
                        cpu_s=i / 3,
                        rss_bytes=10**8 + 4096 * i,
                        num_threads=25,
                        state="S",
                        paused_ms=3 + i / 999,
                        threads=tuple(
                            Thread(
                                os_thread_id=1000 + i + t,
                                name="MainThread" if t == 0 else f"ray-{t}",
                                stack=t,
                                role="ray" if t else "task",
                                still=True,
                                call=None if t else Call(site="ray.get", frame=2, need=Refs(refs=(id_of(i + 1, 56),))),
                            )
                            for t in range(THREADS)
                        ),
                    ),
                )
                for i in numbers
            ),
            tasks=tuple(
                Task(
                    task_id=id_of(i, 48),
                    owner_id=id_of(i - 1, 56),
                    name="Player.ping",
                    kind="ACTOR_TASK",
                    state="SUBMITTED_TO_WORKER",
                    job_id="01000000",
                    actor_id=id_of(i, 32),
                )
                for i in numbers
            ),
            refs=tuple(Ref(ref=id_of(i + 1, 56), holder_id=id_of(i, 56), state="SUBMITTED_TO_WORKER") for i in numbers),
        )
        for began_s in (0.1, 1.1)
    )
    return Snapshot(
        dstack_version="0.1.0",
        taken_at=1.7e9,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        actors=tuple(
            Actor(id_of(i, 32), "01000000", "Player", "ALIVE", worker_id=id_of(i, 56), pid=1000 + i) for i in numbers
        ),
        workers=tuple(Worker(id_of(i, 56), id_of(i // 25, 56), "10.0.0.1", 10_000 + i, 1000 + i) for i in numbers),
        frames=tuple(Frame(function=f"step_{i}", file=f"/app/part_{i % 9}.py", line=i) for i in range(THREADS * DEPTH)),
        stacks=tuple(tuple(range(t * DEPTH, (t + 1) * DEPTH)) for t in range(THREADS)),
        samples=samples,
    )


def measure() -> Results:
    results = Results("Snapshot files of similar workers, n = 1", ("", "B a worker", "save s", "load s"))
    for workers in (1000, 10_000):
        snapshot = snapshot_of(workers)
        for suffix in (".json", ".json.gz"):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"snapshot{suffix}"
                began = time.perf_counter()
                save(snapshot, path)
                saved = time.perf_counter()
                load(path)
                loaded = time.perf_counter()
                per_worker = path.stat().st_size / workers
            results.add(
                f"{workers:,} workers, {suffix}", f"{per_worker:.0f}", f"{saved - began:.2f}", f"{loaded - saved:.2f}"
            )
    return results


if __name__ == "__main__":
    measure().show()

"""Snapshots of made-up clusters of any size, without Ray and without processes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dstack.model.snapshot import Actor, Job, Node, Sample, Snapshot, Worker, WorkerSample
from dstack.observed.calls import Call, Need, ProcessObject, Refs
from dstack.observed.node import Ref, Task
from dstack.observed.processes import Frame, Process, Thread

JOB = "01000000"
RING = 5
"""The size of the cycle of :func:`waiting`."""
NODES = 100
CLASSES, STACKS = 8, 400
"""The numbers of classes and of stacks of :func:`with_many_stacks`."""
THREADS, DEPTH = 8, 30
"""The threads of each worker of :func:`similar`, and their frames."""


def waiting(workers: int) -> Snapshot:
    """Actors that wait in ``ray.get`` for a call that runs on another: five in a cycle, the others along chains."""
    ids = [f"{number:024x}{JOB}" for number in range(workers)]
    tasks = [f"{number:016x}{ids[number]}" for number in range(workers)]
    return replace(
        _cluster(ids, classes=("Member",), nodes=1),
        frames=(
            Frame(function="Worker.get_objects", file="/site-packages/ray/_private/worker.py", line=1, origin="ray"),
            Frame(function="Member.run", file="train.py", line=2),
        ),
        stacks=((0, 1), (1,)),
        sources={"train.py": {2: "    return ray.get(ref)"}},
        samples=tuple(
            Sample(
                began_s=began_s,
                ended_s=began_s + 0.5,
                workers=tuple(_waiting_worker(number, tasks) for number in range(workers)),
                tasks=tuple(_call(task, _waiter_of(number, workers)) for number, task in enumerate(tasks)),
            )
            for began_s in (0.0, 1.0)
        ),
    )


def with_many_stacks(workers: int) -> Snapshot:
    """Actors, each with one thread that runs a call, in stacks that branch at many places; two of three wait."""
    chance = random.Random(0)
    frames = tuple(Frame(function=f"Layer{n % 97}.call_{n}", file=f"model/part{n % 13}.py", line=n) for n in range(900))
    stacks = tuple(_branching_stack(chance) for _ in range(STACKS))
    ids = [f"{number:024x}{JOB}" for number in range(workers)]
    return replace(
        _cluster(ids, classes=[f"Part{number}" for number in range(CLASSES)], nodes=NODES),
        frames=frames,
        stacks=stacks,
        samples=(sample_of_stacks(ids, chance),),
    )


def sample_of_stacks(ids: Iterable[str], chance: random.Random) -> Sample:
    """A sample of these actors of :func:`with_many_stacks`, each in a stack by chance."""
    workers = tuple(_worker_in_a_stack(number, id_, chance) for number, id_ in enumerate(ids))
    return Sample(began_s=0.0, ended_s=0.5, workers=workers)


def _cluster(ids: Sequence[str], classes: Sequence[str], nodes: int) -> Snapshot:
    """A cluster with an actor of each id, without stacks and samples."""
    return Snapshot(
        dstack_version="0",
        taken_at=0.0,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        nodes=tuple(Node(node_id=f"{n:056x}", ip=f"10.0.0.{n + 1}") for n in range(nodes)),
        jobs=(Job(job_id=JOB, entrypoint="python train.py"),),
        actors=tuple(
            Actor(actor_id=id_, job_id=JOB, class_name=classes[n % len(classes)], state="ALIVE", worker_id=f"{n:056x}")
            for n, id_ in enumerate(ids)
        ),
        workers=tuple(
            Worker(
                worker_id=f"{n:056x}",
                node_id=f"{n % nodes:056x}",
                ip=f"10.0.0.{n % nodes + 1}",
                port=n,
                pid=n + 1,
                actor_id=id_,
            )
            for n, id_ in enumerate(ids)
        ),
    )


def _waiter_of(number: int, workers: int) -> int:
    return (number - 1) % RING if number < RING else min(number + 1, workers - 1)


def _waiting_worker(number: int, tasks: list[str]) -> WorkerSample:
    """Members of the cycle wait for the next one, others for the previous one; every hundredth waits for nothing."""
    waits_for = (number + 1) % RING if number < RING else number - 1
    is_end = number >= RING and number % 100 == RING
    need = None if is_end else Refs(refs=(f"{tasks[waits_for]}01000000",))
    return _worker(number, tasks[number], stack=int(is_end), site="ray.get", need=need)


def _worker_in_a_stack(number: int, actor_id: str, chance: random.Random) -> WorkerSample:
    need = ProcessObject() if number % 3 else None
    stack = min(int(chance.expovariate(0.02)), STACKS - 1)
    task_id = f"{number:016x}{actor_id}"
    return _worker(number, task_id, stack, site="threading.Condition.wait", need=need, on_cpu=not need)


def _worker(number: int, task_id: str, stack: int, site: str, need: Need | None, on_cpu: bool = False) -> WorkerSample:
    """A worker with one thread, which waits at the site, if it needs something."""
    call = Call(site=site, frame=0, need=need) if need else None
    thread = Thread(
        os_thread_id=number + 1, name="MainThread", stack=stack, role="task", still=True, on_cpu=on_cpu, call=call
    )
    process = Process(pid=number + 1, started_at=1.0, threads=(thread,))
    return WorkerSample(worker_id=f"{number:056x}", running_task_ids=(task_id,), process=process)


def _call(task_id: str, owner: int) -> Task:
    return Task(
        task_id=task_id,
        owner_id=f"{owner:056x}",
        name="Member.run",
        kind="ACTOR_TASK",
        state="SUBMITTED_TO_WORKER",
        job_id=JOB,
        actor_id=task_id[16:],
    )


def _branching_stack(chance: random.Random) -> tuple[int, ...]:
    """A stack, leaf first; the nearer to the root, the fewer different frames."""
    return tuple(chance.randrange(min(900, 1 + depth * depth)) for depth in reversed(range(chance.randint(12, 40))))


def similar(workers: int) -> Snapshot:
    """Actors that all wait for the next one, in two samples, with all that a file has of them."""
    numbers = range(workers)
    samples = tuple(
        Sample(
            began_s=began_s,
            ended_s=began_s + 0.5,
            workers=tuple(_similar_worker(i) for i in numbers),
            tasks=tuple(
                Task(
                    task_id=_id(i, 48),
                    owner_id=_id(i - 1, 56),
                    name="Player.ping",
                    kind="ACTOR_TASK",
                    state="SUBMITTED_TO_WORKER",
                    job_id=JOB,
                    actor_id=_id(i, 32),
                )
                for i in numbers
            ),
            refs=tuple(Ref(ref=_id(i + 1, 56), holder_id=_id(i, 56), state="SUBMITTED_TO_WORKER") for i in numbers),
        )
        for began_s in (0.1, 1.1)
    )
    return Snapshot(
        dstack_version="0.1.0",
        taken_at=1.7e9,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        actors=tuple(Actor(_id(i, 32), JOB, "Player", "ALIVE", worker_id=_id(i, 56), pid=1000 + i) for i in numbers),
        workers=tuple(Worker(_id(i, 56), _id(i // 25, 56), "10.0.0.1", 10_000 + i, 1000 + i) for i in numbers),
        frames=tuple(Frame(function=f"step_{i}", file=f"/app/part_{i % 9}.py", line=i) for i in range(THREADS * DEPTH)),
        stacks=tuple(tuple(range(t * DEPTH, (t + 1) * DEPTH)) for t in range(THREADS)),
        samples=samples,
    )


def _id(number: int, digits: int) -> str:
    """An id that, like real ones, does not compress."""
    return hashlib.sha512(str(number).encode()).hexdigest()[:digits]


def _similar_worker(i: int) -> WorkerSample:
    call = Call(site="ray.get", frame=2, need=Refs(refs=(_id(i + 1, 56),)))
    threads = tuple(
        Thread(
            os_thread_id=1000 + i + t,
            name="MainThread" if t == 0 else f"ray-{t}",
            stack=t,
            role="ray" if t else "task",
            still=True,
            call=None if t else call,
        )
        for t in range(THREADS)
    )
    process = Process(
        pid=1000 + i,
        started_at=1.7e9 + i / 7,
        cpu_s=i / 3,
        rss_bytes=10**8 + 4096 * i,
        num_threads=25,
        state="S",
        paused_ms=3 + i / 999,
        threads=threads,
    )
    return WorkerSample(_id(i, 56), (_id(i, 48),), process)

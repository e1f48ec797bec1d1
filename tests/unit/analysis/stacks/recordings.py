"""Small recordings, made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from dstack.model.recording import RecordedThread, Recording
from dstack.observed.node import Count
from dstack.observed.processes import Frame


def frame(name: str, line: int = 1) -> Frame:
    """A frame of the application; of Ray if its name begins so."""
    is_ray = name.startswith("ray")
    return Frame(
        function=name,
        file="ray/worker.py" if is_ray else "/srv/app/train.py",
        line=line,
        origin="ray" if is_ray else "user",
    )


def thread(rank: int | None, kind: str = "actor Trainer", node: str = "node 10.0.0.1") -> RecordedThread:
    """A thread of a worker."""
    return RecordedThread(
        worker_id=f"{rank}",
        node_id="n1",
        pid=100 + (rank or 0),
        node=node,
        kind=kind,
        rank=rank,
        thread_name="MainThread",
    )


def recording(
    samples: Mapping[tuple[RecordedThread, tuple[Frame, ...]], int],
    began_at: float = 1_700_000_000.0,
    seconds: float = 10,
) -> Recording:
    """A recording with so many samples of each thread in each stack, outermost frame first; none ran if negative."""
    threads = list(dict.fromkeys(one for one, _ in samples))
    frames = list(dict.fromkeys(each for _, stack in samples for each in stack))
    stacks = list(dict.fromkeys(stack for _, stack in samples))
    return Recording(
        dstack_version="0",
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        began_at=began_at,
        duration_s=seconds,
        rate_hz=10,
        frames=tuple(frames),
        stacks=tuple(tuple(frames.index(each) for each in reversed(stack)) for stack in stacks),
        threads=tuple(threads),
        counts=tuple(
            Count(threads.index(one), stacks.index(stack), abs(count), count > 0)
            for (one, stack), count in samples.items()
        ),
    )

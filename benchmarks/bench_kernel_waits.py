"""What waits in the kernel and children that ended cost on top of a sample, in turns, on the same processes.

The processes wait for each other: each reads from a TCP connection to the next one, has 30 threads, and 60 pipes that
are open. All samples are warm. Beside them are as many processes of no job, which the second sample of a snapshot
searches, too, for the ends of pipes and sockets. CPU time is that of the reader.

    python -m benchmarks.bench_kernel_waits [ROUNDS [PROCESSES]]
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from unittest import mock

from benchmarks.bench_process import OPTIONS
from benchmarks.costs import Action, Cost, in_ms, in_turns, spread
from benchmarks.tables import Results
from dstack.probes.node import memory_reader
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.system_calls import KernelWaits
from dstack.probes.node.wire import ReadTarget, SampleOptions

THREADS, PIPES = 30, 60
WITHOUT = " without them"
SAMPLES = {"first sample": False, "second sample": True}
"""Whether a sample searches for what reaches an object, and all processes of the host for the ends of pipes."""


def reader(descriptor: int) -> None:
    """Run a process that reads from a socket until it is killed."""
    end = threading.Event()
    for _ in range(THREADS - 1):
        threading.Thread(target=end.wait, daemon=True).start()
    pipes = [os.pipe() for _ in range(PIPES)]
    connection = socket.socket(fileno=descriptor)
    print("ready", flush=True)
    connection.recv(len(pipes))


@contextmanager
def readers(count: int) -> Iterator[list[int]]:
    """The pids of processes that read from each other."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0), backlog=count) as server:
        pids = []
        for _ in range(count // 2):
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
            for end in (ours, theirs):
                command = [sys.executable, "-m", "benchmarks.bench_kernel_waits", "reader", str(end.fileno())]
                process = stack.enter_context(
                    subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[end.fileno()])
                )
                stack.callback(process.kill)
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                pids.append(process.pid)
                end.close()
        yield pids


def measure(rounds: int, count: int) -> tuple[dict[str, list[Cost]], Results]:
    """The costs by sample, with kernel waits and without."""
    with readers(count) as pids, readers(count):
        targets: list[ReadTarget] = [{"worker_id": str(pid), "pid": pid, "port": 0, "is_driver": True} for pid in pids]
        probe = NodeProbe()

        def sample(reach: bool) -> None:
            options: SampleOptions = {**OPTIONS, "reach": reach}
            answer = probe.sample(targets, options)
            assert not answer.failures, answer.failures

        def without(reach: bool) -> None:
            no_waits = mock.patch.object(KernelWaits, "objects", return_value=None)
            no_children = mock.patch.object(memory_reader, "ended_processes", return_value=[])
            with no_waits, no_children:
                sample(reach)

        sample(reach=True)
        runs: dict[str, Action] = {}
        for name, reach in SAMPLES.items():
            runs[name] = partial(sample, reach)
            runs[name + WITHOUT] = partial(without, reach)
        costs = in_turns(runs, rounds)
    title = f"Kernel waits of {count} processes, each with {THREADS} threads and {2 * PIPES} descriptors, n = {rounds}"
    results = Results(title, ("", "ms", "CPU ms", "min-max", "more CPU ms"))
    for name, found in costs.items():
        cpu = [one.cpu_s for one in found]
        more = median(cpu) - median(one.cpu_s for one in costs[name.removesuffix(WITHOUT) + WITHOUT])
        wall = in_ms(one.wall_s for one in found)
        results.add(name, wall, in_ms(cpu), spread([1000 * s for s in cpu], 0), f"{1000 * more:.1f}")
    return costs, results


def main() -> None:
    if sys.argv[1:2] == ["reader"]:
        reader(int(sys.argv[2]))
        return
    rounds, count = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 10), (2, 26)))
    measure(rounds, count)[1].show()


if __name__ == "__main__":
    main()

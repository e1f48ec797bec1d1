"""Blocked workers on one node, read by dstack and by alternative tools.

Everything is measured in one run, in turns, on the same hung actors: one sample of the workers by a warm probe; a
snapshot in a session that has taken one, and the first one of a new session; `dstack check` as a command (cold);
``py-spy dump --native`` on one worker after another, as ``ray stack`` does it, without its sudo; the same with
``--nonblocking`` and without native frames; and if Ray's dashboard is installed, its page for one worker's stack, and
the agent behind it, one worker after another. The same samples are measured for workers with additional threads.

Then the effects on workers: some actors have a thread that ticks every millisecond and records its longest gap while
they are read continuously and, as the noise, while nothing reads them. A process that polls the workers' states counts
those that were stopped, traced or signalled.

    python -m benchmarks.bench_snapshot [ROUNDS] [WORKERS...]
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import psutil
import ray
from ray.core.generated import reporter_pb2, reporter_pb2_grpc
from ray.experimental.internal_kv import _internal_kv_get

from benchmarks.bench_process import Shape, start_threads
from benchmarks.harness import (
    PYSPY,
    Action,
    Results,
    arguments,
    cost_of,
    disturbed,
    in_turns,
    longest_gap_ms,
    py_spy,
    repeat,
    spread,
    times_s,
)
from dstack.analysis.diagnose import diagnose
from dstack.collecting.capture import take
from dstack.collecting.collector import Terms
from dstack.model.snapshot import Snapshot
from dstack.observed.node import NodeAnswer
from dstack.probes.connection.connect import connect
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import SampleOptions, encoded
from dstack.probes.node_access.node_readers import ProbeSession
from dstack.probes.node_access.targets import targets

SIZES = (10, 25, 64)
NUMBER = 25
"""The number of workers for the measurements with additional threads and of gaps."""
THREADS, NONE = Shape(10, 20), Shape(0, 0)
TICKING = 4
WINDOW_S, WORK_S = 3.0, 0.3
HAS_DASHBOARD = importlib.util.find_spec("aiohttp_cors") is not None
"""Whether ``ray[default]`` is installed."""
NOTHING, SAMPLE, COLD = "not read", "dstack, warm sample", "`dstack check`, cold"
WARM, NEW = "dstack, warm snapshot", "dstack, a session's first snapshot"
LOOP, NONBLOCKING = "`ray stack`'s loop", "py-spy dump --nonblocking, in turn"
AGENT, DASHBOARD = "the agent's GetTraceback, in turn", "the dashboard's page of a stack, in turn"


AGENT_AT = "DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:"


@dataclass(frozen=True, slots=True)
class Run:
    """Wall time, CPU time of the reader with its children, and of Ray's own processes without the workers."""

    took_s: float
    cpu_s: float
    ray_cpu_s: float


Runs = dict[str, list[Run]]
"""The runs of each way to read."""


class Member:
    """An actor that passes a token to its neighbour and waits for ever."""

    def __init__(self, threads: Shape) -> None:
        start_threads(threads)

    @ray.method(concurrency_group="book")
    def sit_beside(self, neighbour: Any) -> int:
        self.neighbour = neighbour
        return os.getpid()

    @ray.method(concurrency_group="book")
    def start_ticking(self, duration_s: float) -> None:
        self.gap_ms = ThreadPoolExecutor(1).submit(longest_gap_ms, duration_s)

    @ray.method(concurrency_group="book")
    def longest_gap_ms(self) -> float:
        return self.gap_ms.result()

    def pass_token(self) -> None:
        ray.get(self.neighbour.pass_token.remote())


class Ring:
    """Actors on their own cluster, each of which waits for the next one."""

    def __init__(self, workers: int, threads: Shape, context: Any, session: ProbeSession) -> None:
        self.address: str = context.address_info["gcs_address"]
        self._dashboard: str = context.dashboard_url
        self._token = connect(self.address).metadata
        actor: Any = ray.remote(num_cpus=0, concurrency_groups={"book": 1})(Member)
        ring = [actor.remote(threads) for _ in range(workers)]
        self.pids = ray.get([member.sit_beside.remote(ring[i - 1]) for i, member in enumerate(ring)])
        self._members = ring
        self.passed = ring[0].pass_token.remote()
        time.sleep(3)
        self.failures: Counter[str] = Counter()
        self._probe = NodeProbe()
        self._session = session
        self._targets = [one for one in targets(self.first().workers) if one["pid"] in self.pids]
        self._options: SampleOptions = {
            "native": False,
            "locals": False,
            "pause": False,
            "children": False,
            "reach": False,  # as in a first sample
            "deadline_s": 60.0,
        }
        self.sample()

    def ways_to_read(self) -> dict[str, Action]:
        """The ways that only read the stacks of all workers."""
        return {SAMPLE: self.sample, LOOP: self.ray_stack, NONBLOCKING: self.nonblocking}

    def ways(self) -> dict[str, Action]:
        """All measured ways by name."""
        ways: dict[str, Action] = {**self.ways_to_read(), WARM: self.warm, NEW: self.first, COLD: self.cold}
        if HAS_DASHBOARD:
            ways |= {AGENT: self.agent, DASHBOARD: self.dashboard}
        return ways

    def read(self) -> NodeAnswer:
        answer = self._probe.sample(self._targets, self._options)
        self.failures.update(one.reason for one in answer.failures)
        return answer

    def sample(self) -> NodeAnswer:
        answer = self.read()
        threads = [thread for process in answer.processes.values() for thread in process.threads]
        assert not answer.failures, answer.failures
        sites = [thread.call.site for thread in threads if thread.call]
        assert sites.count("ray.get") == len(self.pids), sites
        return answer

    def snapshot(self, session: ProbeSession | None = None) -> Snapshot:
        """One without the second in which a check observes what may only poll: here the driver is what reads."""
        recorded = take(session or self._session, self.address, Terms(watch_s=0.0))
        self.failures.update(one.reason for one in recorded.failures)
        return recorded

    def first(self) -> Snapshot:
        with ProbeSession() as session:
            return self.warm(session)

    def warm(self, session: ProbeSession | None = None) -> Snapshot:
        recorded = self.snapshot(session)
        assert diagnose(recorded).verdict == "deadlock", recorded.failures  # with assumptions: this driver could end it
        return recorded

    def cold(self) -> None:
        command = [sys.executable, "-m", "dstack", "check", "--address", self.address, "--json"]
        done = subprocess.run(command, capture_output=True, check=False)
        verdict = json.loads(done.stdout)
        assert verdict["verdict"] == "deadlock", done.stderr

    def ray_stack(self) -> None:
        for pid in self.pids:
            py_spy(pid, "--native")

    def nonblocking(self) -> None:
        for pid in self.pids:
            py_spy(pid, "--json", "--nonblocking")

    def agent(self) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        ip, _, port = json.loads(_internal_kv_get(AGENT_AT + node_id, namespace="dashboard"))
        with grpc.insecure_channel(f"{ip}:{port}") as channel:
            stub = reporter_pb2_grpc.ReporterServiceStub(channel)
            for pid in self.pids:
                reply = stub.GetTraceback(reporter_pb2.GetTracebackRequest(pid=pid), 30, self._token)
                assert reply.success, reply.output

    def dashboard(self) -> None:
        ip = ray.util.get_node_ip_address()
        for pid in self.pids:
            page = f"http://{self._dashboard}/worker/traceback?pid={pid}&ip={ip}&native=0"
            request = urllib.request.Request(page, headers=dict(self._token))
            with urllib.request.urlopen(request, timeout=30) as reply:
                assert reply.read()

    def gaps_ms(self, action: Action) -> list[float]:
        """The longest gaps of the ticking threads while the action was repeated."""
        self._start_ticking(self._members[:TICKING], WINDOW_S)
        repeat(action, WINDOW_S)
        return list(ray.get([member.longest_gap_ms.remote() for member in self._members[:TICKING]]))

    def work(self) -> None:
        """Have all actors run for a moment, in threads besides the blocked ones."""
        self._start_ticking(self._members, WORK_S)
        ray.get([member.longest_gap_ms.remote() for member in self._members])

    def _start_ticking(self, members: list[Any], duration_s: float) -> None:
        ray.get([member.start_ticking.remote(duration_s) for member in members])

    def disturbed(self, action: Action) -> int:
        """The number of workers that were stopped, traced or signalled."""
        return len(disturbed(self.pids, action))


@contextmanager
def ring_of(workers: int, threads: Shape = NONE) -> Iterator[Ring]:
    os.environ["RAY_DASHBOARD_ENABLE_PROFILING"] = "1"
    os.environ["PATH"] = os.pathsep.join([str(Path(PYSPY).parent), os.environ["PATH"]])  # Ray's agent searches there
    context = ray.init("local", num_cpus=2, include_dashboard=HAS_DASHBOARD, log_to_driver=False)
    try:
        with ProbeSession() as session:
            yield Ring(workers, threads, context, session)
    finally:
        ray.shutdown()


def run_of(action: Action) -> Run:
    before = ray_cpu_s()
    cost = cost_of(action)
    return Run(cost.wall_s, cost.cpu_s, ray_cpu_s() - before)


def ray_cpu_s() -> float:
    """The CPU time so far of Ray's own processes, with their reaped children."""
    children = psutil.Process().children(recursive=True)
    times = [process.cpu_times() for process in children if not process.name().startswith("ray::Member")]
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def measure(workers: int, rounds: int) -> tuple[Runs, Results]:
    """Measure all ways, on workers without additional threads."""
    with ring_of(workers) as ring:
        runs = in_turns(ring.ways(), rounds, run_of)
        size = len(encoded(ring.sample()))
    results = as_table(f"{workers} blocked workers on one node", workers, runs)
    results.notes.append(f"The answer of a node is {size / 1024:.0f} KiB.")
    return runs, results


def measure_threads(workers: int, rounds: int) -> tuple[Runs, Results]:
    """Measure the ways that only read, on workers with additional threads."""
    with ring_of(workers, THREADS) as ring:
        runs = in_turns(ring.ways_to_read(), rounds, run_of)
    return runs, as_table(f"{workers} blocked workers with another {THREADS} each", workers, runs)


def as_table(title: str, workers: int, runs: Runs) -> Results:
    columns = ("", "median s", "min-max s", "the loop takes", "CPU ms a worker", "CPU s of Ray's processes")
    results = Results(f"{title}, n = {len(runs[LOOP])}, {os.cpu_count()} cores", columns)
    for name, of_way in runs.items():
        times = [run.took_s for run in of_way]
        results.add(
            name,
            *times_s(times),
            f"{times_faster(runs, name):.1f} times as long",
            f"{cpu_ms(of_way) / workers:.1f}",
            f"{median(run.ray_cpu_s for run in of_way):.2f}",
        )
    return results


def times_faster(runs: Runs, way: str) -> float:
    """The duration of the loop of ``ray stack`` relative to this way, in the median round."""
    return median(base.took_s / run.took_s for run, base in zip(runs[way], runs[LOOP], strict=True))


def cpu_ms(runs: list[Run]) -> float:
    """The median CPU time of the reader."""
    return median(run.cpu_s for run in runs) * 1000


def measure_pauses(workers: int, rounds: int) -> tuple[dict[str, int], Results]:
    """The gaps of workers for each way, and the numbers of disturbed workers."""
    results = Results(
        f"Longest time that a worker's thread was kept from running, {workers} workers, n = {rounds * TICKING}",
        ("", "median ms", "min-max ms", "stopped, traced or signalled"),
    )
    found = {}
    with ring_of(workers) as ring:
        ways: dict[str, Action] = {NOTHING: partial(time.sleep, WINDOW_S), **ring.ways_to_read()}
        ways |= {SAMPLE: ring.read, WARM: ring.snapshot}
        for name, several in in_turns(ways, rounds, ring.gaps_ms).items():
            longest = [gap_ms for gaps_ms in several for gap_ms in gaps_ms]
            found[name] = ring.disturbed(ways[name])
            results.add(name, f"{median(longest):.1f}", spread(longest, 1), f"{found[name]} of {workers}")
        reasons = "; ".join(f"{reason} ({count} times)" for reason, count in ring.failures.items())
    results.notes.append(f"What dstack could not read meanwhile: {reasons or 'nothing'}.")
    return found, results


def main() -> None:
    rounds, *sizes = arguments(5)
    for workers in sizes or SIZES:
        measure(workers, rounds)[1].show()
    workers = min(sizes or [NUMBER])
    measure_threads(workers, rounds)[1].show()
    measure_pauses(workers, rounds)[1].show()


if __name__ == "__main__":
    main()

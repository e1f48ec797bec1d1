"""A snapshot of blocked workers on one node, beside what one would run instead.

Everything is measured in one run, in turns, on the same hung actors: dstack as a command (cold), dstack in a process
that has taken a snapshot before (warm), ``py-spy dump --native`` on one worker after another, as ``ray stack`` does it,
less its sudo; and where Ray's dashboard is installed, its page for one worker's stack, and the agent behind that, one
worker after the other. Pauses are what targets themselves feel: some actors have a thread that ticks every millisecond
and notes its longest gap; the same gap while nobody looks is the noise.

    python -m benchmarks.bench_snapshot [ROUNDS] [WORKERS...]
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc
import psutil
import ray
from ray.core.generated import reporter_pb2, reporter_pb2_grpc
from ray.experimental.internal_kv import _internal_kv_get

from benchmarks.tables import Results
from dstack.analysis.diagnose import diagnose
from dstack.capture import snapshot
from dstack.model import Snapshot
from dstack.probes.connect import connect
from dstack.probes.node.probe import NodeProbe
from dstack.probes.targets import targets

PYSPY = str(Path(sys.executable).with_name("py-spy"))
SIZES = (10, 25, 64)
TICKING = 4
TICK_S = 0.001
HAS_DASHBOARD = importlib.util.find_spec("aiohttp_cors") is not None
"""Whether ``ray[default]`` is installed."""
NOBODY, WARM, COLD, LOOP = "nobody looks, for 1 s", "dstack, warm", "`dstack check`, cold", "`ray stack`'s loop"
AGENT, DASHBOARD = "the agent's GetTraceback, in turn", "the dashboard's page of a stack, in turn"


AGENT_AT = "DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:"


class Run(NamedTuple):
    """How long one took, of how much CPU time, and the longest gaps in ms that the ticking actors felt meanwhile."""

    took_s: float
    cpu_s: float
    gaps_ms: list[float]


class Member:
    """Passes a token to its neighbour and waits; the ring never ends."""

    def __init__(self, ticks: bool) -> None:
        self.gaps: list[float] = []
        if ticks:
            threading.Thread(target=self.tick, name="ticker", daemon=True).start()

    def tick(self) -> None:
        before = time.perf_counter()
        while True:
            time.sleep(TICK_S)
            now = time.perf_counter()
            self.gaps.append((now - before - TICK_S) * 1000)
            before = now

    @ray.method(concurrency_group="book")
    def sit_beside(self, neighbour: Any) -> int:
        self.neighbour = neighbour
        return os.getpid()

    @ray.method(concurrency_group="book")
    def take_gaps(self) -> list[float]:
        taken, self.gaps = self.gaps, []
        return taken

    def pass_token(self) -> None:
        ray.get(self.neighbour.pass_token.remote())


class Ring:
    """So many actors on a cluster of their own, all of them waiting for the next."""

    def __init__(self, workers: int, context: Any) -> None:
        self.address: str = context.address_info["gcs_address"]
        self._dashboard: str = context.dashboard_url
        self._token = connect(self.address).metadata
        actor: Any = ray.remote(num_cpus=0, concurrency_groups={"book": 1})(Member)
        ring = [actor.remote(number < TICKING) for number in range(workers)]
        self._pids = ray.get([member.sit_beside.remote(ring[i - 1]) for i, member in enumerate(ring)])
        self._ticking = ring[:TICKING]
        ring[0].pass_token.remote()
        time.sleep(3)

    def ways(self) -> dict[str, Callable[[], object]]:
        """What is measured, by name."""
        ways: dict[str, Callable[[], object]] = {
            NOBODY: lambda: time.sleep(1),
            WARM: self.warm,
            COLD: self.cold,
            LOOP: self.ray_stack,
        }
        if HAS_DASHBOARD:
            ways |= {AGENT: self.agent, DASHBOARD: self.dashboard}
        return ways

    def warm(self) -> Snapshot:
        taken = snapshot(self.address)
        assert diagnose(taken).findings[0].confirmed
        return taken

    def cold(self) -> None:
        command = [sys.executable, "-m", "dstack", "check", "--address", self.address, "--json"]
        done = subprocess.run(command, capture_output=True, check=False)
        verdict = json.loads(done.stdout)
        assert verdict["verdict"] == "deadlock", done.stderr
        assert verdict["findings"][0]["confirmed"], verdict["findings"][0]

    def ray_stack(self) -> None:
        for pid in self._pids:
            subprocess.run([PYSPY, "dump", "--pid", str(pid), "--native"], capture_output=True, check=True)

    def agent(self) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        ip, _, port = json.loads(_internal_kv_get(AGENT_AT + node_id, namespace="dashboard"))
        with grpc.insecure_channel(f"{ip}:{port}") as channel:
            stub = reporter_pb2_grpc.ReporterServiceStub(channel)
            for pid in self._pids:
                reply = stub.GetTraceback(reporter_pb2.GetTracebackRequest(pid=pid), 30, self._token)
                assert reply.success, reply.output

    def dashboard(self) -> None:
        ip = ray.util.get_node_ip_address()
        for pid in self._pids:
            page = f"http://{self._dashboard}/worker/traceback?pid={pid}&ip={ip}&native=0"
            request = urllib.request.Request(page, headers=dict(self._token))
            with urllib.request.urlopen(request, timeout=30) as reply:
                assert reply.read()

    def measure(self, action: Callable[[], object]) -> Run:
        """One run, and its CPU time: of this process and its children, and of Ray's own ones but the workers."""
        ray.get([member.take_gaps.remote() for member in self._ticking])
        spent = cpu_s()
        began = time.perf_counter()
        action()
        took = time.perf_counter() - began
        spent = cpu_s() - spent
        return Run(took, spent, [max(gaps) for gaps in ray.get([one.take_gaps.remote() for one in self._ticking])])

    def answer_bytes(self) -> int:
        """What a probe on this node would send for a look at all of it."""
        options = {"native": False, "locals": False, "nonblocking": False, "thread_context": None, "deadline_s": 60.0}
        return len(json.dumps(NodeProbe().sample(targets(self.warm().workers), options)))  # type: ignore[arg-type]


@contextmanager
def ring_of(workers: int) -> Iterator[Ring]:
    os.environ["RAY_DASHBOARD_ENABLE_PROFILING"] = "1"
    os.environ["PATH"] = os.pathsep.join([str(Path(PYSPY).parent), os.environ["PATH"]])  # Ray's agent looks there
    context = ray.init(num_cpus=2, include_dashboard=HAS_DASHBOARD, log_to_driver=False)
    try:
        yield Ring(workers, context)
    finally:
        ray.shutdown()


def cpu_s() -> float:
    """The CPU time so far of this process and of Ray's own, with their children that have ended."""
    mine = psutil.Process()
    others = [process for process in mine.children(recursive=True) if not process.name().startswith("ray::Member")]
    times = [process.cpu_times() for process in (mine, *others)]
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def paused(taken: Snapshot) -> int:
    """How many processes were paused at all."""
    workers = [worker for sample in taken.samples for worker in sample.workers]
    return len({w.process.pid for w in workers if w.process and w.process.paused_ms})


def measure(workers: int, rounds: int) -> tuple[dict[str, list[Run]], Results]:
    """The runs by way, and a table of them."""
    with ring_of(workers) as ring:
        ring.warm()
        runs: dict[str, list[Run]] = {name: [] for name in ring.ways()}
        for _ in range(rounds):
            for name, action in ring.ways().items():
                runs[name].append(ring.measure(action))
        first = [sample.ended_s - sample.began_s for sample in (ring.warm().samples[0] for _ in range(rounds))]
        results = as_table(workers, runs)
        results.notes.append(
            f"One warm look at everything, not yet confirmed: median {median(first):.2f} s, max {max(first):.2f} s. "
            f"dstack paused {paused(ring.warm())} of {workers + 1} processes at all. "
            f"For a look a node sends {ring.answer_bytes() / 1024:.0f} KiB."
        )
    return runs, results


def as_table(workers: int, runs: dict[str, list[Run]]) -> Results:
    columns = ("", "median s", "min-max s", "ratio to the loop", "CPU s", "longest gap felt: median ms", "max ms")
    results = Results(f"{workers} blocked workers on one node, n = {len(runs[LOOP])}, {os.cpu_count()} cores", columns)
    for name, of_way in runs.items():
        times = [run.took_s for run in of_way]
        gaps = [gap for run in of_way for gap in run.gaps_ms]
        ratio = median(run.took_s / base.took_s for run, base in zip(of_way, runs[LOOP], strict=True))
        results.add(
            name,
            f"{median(times):.2f}",
            f"{min(times):.2f}-{max(times):.2f}",
            "" if name == NOBODY else f"{ratio:.2f}",
            f"{median(run.cpu_s for run in of_way):.2f}",
            f"{median(gaps):.1f}",
            f"{max(gaps):.1f}",
        )
    return results


def main() -> None:
    rounds, *sizes = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (5,)
    for workers in sizes or SIZES:
        _, results = measure(workers, rounds)
        results.show()


if __name__ == "__main__":
    main()

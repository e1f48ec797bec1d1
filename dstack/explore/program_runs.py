"""One run of a program on clusters of its own, judged by dstack until it ends or hangs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting.collector import SAVED_HISTORY, Collector, Terms
from dstack.errors import DstackError, UsageError
from dstack.explore.family import VARIABLE, Disturbance, Reaper, end, members
from dstack.explore.settings import Amount, Kills, Setting, Stops
from dstack.model.diagnosis import FAILING, Finding
from dstack.probes.connection.cluster_variables import DELAYS, REPORT_INTERVAL_MS, RESOURCES
from dstack.probes.connection.own_cluster import addresses_of

Result = Literal["hang", "passed", "failed", "infeasible", "undecided", "cancelled"]
"""``infeasible``: the program asks for more of a resource than the setting has. ``undecided``: neither had it ended nor
did it hang when its time was over."""
LAST_LINES = 12
LAST_BYTES = 8192
LOOK_S = 20.0
"""The time limit of one snapshot."""
PAUSE_S = 0.1
RESTS = 2.0
"""The pause between two snapshots, as a multiple of what the last one took."""
LEAST_PAUSE_S, MOST_PAUSE_S = 0.5, 2.0
SETTLED_S, SUSPECTED_S = 0.5, 4.0
"""Beyond the longest delay, the time after which a hang must still be there; longer if it rests on an assumption."""
NODES_SETTLE_S = 10.0
"""After which what no node has never comes: nothing but the program can add nodes to its cluster."""
REPORTS_EVENTS = {REPORT_INTERVAL_MS: "100"}
"""Has Ray's processes report their tasks ten times a second instead of once: programs may end soon."""
_FOREIGN = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", DELAYS, RESOURCES)


@dataclass(frozen=True)
class Run:
    """How a run under a setting went.

    ``analysed`` is the snapshot with the hang, else the last one, if there was any; of a run that has ended it is kept
    only if it was plain. ``exit_code`` and ``last_lines`` are those of a program that has ended. ``killed`` are the
    killed workers, by what they ran; ``capacity`` has the resources of its cluster, by name.
    """

    setting: Setting
    result: Result
    seconds: float
    analysed: AnalysedSnapshot | None = field(default=None, repr=False)
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()

    @property
    def capacity(self) -> Mapping[str, float]:
        """CPUs, GPUs and resources of the program's own; empty without a snapshot."""
        nodes = self.analysed.snapshot.nodes if self.analysed else ()
        found: dict[str, float] = {}
        for name, amount in (pair for node in nodes for pair in node.resources.items()):
            if name not in ("memory", "object_store_memory") and ":" not in name and "_group_" not in name:
                found[name] = found.get(name, 0.0) + amount
        return found


class ProgramRuns:
    """Runs a program under settings; a context manager. Several threads may call it at once.

    ``limit_s`` is the longest time of a run. The program runs in ``directory``, by default in that of this process.
    """

    def __init__(self, program: Sequence[str], limit_s: float, directory: Path | None = None) -> None:
        self._program = [*program]
        self._limit_s = limit_s
        self._working_directory = directory
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._collectors: set[Collector] = set()
        self._reaper = Reaper()

    def __enter__(self) -> ProgramRuns:
        return self

    def __exit__(self, *_: object) -> None:
        self._reaper.close()

    def cancel(self) -> None:
        """End the runs that are going on, which are then ``cancelled``; later ones are not."""
        with self._lock:
            self._cancelled.set()
            self._cancelled = threading.Event()
            collectors = [*self._collectors]
        for collector in collectors:
            collector.cancel()

    def __call__(self, setting: Setting, *, history: bool = False) -> Run:
        """Run the program once. With a ``history``, the snapshots have the history of tasks.

        Raises :class:`dstack.UsageError` if the program cannot be run.
        """
        began = time.monotonic()
        terms = Terms(LOOK_S, history=SAVED_HISTORY if history else 0)
        with self._directory() as directory:
            program = self._begun({**setting.environment, **(REPORTS_EVENTS if history else {})}, directory)
            watched = _Watched(program, setting, directory, began + self._limit_s, self._cancelled)
            with self._collecting(watched.address, terms) as collector, watched.disturbance:
                result = watched.judge(collector)
            lines = _last_lines(_output(directory))
        program.wait()
        code = program.returncode if result in ("passed", "failed") else None
        kept = watched.last if not setting.parts or result not in ("passed", "failed") else None
        killed = tuple(watched.disturbance.killed)
        return Run(setting, result, time.monotonic() - began, kept, code, lines, killed)

    def _begun(self, environment: Mapping[str, str], directory: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        own = {VARIABLE: directory, "RAY_TMPDIR": directory, "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            with _output(directory).open("wb") as output:
                return subprocess.Popen(
                    self._program,
                    env={**kept, **own, **environment},
                    cwd=self._working_directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            what = f"{self._program[0]} cannot be run: {error.strerror}."
            raise UsageError(what, "Check the command after --.") from error

    @contextlib.contextmanager
    def _directory(self) -> Iterator[str]:
        """A folder for Ray, with a short name: the paths of its sockets have at most 107 bytes."""
        directory = tempfile.mkdtemp(prefix="dx", dir="/tmp")
        with self._lock:
            self._reaper.watch(directory)
        try:
            yield directory
        finally:
            end(directory)
            with self._lock:
                self._reaper.release(directory)

    @contextlib.contextmanager
    def _collecting(self, address: Callable[[], str | None], terms: Terms) -> Iterator[Collector]:
        collector = Collector(address, terms)
        with self._lock:
            self._collectors.add(collector)
        try:
            with collector:
                yield collector
        finally:
            with self._lock:
                self._collectors.discard(collector)


class _Watched:
    """A program that runs; ``last`` is the last snapshot of its cluster."""

    def __init__(
        self,
        program: subprocess.Popen[bytes],
        setting: Setting,
        directory: str,
        deadline: float,
        cancelled: threading.Event,
    ) -> None:
        self.last: AnalysedSnapshot | None = None
        stops = next((one for one in setting.parts if isinstance(one, Stops)), None)
        kills = next((one for one in setting.parts if isinstance(one, Kills)), None)
        self.disturbance = Disturbance(
            directory,
            stop_ms=stops.most_ms if stops else 0,
            kills=kills.count if kills else 0,
            stop_seed=stops.seed if stops else 0,
            kill_seed=kills.seed if kills else 0,
        )
        self._program = program
        self._directory = directory
        self._setting = setting
        self._deadline = deadline
        self._cancelled = cancelled

    def address(self) -> str | None:
        """The GCS of a cluster that the program has begun; None if there is none now."""
        return min(addresses_of(members(self._directory)), default=None)

    def judge(self, collector: Collector) -> Result:
        """Inspect its cluster again and again, until it has ended, hangs, or its time is over."""
        while (code := self._program.poll()) is None:
            if self._cancelled.is_set():
                return "cancelled"
            if time.monotonic() > self._deadline:
                return "undecided"
            began = time.monotonic()
            for finding in self._stuck(collector):
                if finding.kind == "infeasible" and any(isinstance(one, Amount) for one in self._setting.parts):
                    return "infeasible"
                if self._stays(collector, finding):
                    return "hang"
            took_s = time.monotonic() - began
            self._rest(min(MOST_PAUSE_S, max(LEAST_PAUSE_S, RESTS * took_s)) if self.last else PAUSE_S)
        return "failed" if code else "passed"

    def _stuck(self, collector: Collector) -> list[Finding]:
        """The deadlocks and hangs of a new snapshot that two samples show."""
        if self.address() is None:
            return []
        with self.disturbance.lock:
            try:
                taken = collector.take()
            except DstackError:  # the cluster begins or ends; the deadline bounds how often this is tried
                return []
        if not taken.nodes:  # the cluster is ending
            return []
        self.last = AnalysedSnapshot.of(taken, nodes_settle_s=NODES_SETTLE_S)
        findings = self.last.diagnosis.findings
        return [one for one in findings if one.kind in FAILING["deadlock"] and (one.confirmed or one.assumed)]

    def _stays(self, collector: Collector, finding: Finding) -> bool:
        """Whether it is still there when every call that the setting delays has arrived."""
        self._rest((SETTLED_S if finding.confirmed else SUSPECTED_S) + 2 * self._setting.longest_delay_s)
        again = self._stuck(collector) if self._program.poll() is None else []
        return any(not set(finding.members).isdisjoint(one.members) for one in again)

    def _rest(self, seconds: float) -> None:
        """Wait, at most until the program has ended."""
        until = time.monotonic() + seconds
        while self._program.poll() is None and time.monotonic() < until and not self._cancelled.wait(PAUSE_S / 2):
            pass


def _output(directory: str) -> Path:
    return Path(directory, "output")


def _last_lines(output: Path) -> tuple[str, ...]:
    """The end of what a program has printed, without the notes of Ray about the delays."""
    lines = output.read_bytes()[-LAST_BYTES:].decode(errors="replace").splitlines()
    own = [line for line in lines if "asio_chaos" not in line and "testing_asio_delay_us" not in line]
    return tuple(own[-LAST_LINES:])

"""``dstack watch`` on real Ray: its events for healthy programs and for hangs, and the failures that it survives."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dstack.cli.saved_files import open_files
from dstack.files.sampled_file import PROFILES
from dstack.model.profile import Profile
from tests.clusters.dstack_command import DSTACK, Json, dstack
from tests.clusters.ray_clusters import RayCluster, ray_cluster
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import Child, carrying, command_line, running, wait_until

pytestmark = pytest.mark.ray

SOON_S = 120.0
"""Deadline for an event."""
PIPE_BYTES = 4096
ENDS_S = 120.0
"""A deadline that only a hang exceeds; the exit code shows that a signal ended the watch, and not a timeout."""
QUICK = ("--every", "0.2", "--stuck-after", "1", "--share", "1000")
SLOW_TASK = """
import ray, time
ray.init()
@ray.remote(num_cpus=0)
def step():
    time.sleep(0.3)
print("ready", flush=True)
while True:
    ray.get(step.remote())
"""
SHOPS = """
import ray, sys, time
ray.init()
time.sleep(float(sys.argv[1]) if sys.argv[1:] else 0)
@ray.remote(num_cpus=0)
class Shop:
    def meet(self, other):
        self.other = other
    def ping(self):
        return 1
    def work(self):
        return ray.get(self.other.ping.remote())
a, b = Shop.remote(), Shop.remote()
ray.get([a.meet.remote(b), b.meet.remote(a)])
first = a.work.remote()
time.sleep(0.2)
ray.get([first, b.work.remote()])
print("ready", flush=True)
while not sys.argv[1:]:
    ray.get(a.ping.remote())
    time.sleep(0.1)
"""
"""Two actors that ask each other. With a number of seconds it begins so late, and ends."""


@dataclass(frozen=True)
class Watching:
    """A running ``dstack watch``, and the directory of its files."""

    child: Child
    files: Path

    def events(self, name: str) -> list[Json]:
        """All events of this name so far."""
        lines = self.child.log.read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in events if event["event"] == name]

    def wait_for(self, name: str, count: int = 1) -> list[Json]:
        """The events of this name, once there are ``count``."""

        def there() -> list[Json] | None:
            assert self.child.process.poll() is None, self.child
            found = self.events(name)
            return found if len(found) >= count else None

        return wait_until(there, deadline_s=SOON_S, what=lambda: f"{count} times {name}: {self.child}")

    def metric(self, name: str) -> float:
        """The value of one metric, by its name with its labels, as Prometheus reads it."""
        (event,) = self.wait_for("metrics")
        with urllib.request.urlopen(event["text"].removeprefix("at "), timeout=5) as response:
            lines = response.read().decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def ends_by(self, number: signal.Signals) -> int:
        """Send this signal and return the exit code."""
        self.child.process.send_signal(number)
        return self.child.process.wait(timeout=ENDS_S)


@pytest.fixture(scope="module")
def cluster(shared: SharedCluster) -> Iterator[RayCluster]:
    with shared.in_use() as one:
        yield one


@contextmanager
def watching(cluster: RayCluster, directory: Path, *options: str) -> Iterator[Watching]:
    files = directory / "files"
    command = [*DSTACK, "watch", "--address", cluster.address, "--dir", str(files), "--json", *QUICK, *options]
    with running(command, cluster.environment, directory / "watch.log") as child:
        one = Watching(child, files)
        one.wait_for("started")
        yield one


def test_a_deadlock_that_is_possible_is_told_once_while_all_is_well(cluster: RayCluster, tmp_path: Path) -> None:
    program = tmp_path / "shops.py"
    program.write_text(SHOPS)
    with cluster.run_example(program), watching(cluster, tmp_path, "--predict") as watch:
        (event,) = watch.wait_for("possible")

    assert event["text"].startswith("2 calls of Shop.work wait for each other for ever")
    assert dstack("check", event["file"]).returncode in (0, 4)
    done = dstack("predict", str(watch.files), "--error")
    assert (done.returncode, "POSSIBLE DEADLOCK" in done.stdout) == (1, True)


@pytest.mark.exhaustive
def test_the_last_calls_of_a_job_that_has_ended_are_predicted_from(cluster: RayCluster, tmp_path: Path) -> None:
    program = tmp_path / "shops.py"
    program.write_text(SHOPS)
    with watching(cluster, tmp_path, "--predict") as watch:
        command = [cluster.python, str(program), "10"]
        done = subprocess.run(command, env=cluster.joining, check=True, capture_output=True, text=True, timeout=SOON_S)
        assert "ready" in done.stdout
        (event,) = watch.wait_for("possible")

    assert "POSSIBLE DEADLOCK  2 calls of Shop.work" in dstack("predict", event["file"]).stdout


@pytest.mark.exhaustive
def test_a_hang_beside_progressing_tasks_is_reported_once_and_at_its_end(cluster: RayCluster, tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    options = ("--html", "--metrics", "0", "--on-finding", f"cat >> {documents}; echo no; exit 3")
    with cluster.run_example(PROGRAMS / "drivers/progressing.py"), watching(cluster, tmp_path, *options) as watch:
        watch.wait_for("seen")  # the slow call is stable, so the watch took a snapshot
        assert not watch.events("finding")
        assert not list(watch.files.iterdir())
        assert watch.metric("dstack_up") == 1

        with cluster.run_example("two_actors"):
            (finding,) = watch.wait_for("finding")
            watch.wait_for("lasting")
            watch.wait_for("command")
            assert watch.metric('dstack_findings{kind="deadlock"}') == 1
            assert watch.metric('dstack_waits{kind="ray.get"}') >= 2
            assert watch.metric("dstack_poll_workers_answering") >= 4
        (over,) = watch.wait_for("over")

        page, file = sorted(watch.files.iterdir())
        (document,) = map(json.loads, documents.read_text().splitlines())
        assert document == finding["finding"]
        assert (document["kind"], document["confirmed"], document["file"]) == ("deadlock", True, str(file))
        assert (document["page"], page.suffix) == (str(page), ".html")
        assert "Cashier.order and Kitchen.cook wait for each other" in page.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert dstack("check", str(file)).returncode == 1
        assert "Cashier.order and Kitchen.cook wait for each other" in over["text"]
        assert [event["text"] for event in watch.events("command")] == ["exited with code 3; output: no"]
        assert watch.metric('dstack_findings{kind="deadlock"}') == 0
        assert watch.metric('dstack_findings_reported_total{kind="deadlock"}') == 1
        assert watch.ends_by(signal.SIGTERM) == 0
        (stopped,) = watch.events("stopped")
        assert stopped["text"].endswith(f"to replay: dstack tui {watch.files}")
        assert [one.path for one in open_files([str(watch.files)]).snapshots] == [file]


def test_sigterm_ends_a_watch_with_a_hanging_command(cluster: RayCluster, tmp_path: Path) -> None:
    with (
        cluster.run_example("two_actors"),
        watching(cluster, tmp_path, "--on-finding", f"echo $$ > {tmp_path / 'pid'}; sleep 1000 & wait") as watch,
    ):
        watch.wait_for("finding")
        pid = wait_until(lambda: _read(tmp_path / "pid"), deadline_s=SOON_S, what=lambda: f"command of {watch}")
        shell = psutil.Process(int(pid))
        (sleep,) = wait_until(shell.children, deadline_s=SOON_S, what=lambda: "sleep")
        assert watch.ends_by(signal.SIGTERM) == 0
        for process in (shell, sleep):
            process.wait(timeout=5)


def test_a_signal_during_a_snapshot_ends_that_snapshot(cluster: RayCluster, tmp_path: Path) -> None:
    with watching(cluster, tmp_path) as watch, cluster.run_example("two_actors"):
        watch.wait_for("looking")
        (collector,) = wait_until(
            psutil.Process(watch.child.pid).children, deadline_s=SOON_S, what=lambda: f"snapshot of {watch}"
        )
        assert watch.ends_by(signal.SIGINT) == 130
        collector.wait(timeout=5)


def test_a_profile_is_kept_beside_the_polls_and_survives_its_process(cluster: RayCluster, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW_TASK)
    with cluster.run_example(script), watching(cluster, tmp_path, "--profile-rate", "5") as watch:

        def sampled() -> Profile | None:
            """The profile in the directory, once it names the task."""
            found = [PROFILES.load(path) for path in watch.files.glob("profile-*.json.gz")]
            functions = {step.function for one in found for step in one.steps}
            return found[0] if {"<module>", "step"} <= functions else None

        profile = wait_until(sampled, deadline_s=SOON_S, what=lambda: f"a profile of {watch}")  # as of a snapshot
        assert profile.roots == ("driver slow.py",)
        assert profile.rate_hz == 5

        first = _profiler(watch.child)
        assert first
        first.kill()
        (event,) = watch.wait_for("profile")
        assert event["text"].startswith("interrupted: The profile ended after ")
        wait_until(lambda: _profiler(watch.child), deadline_s=SOON_S, what=lambda: f"another profile of {watch}")
        assert watch.ends_by(signal.SIGTERM) == 0
        (stopped,) = watch.events("stopped")
        assert stopped["text"].endswith(f"to replay: dstack tui {watch.files}")
        assert len(open_files([str(watch.files)]).recordings) == 1


@pytest.mark.exhaustive
def test_a_watch_survives_a_lost_node_a_restarted_gcs_and_the_end_of_its_cluster(tmp_path: Path) -> None:
    with ray_cluster(2, num_cpus=1) as cluster:
        with watching(cluster, tmp_path, "--metrics", "0", "--profile") as watch:
            _other_raylet(cluster).kill()
            polls = watch.metric("dstack_polls_total")
            wait_until(
                lambda: watch.metric("dstack_polls_total") > polls + 5,
                deadline_s=SOON_S,
                what=lambda: f"polls of {watch}",
            )
            assert not watch.events("lost")

            gcs = _gcs_of(cluster)
            gcs.suspend()
            (lost,) = watch.wait_for("lost")
            assert "answer within" in lost["text"]  # none to the connection, or to a request of the poll
            gcs.resume()
            (back,) = watch.wait_for("back")
            assert cluster.address in back["text"]

            gcs.kill()
            _, lost = watch.wait_for("lost", 2)
            assert f"{cluster.address}" in lost["text"]
            assert watch.ends_by(signal.SIGINT) == 130
        assert not list(watch.files.iterdir())


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--address", "127.0.0.1:1"), 3, "Nothing listens on 127.0.0.1:1"),
        (("--address", "nonsense"), 2, "'nonsense' is not a valid address"),
    ],
)
def test_a_watch_without_a_cluster_fails_at_once(
    options: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    done = dstack("watch", *options, "--dir", str(tmp_path))

    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_a_watch_while_the_gcs_does_not_answer(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [*DSTACK, "watch", "--address", address, "--dir", str(tmp_path)]
        with running(command, os.environ, tmp_path / "log") as child:
            silent.accept()[0].close()  # the test for a listener
            with silent.accept()[0]:  # the request
                child.process.send_signal(number)
                assert child.process.wait(timeout=ENDS_S) == code, child


def test_a_watch_ends_although_its_events_are_no_longer_read(cluster: RayCluster, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    while os.write(writer, b"x" * PIPE_BYTES) == PIPE_BYTES and select.select([], [writer], [], 0)[1]:
        pass  # until it is full
    command = [*DSTACK, "watch", "--address", cluster.address, "--dir", str(tmp_path), "--json", *QUICK]
    with subprocess.Popen(
        command, stdout=writer, stderr=writer, env=cluster.environment, stdin=subprocess.DEVNULL
    ) as process:
        wait_until(psutil.Process(process.pid).children, deadline_s=SOON_S, what=lambda: "its session")
        process.terminate()
        assert process.wait(timeout=ENDS_S) == 0
    os.close(reader)
    os.close(writer)


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _profiler(watch: Child) -> psutil.Process | None:
    """The process that profiles for a watch."""
    children = psutil.Process(watch.pid).children()
    return next((one for one in children if any("profile_session" in part for part in command_line(one))), None)


def _gcs_of(cluster: RayCluster) -> psutil.Process:
    return next(one for one, line in _programs(cluster) if line[0].endswith("gcs_server"))


def _other_raylet(cluster: RayCluster) -> psutil.Process:
    """The raylet of the node that is not the head."""
    return next(one for one, line in _programs(cluster) if line[0].endswith("raylet") and "--head" not in line)


def _programs(cluster: RayCluster) -> list[tuple[psutil.Process, list[str]]]:
    family = carrying(("RAY_TMPDIR", str(cluster.directory)))
    return [(one, line) for one in family if (line := command_line(one))]

"""Private Ray clusters for integration tests, and examples that run on them.

A test never connects to Ray itself: clusters, examples and dstack run as child processes. Every cluster has its own
temporary directory and home, so nothing touches the real ``~/.ray`` or another cluster's ``/tmp/ray``. Its processes
are found, and killed, by that directory's name in their environment.

    with run_example("two_actors") as example:  # on its own cluster
        check(example.address, example.environment)

    with ray_cluster(3, num_cpus=2) as cluster, cluster.run_example("ring_of_five") as example:
        ...
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import psutil

from tests.paths import EXAMPLES, ROOT
from tests.processes import Tag, carrying, command_line, kill_all, last_output, running, wait_until

Auth = Literal["on", "off", "default"]
"""Token authentication: on with a generated token, off, or Ray's default."""
TokenIn = Literal["home", "file", "environment"]
"""Where the token is: in ``~/.ray/auth_token``, in a file that a variable names, or in a variable."""

DIRECTORY = "DSTACK_TEST_CLUSTERS"
"""The variable for the clusters' directory; its default is ``/tmp``, because socket paths must be short."""
START_S = 120.0
"""Deadline for a cluster to start, and for an example to print ``ready``."""
CONNECTS_S = 10.0
"""How long a worker that is starting gets to connect. If it is killed before, Ray starts no other in its place for 60 s
(Ray 2.60)."""

LOOPBACK = "127.0.0.1"
HEAD_ID, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
OF_VERSION_2 = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
}

_TAG = "RAY_TMPDIR"
_LONGEST_SOCKET = "ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store.0"
_SOCKET_PATH_LIMIT = 107  # sockaddr_un.sun_path less its final zero, Linux
_WORKER, _FOR_ANY_JOB = "/default_worker.py", ("RAY_JOB_ID", "ffffffff")
_NOT_BUSY = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


@dataclass(frozen=True)
class Example:
    """A running example: its driver's pid, its cluster's GCS address, and an environment for clients.

    That environment has no ``RAY_ADDRESS`` and, with ``auth="default"``, no variable of authentication.
    """

    name: str
    pid: int
    address: str
    environment: Mapping[str, str] = field(repr=False)
    log: Path

    def output(self) -> str:
        """The end of the driver's output."""
        return last_output(self.log)


@dataclass(frozen=True)
class RayCluster:
    """A running cluster without a driver; ``python`` is its interpreter."""

    address: str
    environment: Mapping[str, str] = field(repr=False)
    directory: Path
    python: str

    @property
    def joining(self) -> Mapping[str, str]:
        """The environment for a driver of this cluster."""
        return {**_joining(self.environment), "RAY_ADDRESS": self.address}

    @contextmanager
    def run_example(
        self, name: str | Path, arguments: Sequence[str] = (), *, deadline_s: float = START_S
    ) -> Iterator[Example]:
        """Run ``examples/NAME.py``, or a program by its path, with these arguments as a driver of this cluster.

        Yields after it printed ``ready``. At the end its driver and its workers are killed.
        """
        path = _program(name)
        environment = self.joining
        log = self.directory / f"{path.stem}-{secrets.token_hex(2)}.log"
        with (
            no_worker_left((_TAG, str(self.directory))),
            running([self.python, str(path), *arguments], environment, log) as driver,
        ):
            driver.wait_for_line("ready", deadline_s=deadline_s)
            yield Example(path.stem, driver.pid, self.address, self.environment, log)


@contextmanager
def run_example(
    name: str | Path,
    *,
    auth: Auth = "default",
    token_in: TokenIn = "home",
    python: str = sys.executable,
    deadline_s: float = START_S,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Example]:
    """Run ``examples/NAME.py``, or a program by its path, on its own local cluster, with these variables set.

    Yields after it printed ``ready``.
    """
    path = _program(name)
    with _private_environment(auth, token_in) as (directory, private):
        environment = private | dict(variables)
        log = directory / f"{path.stem}.log"
        with running([python, str(path)], environment, log) as driver:
            driver.wait_for_line("ready", deadline_s=deadline_s)
            yield Example(path.stem, driver.pid, address_of_cluster_in(directory), environment, log)


@contextmanager
def own_environment() -> Iterator[Mapping[str, str]]:
    """The environment for a program that starts a cluster itself; at the end all its processes are killed."""
    with _private_environment("default", "home") as (_, environment):
        yield environment


@contextmanager
def ray_cluster(
    nodes: int = 1,
    *,
    num_cpus: float = 2,
    num_gpus: float = 0,
    resources: Mapping[str, float] | Sequence[Mapping[str, float]] = MappingProxyType({}),
    object_store_memory: int | None = None,
    ip: str | None = None,
    auth: Auth = "default",
    token_in: TokenIn = "home",
    python: str = sys.executable,
    deadline_s: float = START_S,
) -> Iterator[RayCluster]:
    """Start a cluster of ``nodes`` equal nodes on this machine, which share its address, pids and ``/tmp``.

    Their address is ``ip``, or by default the one that Ray finds. Several ``resources`` are those of each node.
    """
    node = {"num_cpus": num_cpus, "num_gpus": num_gpus} | ({"node_ip_address": ip} if ip else {})
    node |= {"object_store_memory": object_store_memory} if object_store_memory else {}
    of_each = [resources] * nodes if isinstance(resources, Mapping) else resources
    arguments = [{**node, "resources": dict(own)} for own in of_each]
    server = [python, str(Path(__file__).with_name("cluster_server.py")), json.dumps(arguments)]
    with (
        _private_environment(auth, token_in) as (directory, environment),
        running(server, environment, directory / "cluster.log") as child,
    ):
        line = child.wait_for_line("address ", deadline_s=deadline_s)
        yield RayCluster(line.removeprefix("address "), environment, directory, python)


@contextmanager
def autoscaled_cluster(node_types: Mapping[str, Mapping[str, Any]], *, version: int) -> Iterator[RayCluster]:
    """Start a head of one CPU with an autoscaler of this version, which may add nodes of these types here."""
    with _private_environment("off", "home") as (directory, environment):
        port, client_port = _free_ports(2)
        environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "PYTHONPATH": str(ROOT)}
        environment |= OF_VERSION_2 if version == 2 else {}
        config = directory / "autoscaling.json"
        config.write_text(json.dumps(_autoscaling(f"{LOOPBACK}:{port}", node_types)))
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--node-ip-address={LOOPBACK}"]
        ray += [f"--port={port}", "--num-cpus=1", "--include-dashboard=false", "--dashboard-agent-listen-port=0"]
        ray += [f"--ray-client-server-port={client_port}", f"--autoscaling-config={config}"]
        done = subprocess.run(ray, env=environment, capture_output=True, text=True, timeout=START_S, check=False)
        assert done.returncode == 0, done.stderr
        yield RayCluster(f"{LOOPBACK}:{port}", environment, directory, sys.executable)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def _autoscaling(address: str, node_types: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The configuration of an autoscaler; that of Ray's tests is not in its wheel (2.60)."""
    head = {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0}
    provider = {"type": "external", "module": "tests.clusters.cloud_provider.Provider", "gcs_address": address}
    lists = ["cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands"]
    lists += [f"{kind}_{what}_commands" for kind in ("head", "worker") for what in ("setup", "start_ray")]
    return {
        "cluster_name": "test",
        "max_workers": 4,
        "idle_timeout_minutes": 60,
        "upscaling_speed": 20.0,
        "provider": provider | {"launch_multiple": True, "head_node_id": HEAD_ID},
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: head,
            **{name: {"node_config": {}, **one} for name, one in node_types.items()},
        },
        "file_mounts_sync_continuously": False,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in lists},
    }


@contextmanager
def no_worker_left(tag: Tag) -> Iterator[None]:
    """Kill, at the end, the workers with ``tag`` in their environment that became busy within this context.

    Ray ends a dead driver's workers itself, but slowly, and it cannot end workers that it does not reach. It ends no
    worker that is starting for the driver's job and hangs before it is connected.
    """
    before = busy_workers(tag)
    try:
        yield
    finally:
        end = time.monotonic() + CONNECTS_S
        while _starting_workers(tag) and time.monotonic() < end:
            time.sleep(0.2)
        kill_all(lambda: [one for one in (*busy_workers(tag), *_starting_workers(tag)) if one not in before])


def _starting_workers(tag: Tag) -> list[psutil.Process]:
    """The workers with ``tag`` in their environment that are starting for a job."""
    found = [one for one in carrying(tag) if any(word.endswith(_WORKER) for word in command_line(one)[:3])]
    for_any_job = carrying(_FOR_ANY_JOB) if found else []
    return [one for one in found if one not in for_any_job]


def busy_workers(tag: Tag) -> list[psutil.Process]:
    """The workers with ``tag`` in their environment that run a task or hold an actor."""
    titles = {process: next(iter(command_line(process)), "") for process in carrying(tag)}
    return [one for one, title in titles.items() if title.startswith("ray::") and not title.startswith(_NOT_BUSY)]


@contextmanager
def _private_environment(auth: Auth, token_in: TokenIn) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory for one cluster and an environment that names it; at the end all processes with it are killed."""
    directory = Path(tempfile.mkdtemp(prefix="dsk", dir=os.environ.get(DIRECTORY, "/tmp")))
    try:
        assert len(str(directory / _LONGEST_SOCKET)) <= _SOCKET_PATH_LIMIT, directory
        home = directory / "home"
        home.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        own = {"HOME": str(home), _TAG: str(directory), "RAY_USAGE_STATS_ENABLED": "0"}
        yield directory, inherited | own | _authentication(auth, token_in, directory, home)
    finally:
        kill_all(lambda: carrying((_TAG, str(directory))))
        shutil.rmtree(directory)


def _authentication(auth: Auth, token_in: TokenIn, directory: Path, home: Path) -> dict[str, str]:
    """The variables of token authentication; writes the token's file unless the token is in a variable."""
    if auth == "default":
        return {}
    if auth == "off":
        return {"RAY_AUTH_MODE": "disabled"}
    token = secrets.token_hex(32)
    if token_in == "environment":
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    path = _token_file(home) if token_in == "home" else directory / "token"
    path.parent.mkdir(exist_ok=True)
    path.write_text(token)
    path.chmod(0o600)
    return {"RAY_AUTH_MODE": "token"} | ({"RAY_AUTH_TOKEN_PATH": str(path)} if token_in == "file" else {})


def _program(name: str | Path) -> Path:
    return name if isinstance(name, Path) else EXAMPLES / f"{name}.py"


def _joining(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with authentication on if Ray generated a token for this cluster.

    A driver with an explicit address does not search for a token without this variable (Ray 2.60).
    """
    made = _token_file(Path(environment["HOME"])).exists()
    return {"RAY_AUTH_MODE": "token", **environment} if made else environment


def _token_file(home: Path) -> Path:
    return home / ".ray" / "auth_token"


def address_of_cluster_in(directory: Path) -> str:
    """The GCS address of the one local cluster in ``directory``.

    `ray.init` writes it to no file (Ray 2.46 to 2.60), but it is on a raylet's command line.
    """

    def address() -> str | None:
        lines = (command_line(process) for process in carrying((_TAG, str(directory))))
        flags = (argument for line in lines for argument in line if argument.startswith("--gcs-address="))
        return next((flag.partition("=")[2] for flag in flags), None)

    return wait_until(address, deadline_s=20.0, what=lambda: f"a process with --gcs-address in {directory}")

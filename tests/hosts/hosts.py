"""A Ray cluster on several hosts, each with its own address, pids, ``/tmp``, ``/dev/shm`` and home.

    with Hosts(3) as hosts, hosts.run_example("ring_of_five", on=2):
        hosts.exec(1, ["dstack", "check", "--address", hosts.address])
        hosts.cut(3)

Hosts count from 1; Ray's head is on the first. Token authentication is on, with the same token in every home. With
``redis=True`` the GCS keeps its state in a Redis server on the first host, so that it may be killed and restarted.
``users`` are the numbers of the users that run all programs on the hosts, Ray included, by host; root is the default.
``custom`` are the custom resources of Ray's nodes, by host.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from tests.clusters.ray_clusters import no_worker_left
from tests.hosts import namespaces
from tests.hosts.init import HOME
from tests.hosts.namespaces import Host
from tests.paths import EXAMPLES
from tests.processes import Child, Tag, carrying, command_line, kill_group, running, wait_until

AWAIT_NODES = Path(__file__).with_name("await_nodes.py")
GCS_PORT = 6379
REDIS = ["redis-server", "--port", "6380", "--save", "", "--protected-mode", "no"]
REDIS_ADDRESS = "127.0.0.1:6380"
OBJECT_STORE_BYTES = 100_000_000


class Hosts:
    """A context manager: enters with ``number`` hosts up and their Ray nodes alive, leaves nothing behind.

    ``nodes`` maps a host's number to its Ray node id in hex. ``environment`` is the default environment of programs on
    a host, and of Ray; like a user's shell it has no variables of authentication. The argument ``environment`` is added
    to it. Every process on the hosts has ``tag`` in its environment. All hosts see the directory ``shared``.
    """

    def __init__(
        self,
        number: int,
        *,
        cpus: float = 2,
        gpus: float = 0,
        deadline_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
        redis: bool = False,
        users: Mapping[int, int] | None = None,
        custom: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        assert 1 <= number <= namespaces.MOST_HOSTS, number
        self.number = number
        self.address = f"{namespaces.ip_of(1)}:{GCS_PORT}"
        self.nodes: dict[int, str] = {}
        self._resources = [f"--num-cpus={cpus:g}", f"--num-gpus={gpus:g}"]
        self._deadline_s = deadline_s
        self._more_environment = environment or {}
        self._hosts: dict[int, Host] = {}
        self._cut: set[int] = set()
        self._redis = redis
        self._users = users or {}
        self._custom = {**(custom or {})}
        self._token = secrets.token_hex(32)
        self._next = itertools.cycle([*range(number + 1, namespaces.MOST_HOSTS + 1), *range(2, number + 1)])

    @staticmethod
    def has_redis() -> bool:
        """Whether ``redis=True`` is possible here."""
        return shutil.which(REDIS[0]) is not None

    @staticmethod
    def unavailable() -> str | None:
        """The reason why hosts cannot be made here, or None."""
        return namespaces.unavailable()

    def __enter__(self) -> Hosts:
        with ExitStack() as stack:
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsk-hosts-")))
            self.tag = ("DSTACK_HOSTS", str(self._directory))
            self.shared = self._directory / "shared"
            self.environment = {**_environment(self.tag), **self._more_environment}
            self._switch = stack.enter_context(namespaces.switch(self.environment, self._directory))
            for number in range(1, self.number + 1):
                self._make_host(stack, number)
            if self._redis:
                self._start_redis(stack)
            self._start_ray(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def exec(
        self, host: int | Host, argv: Sequence[str], *, timeout_s: float = 120.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` on a host, with ``environment`` added to the default one, and wait for its end.

        At ``timeout_s`` it is killed with its children, and :class:`subprocess.TimeoutExpired` is raised.
        """
        with subprocess.Popen(
            (self._hosts[host] if isinstance(host, int) else host).command(argv),
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            finally:
                kill_group(process)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    @contextmanager
    def start(self, host: int, argv: Sequence[str], **environment: str) -> Iterator[Child]:
        """Run ``argv`` on a host within this context, with ``environment`` added to the default one.

        The child's pid is that of the ``nsenter`` on this machine that started it.
        """
        log = self._directory / f"{host}-{secrets.token_hex(4)}.log"
        with running(self._hosts[host].command(argv), self.environment | environment, log) as child:
            yield child

    @contextmanager
    def run_example(self, name: str, *, on: int = 1, deadline_s: float = 60.0) -> Iterator[Child]:
        """Run ``examples/NAME.py`` as a driver on a host; yields when it has printed ``ready``."""
        argv = [sys.executable, str(EXAMPLES / f"{name}.py")]
        with (
            no_worker_left(self.tag),
            self.start(on, argv, RAY_ADDRESS=self.address, RAY_AUTH_MODE="token") as child,
        ):
            child.wait_for_line("ready", deadline_s=deadline_s)
            yield child

    @contextmanager
    def container(self, host: int, *, user: int = 0, capabilities: Sequence[str] = ()) -> Iterator[Host]:
        """Another container in the pod that is this host, for :meth:`exec`, with at most these capabilities.

        It has the same network and processes, and files of its own: an empty ``/tmp`` with the home of its user.
        """
        made = namespaces.container(self._hosts[host], self.environment, self._directory, user, capabilities)
        with made as container:
            self._write_token(container, user)
            yield container

    def kill(self, host: int) -> None:
        """Kill a host. Its peers get closed connections; cut it first to simulate a power failure."""
        namespaces.kill(self._switch, self._hosts.pop(host), is_cut=host in self._cut)
        self._cut.discard(host)

    def cut(self, host: int) -> None:
        """Disconnect a host from the network silently; it continues to run."""
        namespaces.set_link(self._switch, self._hosts[host], "down")
        self._cut.add(host)

    def mend(self, host: int) -> None:
        """Undo :meth:`cut`."""
        namespaces.set_link(self._switch, self._hosts[host], "up")
        self._cut.discard(host)

    def add(self, *, in_place_of: int | None = None) -> Joining:
        """Start one more host, whose Ray node joins the cluster in a while, with the custom resources of a lost one."""
        number = next(number for number in self._next if number not in self._hosts)
        self._custom[number] = self._custom.get(in_place_of or number, {})
        self._make_host(self._stack, number)
        host = self._hosts[number]
        ray = self._stack.enter_context(self._ray_start(host))
        waiter = self._stack.enter_context(self._await_nodes(host.ip))
        return Joining(self, number, host.ip, ray, waiter)

    def gcs(self) -> psutil.Process:
        """The process of the GCS."""
        (found,) = [one for one in carrying(self.tag) if "".join(command_line(one)[:1]).endswith("/gcs_server")]
        return found

    def start_gcs(self, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a GCS again, with the command line and the environment of a killed one."""
        return self._stack.enter_context(self.start(1, command, **environment))

    def _make_host(self, stack: ExitStack, number: int) -> None:
        user = self._users.get(number, 0)
        context = namespaces.host(number, self._switch, self.environment, self._directory, user)
        self._hosts[number] = host = stack.enter_context(context)
        self._write_token(host, user)

    def _write_token(self, host: Host, user: int) -> None:
        path = host.file(f"{HOME}/.ray/auth_token")
        path.write_text(self._token)
        path.chmod(0o600)
        os.chown(path, user, -1)

    def _start_redis(self, stack: ExitStack) -> None:
        child = stack.enter_context(self.start(1, REDIS))
        wait_until(
            lambda: "Ready to accept connections" in child.log.read_text(),
            deadline_s=self._deadline_s,
            what=lambda: f"a Redis server: {child}",
        )

    def _start_ray(self, stack: ExitStack) -> None:
        rays = [stack.enter_context(self._ray_start(host)) for host in self._hosts.values()]
        may_end = rays[:1] if self._redis else []
        with self._await_nodes(*(host.ip for host in self._hosts.values())) as waiter:
            line = wait_until(
                lambda: _first_line("nodes ", waiter, [ray for ray in rays if ray not in may_end]),
                deadline_s=self._deadline_s,
                what=lambda: f"{self.number} nodes: " + "\n".join(map(str, [waiter, *rays])),
            )
        ids = _node_ids(line)
        self.nodes = {number: ids[host.ip] for number, host in self._hosts.items()}

    def _await_nodes(self, *ips: str) -> AbstractContextManager[Child]:
        return self.start(1, [sys.executable, str(AWAIT_NODES), self.address, *ips], RAY_AUTH_MODE="token")

    def _ray_start(self, host: Host) -> AbstractContextManager[Child]:
        """Start a host's Ray; `--block` would end the head with its GCS, so with Redis the head runs without it."""
        ray = str(Path(sys.executable).with_name("ray"))
        head = ["--head", f"--port={GCS_PORT}", "--include-dashboard=false"]
        is_head = host.number == 1
        role = head if is_head else [f"--address={self.address}"]
        blocks = [] if is_head and self._redis else ["--block"]
        common = [*blocks, f"--node-ip-address={host.ip}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        custom = f"--resources={json.dumps(dict(self._custom.get(host.number, {})))}"
        environment = {"RAY_AUTH_MODE": "token"} | ({"RAY_REDIS_ADDRESS": REDIS_ADDRESS} if not blocks else {})
        return self.start(host.number, [ray, "start", *role, *common, *self._resources, custom], **environment)


@dataclass(frozen=True)
class Joining:
    """A host that was added; its Ray node is about to join the cluster."""

    hosts: Hosts
    number: int
    ip: str
    ray: Child
    waiter: Child

    def is_complete(self) -> bool:
        """Whether its node is alive and in ``hosts.nodes``; raises :class:`AssertionError` if its Ray has ended."""
        line = _first_line("nodes ", self.waiter, [self.ray])
        if line is not None:
            self.hosts.nodes[self.number] = _node_ids(line)[self.ip]
        return line is not None


def _node_ids(line: str) -> dict[str, str]:
    ids: dict[str, str] = json.loads(line.removeprefix("nodes "))
    return ids


def _first_line(prefix: str, child: Child, alive: list[Child]) -> str | None:
    """The line of ``child`` with this prefix; fails if it or one of ``alive`` has ended."""
    for one in alive:
        assert one.process.poll() is None, f"ended too early: {one}"
    return child.line(prefix)


def _environment(tag: Tag) -> dict[str, str]:
    name, value = tag
    return {
        name: value,
        "HOME": str(HOME),
        "LANG": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_USAGE_STATS_ENABLED": "0",
    }

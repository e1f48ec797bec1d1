"""A Ray cluster on several hosts, each with its own address, pids, ``/tmp``, ``/dev/shm`` and home.

    with Hosts(3) as hosts, hosts.run_example("ring_of_five", on=2):
        hosts.exec(1, ["dstack", "check", "--address", hosts.address])
        hosts.cut(3)

Hosts count from 1; Ray's head is on the first. Token authentication is on, with the same token in every home.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from tests.clusters.ray_clusters import no_worker_left
from tests.hosts import namespaces
from tests.hosts.init import HOME
from tests.hosts.namespaces import Host
from tests.paths import EXAMPLES
from tests.processes import Child, Tag, kill_group, running, wait_until

AWAIT_NODES = Path(__file__).with_name("await_nodes.py")
GCS_PORT = 6379
OBJECT_STORE_BYTES = 100_000_000


class Hosts:
    """A context manager: enters with ``number`` hosts up and their Ray nodes alive, leaves nothing behind.

    ``nodes`` maps a host's number to its Ray node id in hex. ``environment`` is what a program on a host gets
    unless told otherwise; like a user's shell it does not mention authentication. What is given as
    ``environment`` is added to it, and so to what Ray runs with. Every process on the hosts carries ``tag``.
    """

    def __init__(
        self,
        number: int,
        *,
        cpus: float = 2,
        gpus: float = 0,
        deadline_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        assert 1 <= number <= 99, number
        self.number = number
        self.address = f"{namespaces.ip_of(1)}:{GCS_PORT}"
        self.nodes: dict[int, str] = {}
        self._resources = [f"--num-cpus={cpus:g}", f"--num-gpus={gpus:g}"]
        self._deadline_s = deadline_s
        self._more_environment = environment or {}
        self._hosts: dict[int, Host] = {}

    @staticmethod
    def unavailable() -> str | None:
        """Why hosts cannot be made here, or None if they can."""
        return namespaces.unavailable()

    def __enter__(self) -> Hosts:
        with ExitStack() as stack:
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsk-hosts-")))
            self.tag = ("DSTACK_HOSTS", str(self._directory))
            self.environment = {**_environment(self.tag), **self._more_environment}
            self._switch = stack.enter_context(namespaces.switch(self.environment, self._directory))
            self._make_hosts(stack)
            self._start_ray(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def exec(
        self, host: int, argv: Sequence[str], *, timeout_s: float = 120.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` on a host, with ``environment`` added to the usual one, and wait for it.

        At ``timeout_s`` it is killed, with all that it started, and :class:`subprocess.TimeoutExpired` raised.
        """
        with subprocess.Popen(
            self._hosts[host].command(argv),
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
        """Run ``argv`` on a host meanwhile, with ``environment`` added to the usual one.

        The child's pid is that of the command outside through which it was started.
        """
        log = self._directory / f"{host}-{secrets.token_hex(4)}.log"
        with running(self._hosts[host].command(argv), self.environment | environment, log) as child:
            yield child

    @contextmanager
    def run_example(self, name: str, *, on: int = 1, deadline_s: float = 60.0) -> Iterator[Child]:
        """Run ``examples/NAME.py`` as a driver on a host; yields when it has said ``ready``."""
        argv = [sys.executable, str(EXAMPLES / f"{name}.py")]
        with (
            no_worker_left(self.tag),
            self.start(on, argv, RAY_ADDRESS=self.address, RAY_AUTH_MODE="token") as child,
        ):
            child.wait_for_line("ready", deadline_s=deadline_s)
            yield child

    def kill(self, host: int) -> None:
        """End a host, for good. Its peers see their connections closed; cut it first for a power failure."""
        namespaces.kill(self._switch, self._hosts.pop(host))

    def cut(self, host: int) -> None:
        """Silently cut a host off the network; it goes on running."""
        namespaces.set_link(self._switch, self._hosts[host], "down")

    def mend(self, host: int) -> None:
        """Undo :meth:`cut`."""
        namespaces.set_link(self._switch, self._hosts[host], "up")

    def _make_hosts(self, stack: ExitStack) -> None:
        token = secrets.token_hex(32)
        for number in range(1, self.number + 1):
            context = namespaces.host(number, self._switch, self.environment, self._directory)
            self._hosts[number] = host = stack.enter_context(context)
            path = host.file(f"{HOME}/.ray/auth_token")
            path.write_text(token)
            path.chmod(0o600)

    def _start_ray(self, stack: ExitStack) -> None:
        rays = [stack.enter_context(self._ray_start(host)) for host in self._hosts.values()]
        waiting = [sys.executable, str(AWAIT_NODES), self.address, str(self.number)]
        with self.start(1, waiting, RAY_AUTH_MODE="token") as waiter:
            line = wait_until(
                lambda: _first_line("nodes ", waiter, rays),
                deadline_s=self._deadline_s,
                what=lambda: f"{self.number} nodes: " + "\n".join(map(str, [waiter, *rays])),
            )
        ids: dict[str, str] = json.loads(line.removeprefix("nodes "))
        self.nodes = {number: ids[host.ip] for number, host in self._hosts.items()}

    def _ray_start(self, host: Host) -> AbstractContextManager[Child]:
        ray = str(Path(sys.executable).with_name("ray"))
        head = ["--head", f"--port={GCS_PORT}", "--include-dashboard=false"]
        role = head if host.number == 1 else [f"--address={self.address}"]
        common = ["--block", f"--node-ip-address={host.ip}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        return self.start(host.number, [ray, "start", *role, *common, *self._resources], RAY_AUTH_MODE="token")


def _first_line(prefix: str, child: Child, alive: list[Child]) -> str | None:
    """What ``child`` has said, while it and all of ``alive`` are running."""
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

"""Linux namespaces as hosts and as the network between them, made with `ip`, `unshare` and `nsenter`.

Everything, including the network's bridge, is in separate namespaces and ends with the processes that hold them. The
machine's own interfaces, addresses and mounts are never changed, and two networks cannot collide.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT
from tests.processes import Child, running, wait_until

INIT = Path(__file__).with_name("init.py")
KEPT = sorted({sys.prefix, sys.base_prefix, str(ROOT)})
"""This machine's directories that every host has, even if they are below ``/tmp``."""

USERS = 100
"""The group of a host's user, as in Ray's images."""

MOST_HOSTS = 99
CLOSED_S = 5.0
"""How long the kernel may take to close the connections of a killed host."""

_ISOLATED = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--ipc", "--uts"]
_TOOLS = ("ip", "mount", "nsenter", "setpriv", "sleep", "unshare")
_SUBNET = "10.77.0"
_BRIDGE_ADDRESS = f"{_SUBNET}.254"


@functools.cache
def unavailable() -> str | None:
    """The reason why no host can be made here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"needs the commands {', '.join(missing)} (packages iproute2 and util-linux)"
    trial = [*_ISOLATED, "ip", "-batch", "-"]
    links = "link add name b type bridge\nlink add name v type veth peer name w\n"
    result = subprocess.run(trial, input=links, capture_output=True, text=True, timeout=20)
    return None if result.returncode == 0 else f"the kernel refuses: {result.stderr.strip()}"


@dataclass(frozen=True)
class Host:
    """One emulated host.

    ``init`` is the pid of its first process in the test's namespace, and ``holder`` the child that waits for it.
    ``rights`` is a command that runs another one with the rights of the host's user; empty for root.
    """

    number: int
    name: str
    ip: str
    init: int
    holder: Child
    rights: Sequence[str] = ()

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on the host."""
        inside = ["--mount", "--net", "--pid", "--ipc", "--uts", "--wd"]
        return ["nsenter", f"--target={self.init}", *inside, "--", *self.rights, *argv]

    def file(self, path: str) -> Path:
        """The path of the host's ``path`` on this machine."""
        return Path(f"/proc/{self.init}/root{path}")


def ip_of(number: int) -> str:
    return f"{_SUBNET}.{number}"


@contextmanager
def switch(environment: Mapping[str, str], directory: Path) -> Iterator[int]:
    """A bridge without links; yields the pid of the process that holds its network namespace.

    Also writes the hosts' ``/etc/hosts``, and makes the directory that they share.
    """
    names = "".join(f"{ip_of(number)} host{number}\n" for number in range(1, MOST_HOSTS + 1))
    (directory / "hosts").write_text("127.0.0.1 localhost\n" + names)
    (directory / "shared").mkdir()
    own = os.stat("/proc/self/ns/net").st_ino
    with running(["unshare", "--net", "sleep", "infinity"], environment, directory / "switch.log") as child:
        wait_until(
            lambda: os.stat(f"/proc/{child.pid}/ns/net").st_ino != own,
            deadline_s=20,
            what=lambda: f"a network namespace from {child}",
        )
        # The bridge routes, so that connections to other networks fail at once.
        _in_network(child.pid, ["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
        _links(
            child.pid,
            "link set lo up",
            "link add name bridge type bridge",
            f"address add {_BRIDGE_ADDRESS}/24 dev bridge",
            "link set bridge up",
        )
        yield child.pid


@contextmanager
def host(
    number: int, switch_pid: int, environment: Mapping[str, str], directory: Path, user: int = 0
) -> Iterator[Host]:
    """A host that is linked to the switch, without programs; it has the directory ``shared`` at the same path.

    Its programs run as ``user``, in the group of users, and without any capability unless that is root.
    """
    name = f"host{number}"
    with running([*_ISOLATED, *_init(name, directory, user)], environment, directory / f"{name}.log") as child:
        child.wait_for_line("up", deadline_s=20)
        made = Host(number, name, ip_of(number), _only_child(child), child, _rights(user) if user else ())
        _plug_in(made, switch_pid)
        yield made


@contextmanager
def container(
    host: Host, environment: Mapping[str, str], directory: Path, user: int, capabilities: Sequence[str]
) -> Iterator[Host]:
    """Another container in the host's pod, as `kubectl debug --target` makes it.

    It shares the host's network, processes and System V IPC, but none of its files.
    """
    shared = ["nsenter", f"--target={host.init}", "--net", "--pid", "--ipc", "--"]
    own = ["unshare", "--mount", "--mount-proc", "--uts"]
    log = directory / f"{host.name}-container.log"
    with running([*shared, *own, *_init(host.name, directory, user)], environment, log) as child:
        child.wait_for_line("up", deadline_s=20)
        yield Host(host.number, host.name, host.ip, _only_child(child), child, _rights(user, capabilities))


def _init(name: str, directory: Path, user: int) -> list[str]:
    kept = [*KEPT, str(directory / "shared")]
    return [sys.executable, str(INIT), name, str(directory / "hosts"), str(user), *kept]


def _rights(user: int, capabilities: Sequence[str] = ()) -> list[str]:
    """The command before all others in a container; only root has these capabilities, others may get them by sudo."""
    bounding = ",".join(["-all", *(f"+{one}" for one in capabilities)])
    identity = [f"--reuid={user}", f"--regid={USERS}", "--clear-groups"] if user else []
    return ["setpriv", *identity, "--inh-caps=-all", "--ambient-caps=-all", f"--bounding-set={bounding}"]


def set_link(switch_pid: int, host: Host, state: str) -> None:
    """Set the host's link ``up`` or ``down``, at the switch's end."""
    _links(switch_pid, f"link set {host.name} {state}")


def kill(switch_pid: int, host: Host, *, is_cut: bool = False) -> None:
    """Kill all processes of the host, and wait until the kernel has removed its link.

    The kernel keeps a link for minutes where connections cannot be closed: if the link is down, or a peer's is.
    """
    os.kill(host.init, signal.SIGKILL)
    host.holder.process.wait(timeout=10)
    show = ["nsenter", f"--target={switch_pid}", "--net", "ip", "link", "show", "dev", host.name]
    end = time.monotonic() + (0.0 if is_cut else CLOSED_S)
    while subprocess.run(show, capture_output=True, timeout=60, check=False).returncode == 0:
        if time.monotonic() > end:
            subprocess.run([*show[:4], "link", "delete", host.name], capture_output=True, timeout=60, check=False)
        time.sleep(0.05)


def _plug_in(host: Host, switch_pid: int) -> None:
    _links(
        switch_pid,
        f"link add name {host.name} type veth peer name eth0 netns {host.init}",
        f"link set {host.name} master bridge up",
    )
    _links(
        host.init,
        "link set lo up",
        f"address add {host.ip}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {_BRIDGE_ADDRESS}",
    )


def _links(pid: int, *commands: str) -> None:
    _in_network(pid, ["ip", "-batch", "-"], "\n".join(commands) + "\n")


def _in_network(pid: int, argv: list[str], given: str = "") -> None:
    """Run ``argv`` in the network namespace of ``pid``, and in the test's pid namespace."""
    subprocess.run(["nsenter", f"--target={pid}", "--net", *argv], input=given, text=True, check=True, timeout=20)


def _only_child(child: Child) -> int:
    return int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())

"""Run the tests of the reader, and a deadlock of Ray, on an emulated machine: ``python -m tests.versions.emulated``.

The machine is QEMU's, with Debian's kernel, Python and C library for arm64, and Ray's wheel for aarch64. To emulate
programs alone would not do: that does not show another process's memory as a kernel does. The host needs root,
debootstrap and ``qemu-system-aarch64``. All is made in ``.venv-emulated``; the machine's memory is its only disk.

An emulated processor is about 15 times slower than the host's. Each step has a time limit, the summary lists all steps,
and the exit code is 1 unless all passed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from subprocess import DEVNULL, PIPE
from typing import IO

from tests.paths import ROOT
from tests.versions.debian_tree import MIRROR
from tests.versions.interpreters import ONE_PYTHON

DIRECTORY = ROOT / ".venv-emulated"
TOOLS = ("debootstrap", "dpkg-deb", "qemu-system-aarch64")
PYTEST_PACKAGES = ("pytest", "pytest-timeout", "pytest-rerunfailures", "pytest-xdist", "hypothesis")
TEST_PACKAGES = (*PYTEST_PACKAGES, "anyio", "greenlet", "pyzmq", "uvloop")
PACKAGES = ("procps", "kmod", "iproute2")
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
UNNEEDED = ("boot", "debootstrap", "var/cache/apt", "usr/share/doc", "usr/share/locale", "usr/share/man")
NEEDED_MODULE = re.compile(r"(tcp|inet|unix)_diag\.ko.*")
"""The kernel's modules by which it lists sockets."""
SOURCES = ("dstack", "tests", "examples", "pyproject.toml")
STEP = re.compile(r"^step (\S+): exit code (\d+), (\d+) s", re.MULTILINE)
INIT = """#!/bin/sh
export PATH=/site/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TERM=dumb COLUMNS=120
export PYTHONPATH=/work:/site
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
echo 2 > /proc/sys/kernel/printk
hostname emulated
echo 127.0.0.1 localhost emulated > /etc/hosts
ip link set lo up
depmod
modprobe -a tcp_diag unix_diag
cd /work
step() {
    echo "step $1 begins"
    begun=$(date +%s)
    timeout -k 30 $2 sh -c "$3" < /dev/null 2>&1
    echo "step $1: exit code $?, $(($(date +%s) - begun)) s"
}
. /steps
echo o > /proc/sysrq-trigger
sleep 60
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A Debian suite, the version of Python that runs Ray there, and its packages, the first of which is a kernel."""

    suite: str
    python: str
    packages: tuple[str, ...]

    @property
    def tree(self) -> Path:
        """The files of the machine."""
        return DIRECTORY / self.suite

    @property
    def kernel(self) -> Path:
        """Its kernel, which is not among these files."""
        return DIRECTORY / f"{self.suite}-kernel"

    @property
    def site(self) -> Path:
        """The packages of PyPI."""
        return DIRECTORY / f"{self.suite}-site"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the shell and the seconds it may take."""

    name: str
    limit_s: int
    command: str


CPU = "max,pauth-impdef=on"
BOOT_S = 300
MACHINES = (
    Machine("bookworm", "3.11", ("linux-image-arm64", "python3", "gdb")),
    Machine("forky", "3.14", ("linux-image-arm64-16k", "python3.14", "python3.13")),
)
PYTEST = f"{ONE_PYTHON}=1 $PYTHON -m pytest -q -n 2 -p no:cacheprovider --timeout 3000 --tb short -m 'not exhaustive'"
PORTS = "--dashboard-agent-grpc-port 50001 --runtime-env-agent-port 50002 --dashboard-agent-listen-port 50003"
DEADLOCK = f"""
export RAY_worker_register_timeout_seconds=900 RAY_raylet_start_wait_time_s=900 RAY_agent_register_timeout_ms=1200000
export RAY_AUTH_MODE=disabled
# A raylet waits at most 30 s until its agents have written down their ports (Ray 2.60), which is not enough here.
(
    until node=$(ps -eo args | grep -o '[a]gent.py --node-id=[0-9a-f]*') ; do sleep 2; done
    for port in metrics_agent:50001 runtime_env_agent:50002 dashboard_agent_listen:50003 metrics_export:50004; do
        printf ${{port#*:}} > /tmp/ray/session_latest/${{port%:*}}_port_${{node#*=}}
    done
) &
$PYTHON /site/bin/ray start --head --num-cpus 2 --include-dashboard false --include-log-monitor false \\
    {PORTS} --metrics-export-port 50004 --disable-usage-stats || exit 1
export RAY_ADDRESS=127.0.0.1:6379
$PYTHON examples/two_actors.py > /program 2>&1 &
until grep -q ^ready /program; do sleep 5; kill -0 $! || break; done
cat /program
$PYTHON -m dstack check --timeout 900 > /report
code=$?
cat /report
test $code = 1 && grep -q "Cashier.order" /report && grep -q "Kitchen.cook" /report
"""
STEPS = (
    Step("machine", 300, "uname -a; getconf PAGESIZE; $PYTHON -VV; free -m"),
    Step("layouts", 1800, f"{PYTEST} tests/unit/probes/node/cpython/test_layouts.py"),
    Step("deadlock", 3600, DEADLOCK),
    Step("reading", 14400, f"{PYTEST} tests/unit/probes/node"),
)


def missing() -> str | None:
    """The reason why this host cannot make or run the machine, if it cannot."""
    if os.geteuid():
        return "the files of the machine can only be made by root"
    lacking = [tool for tool in TOOLS if not shutil.which(tool)]
    return f"this host has no {' and no '.join(lacking)}" if lacking else None


def make_tree(machine: Machine) -> None:
    """Unpack Debian's packages; none of their scripts runs."""
    ready = machine.tree / ".ready"
    if ready.exists():
        return
    shutil.rmtree(machine.tree, ignore_errors=True)
    DIRECTORY.mkdir(exist_ok=True)
    include = f"--include={','.join((*machine.packages, *PACKAGES))}"
    options = ("--arch=arm64", "--foreign", "--variant=minbase", include)
    subprocess.run(("debootstrap", *options, machine.suite, machine.tree, MIRROR, "sid"), check=True, stdout=sys.stderr)
    for package in sorted((machine.tree / "var/cache/apt/archives").glob("*.deb")):
        unpack = "dpkg-deb --fsys-tarfile $0 | tar -x --keep-directory-symlink -C $1"
        subprocess.run(("sh", "-c", unpack, package, machine.tree), check=True)
    (kernel,) = (*machine.tree.glob("boot/vmlinuz-*"), *machine.tree.glob("usr/lib/modules/*/vmlinuz"))
    kernel.rename(machine.kernel)
    for name in UNNEEDED:
        shutil.rmtree(machine.tree / name)
    for module in machine.tree.glob("usr/lib/modules/**/*.ko*"):
        if not NEEDED_MODULE.fullmatch(module.name):
            module.unlink()
    (machine.tree / "proc").unlink()  # a link to that of the host
    (machine.tree / "proc").mkdir()
    ready.touch()


def make_site(machine: Machine) -> None:
    """Install dstack's requirements, this environment's Ray, and what the tests import, from wheels for aarch64."""
    ready = machine.site / ".ready"
    if ready.exists():
        return
    shutil.rmtree(machine.site, ignore_errors=True)
    required = [one for one in requires("ray-dstack") or () if "extra ==" not in one]
    platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
    options = ("--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--python-version", machine.python)
    packages = (*required, *TEST_PACKAGES, f"ray=={version('ray')}")
    target = ("--target", str(machine.site))
    pip = (sys.executable, "-m", "pip", "install", *options, *platforms, *target, *packages)
    subprocess.run(pip, check=True)
    ready.touch()


class Archive:
    """An archive of files as the kernel unpacks it: cpio in its "new ASCII" format, of which it may get several."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._number = 0

    def add(self, name: str, mode: int, data: bytes = b"", changed: float = 0) -> None:
        """Add a file of root's, ``changed`` at this Unix time. Two files never are the same one."""
        self._number += 1
        words = (self._number, mode, 0, 0, 1, int(changed), len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % word for word in words) + name.encode() + b"\0"
        self._file.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))

    def add_tree(self, directory: Path, prefix: str = "") -> None:
        """Add the content of a directory, below ``prefix``."""
        for folder, names, files in os.walk(directory):
            inside = os.path.relpath(folder, directory)
            for name in (*names, *files):
                self.add_file(os.path.join(folder, name), prefix + os.path.normpath(os.path.join(inside, name)))

    def add_file(self, source: str, name: str) -> None:
        """Add a file, link or directory itself; not what is in a directory."""
        found = os.lstat(source)
        if os.path.islink(source):
            self.add(name, found.st_mode, os.readlink(source).encode())
        elif os.path.isdir(source):
            self.add(name, found.st_mode)
        elif os.path.isfile(source):
            self.add(name, found.st_mode, Path(source).read_bytes(), found.st_mtime)

    def close(self) -> None:
        """End the archive."""
        self.add("TRAILER!!!", 0)


def write_files(machine: Machine, steps: Iterable[Step]) -> Path:
    """All files of the machine, as one archive."""
    path = DIRECTORY / f"{machine.suite}.cpio"
    with path.open("wb") as file:
        archive = Archive(file)
        for directory in ("work", "site"):
            archive.add(directory, S_IFDIR | 0o755)
        archive.add_tree(machine.tree)
        archive.add_tree(machine.site, "site/")
        for name in SOURCES:
            archive.add_file(str(ROOT / name), f"work/{name}")
            archive.add_tree(ROOT / name, f"work/{name}/")
        script = f"export PYTHON=python{machine.python}\n"
        script += "".join(f"step {one.name} {one.limit_s} {shlex.quote(one.command)}\n" for one in steps)
        archive.add("steps", S_IFREG | 0o644, script.encode())
        archive.add("init", S_IFREG | 0o755, INIT.encode())
        archive.close()
    return path


def run(machine: Machine, steps: Sequence[Step]) -> bool:
    """Start the machine, print what it prints, and a summary of the steps; whether all of them passed."""
    log = DIRECTORY / f"{machine.suite}.log"
    parts = ("-machine", "virt", "-cpu", CPU, "-smp", "2", "-m", "8G", "-no-reboot", "-nic", "none")
    terminal = ("-display", "none", "-monitor", "none", "-serial", "stdio")
    files = (
        "-kernel",
        machine.kernel,
        "-initrd",
        write_files(machine, steps),
        "-append",
        "console=ttyAMA0 quiet panic=-1",
    )
    limit_s = BOOT_S + sum(step.limit_s for step in steps)
    command = ("timeout", str(limit_s), "qemu-system-aarch64", *parts, *terminal, *files)
    with log.open("w") as file, subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE) as qemu:
        for line in qemu.stdout or ():
            text = line.decode(errors="replace").rstrip()
            print(text, flush=True)
            print(text, file=file, flush=True)
    return _summarize(machine, steps, log.read_text())


def _summarize(machine: Machine, steps: Sequence[Step], text: str) -> bool:
    ended = {name: (int(code), seconds) for name, code, seconds in STEP.findall(text)}
    print(f"\nDebian {machine.suite}, Python {machine.python}, Ray {version('ray')}, aarch64 emulated by QEMU:")
    for step in steps:
        code, seconds = ended.get(step.name, (None, ""))
        print(f"  {step.name:<12}", "did not run or end" if code is None else f"exit code {code} after {seconds} s")
    return all(ended.get(step.name, (1, ""))[0] == 0 for step in steps)


def main(arguments: Sequence[str]) -> int:
    """Make and run the machine with the named steps, or all."""
    if why := missing():
        print(f"not run: {why}")
        return 1
    steps = [step for step in STEPS if not arguments or step.name in arguments]
    results = []
    for machine in MACHINES:
        make_tree(machine)
        make_site(machine)
        results.append(run(machine, steps))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

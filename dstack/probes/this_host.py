"""What this machine, user and environment allow, before any cluster is asked.

The sources are ``/proc`` and this interpreter.
"""

from __future__ import annotations

import os
import platform
import pwd
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import ray

from dstack.model.diagnosis import Check, Level
from dstack.probes.connection.ray_protocol import PIECES as GCS_PIECES
from dstack.probes.connection.ray_protocol import protocol
from dstack.probes.node.core_worker_replies import PIECES as CORE_WORKER_PIECES
from dstack.probes.node.cpython.layouts import LAYOUTS
from dstack.probes.node.cpython.memory import MACHINES, UnreadableMemory
from dstack.probes.node.cpython.python_process import own_layout
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import ALLOW_ATTACHING, CAP_SYS_PTRACE, capabilities
from dstack.probes.node.pyspy import PySpy, find_pyspy
from dstack.probes.node.ray_messages import OLDEST, REMEDY, LostPiece, Piece
from dstack.probes.node.ray_sources import SourcePart, lost_in, parts_in
from dstack.version import TESTED_RAYS, __version__, release_of
from dstack.words import listed

PYTHONS = ((3, 10), (3, 14))
"""The first and the last version that dstack runs on: those for which Ray has wheels."""
PYSPY_S = 5.0
"""The time limit of ``py-spy --version``."""


def host_checks() -> list[Check]:
    """Check the platform, the versions, the permission to read processes, py-spy, and the known memory layouts."""
    return [_platform(), _python(), _ray(), *_pieces(), _permission(), _pyspy(), _layouts()]


def _platform() -> Check:
    system, machine, libc = platform.system(), platform.machine(), " ".join(platform.libc_ver())
    text = f"{system} {platform.release()}, {machine}, {libc or 'no glibc'}"
    if system == "Linux" and machine in MACHINES and libc.startswith("glibc"):
        return Check("ok", text)
    return Check("failure", f"{text}: not supported", "Run dstack on Linux x86-64 or aarch64 with glibc.")


def _python() -> Check:
    first, last = PYTHONS
    text = f"dstack {__version__} on Python {platform.python_version()}"
    if first <= tuple(map(int, platform.python_version_tuple()[:2])) <= last:
        return Check("ok", text)
    return Check("failure", f"{text}: not tested", f"Use Python {_range(PYTHONS)}, that of the cluster.")


def _ray() -> Check:
    """The Ray that dstack uses, which may be another than the cluster's."""
    text, last = f"Ray {ray.__version__}", ".".join(map(str, TESTED_RAYS[1]))
    release = release_of(ray.__version__)
    if release is not None and release < TESTED_RAYS[0]:
        oldest = ".".join(map(str, TESTED_RAYS[0]))
        return Check("failure", f"{text}: not supported", f"Use Ray {oldest} or later, that of the cluster.")
    if release in TESTED_RAYS:
        return Check("ok", f"{text}: dstack is tested with it")
    if release is not None and release < TESTED_RAYS[1]:
        return Check("ok", f"{text}: not tested with dstack, whose tests run with earlier and later ones")
    return Check("ok", f"{text}: not tested with dstack, whose tests run with Ray up to {last}")


def _pieces() -> list[Check]:
    """Whether that Ray has what dstack reads of Ray, piece by piece."""
    folder = Path(ray.__file__).parent
    pieces = (*GCS_PIECES, *CORE_WORKER_PIECES)
    lost = protocol(pieces).lost + lost_in(folder)
    if not lost:
        count = len(pieces) + len(parts_in(folder))
        return [Check("ok", f"this Ray has all {count} pieces that dstack reads: services, messages, functions")]
    return [Check(_level([one]), one.reason, REMEDY) for one in lost]


def piece_checks() -> list[Check]:
    """Each piece of Ray that dstack reads, with what it feeds, and whether the Ray that dstack uses has it."""
    release, folder = release_of(ray.__version__) or OLDEST, Path(ray.__file__).parent
    found: list[tuple[Piece | SourcePart, Sequence[LostPiece]]]
    found = [(one, protocol((one,)).lost) for one in (*GCS_PIECES, *CORE_WORKER_PIECES) if one.since <= release]
    found += [(one, lost_in(folder, [one])) for one in parts_in(folder)]
    return [Check(_level(lost), f"{piece.feeds}: {piece.what}") for piece, lost in found]


def _level(lost: Sequence[LostPiece]) -> Level:
    return "failure" if any(one.is_vital for one in lost) else "limit" if lost else "ok"


def _permission() -> Check:
    """What this process may read. A worker may forbid more, which only reading it shows."""
    scope, is_root = proc.ptrace_scope(), os.geteuid() == 0
    may_ptrace = bool(capabilities(proc.status("self"), "CapEff") & CAP_SYS_PTRACE)
    user = f"user {_user_name()}, {'with' if may_ptrace else 'without'} the capability SYS_PTRACE"
    yama = f"kernel.yama.ptrace_scope {scope}" if scope else "no restriction by Yama"
    if scope == 3:
        return Check("failure", f"{yama} forbids to read any process", "Reboot the host with another value.")
    if may_ptrace:
        return Check("ok", f"{user}; {yama}: may read all processes here")
    if scope or is_root:
        return Check("limit", f"{user}; {yama}: may not read Ray's processes here", ALLOW_ATTACHING)
    return Check("ok", f"{user}; {yama}: may read the processes of this user here")


def _pyspy() -> Check:
    path = find_pyspy()
    if path is None:
        return Check("limit", "no py-spy, so no --native, --pause or --gil", "Install it: pip install py-spy.")
    version = _version_of(path)
    if version is None:
        return Check("limit", f"{path} cannot be started", "Install it again: pip install --force-reinstall py-spy.")
    setuid = ", setuid" if PySpy(path).is_setuid else ""
    return Check("ok", f"py-spy {version}{setuid} at {path}; dstack sends it to {platform.machine()} nodes without one")


def _layouts() -> Check:
    """Of which builds of CPython this process can interpret the memory."""
    saved = listed([f"{major}.{minor}" for major, minor in LAYOUTS])
    try:
        version = ".".join(map(str, own_layout().version))
    except UnreadableMemory as error:
        remedy = "Use a release build of CPython with the GIL; else dstack has stacks from py-spy, without waits."
        return Check("limit", f"memory layouts: saved for CPython {saved}; {error}", remedy)
    return Check("ok", f"memory layouts: CPython {version} as it is here, and saved for {saved}")


def _range(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(f"{major}.{minor}" for major, minor in versions)


def _user_name() -> str:
    with suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_name
    return f"uid {os.geteuid()}"


def _version_of(path: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PYSPY_S, check=True)
        return done.stdout.strip().removeprefix("py-spy ")
    return None

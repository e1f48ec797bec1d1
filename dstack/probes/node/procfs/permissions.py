"""Why a process cannot be read from here, in one sentence, and the remedy.

The only source is ``/proc`` of the process and of this one. Seen on Linux 6.1.
"""

from __future__ import annotations

import errno
import os
import re

from dstack.observed.node import Cause
from dstack.probes.node.procfs import proc

CAP_SYS_PTRACE = 1 << 19  # linux/capability.h
ALLOW_IN_DOCKER = "Start the container with: docker run --cap-add=SYS_PTRACE."
ALLOW_IN_KUBERNETES = 'In the pods\' containers set: securityContext: {capabilities: {add: ["SYS_PTRACE"]}}.'
AS_ROOT_IN_KUBERNETES = (
    "In the pods' containers set: securityContext: {runAsUser: 0}, or on their machines:"
    " sysctl kernel.yama.ptrace_scope=0."
)
ALLOW_ATTACHING = "Run dstack as root, or: sysctl kernel.yama.ptrace_scope=0."
INSTALL_PYSPY = "Install it there: pip install py-spy."


class DumpFailed(Exception):
    """py-spy could not read the process: one sentence and, where known, the remedy.

    ``cause`` is one of :data:`dstack.observed.node.Cause`; ``is_denied`` says that a user with more rights could.
    """

    def __init__(
        self, reason: str, remedy: str | None = None, *, cause: Cause = "other", is_denied: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.cause: Cause = "permission" if is_denied else cause
        self.is_denied = is_denied


def why_dump_failed(pid: int, stderr: str) -> DumpFailed:
    """The cause of py-spy's failure, from its last words and from ``/proc``."""
    if refused := why_refused(pid, stderr):
        return refused
    if re.search("find python version|not a python|find python interpreter|python version", stderr, re.IGNORECASE):
        return DumpFailed(f"py-spy does not recognise it as a Python process: {last_words(stderr)}", cause="unreadable")
    if re.search("stack trace|bad address", stderr, re.IGNORECASE):
        return DumpFailed(f"py-spy: {last_words(stderr)}", cause="unreadable")
    return DumpFailed(f"py-spy: {last_words(stderr)}")


def why_refused(pid: int, stderr: str) -> DumpFailed | None:
    """Why no tool can read the process now, if that is so: it has ended, is traced, or permission is denied."""
    if proc.state(pid) == "Z":
        return DumpFailed("the process is a zombie: it has ended and waits for its parent", cause="ended")
    if not re.search("permission denied|operation not permitted", stderr, re.IGNORECASE):
        return None
    if not (tracer := proc.tracer(pid)):
        return why_denied(pid)
    remedy = "Wait until that program has ended, or end it."
    return DumpFailed(f"another program is tracing it: {proc.name(tracer)} (pid {tracer})", remedy, cause="permission")


def why_not_started(path: str, error: OSError) -> DumpFailed:
    """Why an existing py-spy could not be started."""
    if error.errno == errno.ENOENT and os.path.exists(path):
        reason = "py-spy cannot run there: it was built for another C library"
        return DumpFailed(reason, INSTALL_PYSPY, cause="missing")
    if error.errno == errno.ENOEXEC:
        reason = "py-spy cannot run there: it was built for another kind of machine"
        return DumpFailed(reason, INSTALL_PYSPY, cause="missing")
    return DumpFailed(f"py-spy could not be started: {error.strerror}")


def why_denied(pid: int) -> DumpFailed:
    """Which of the kernel's rules forbids reading a process."""
    own, its = proc.status("self"), proc.status(pid)
    scope = proc.ptrace_scope()
    if not its:
        return DumpFailed("no permission to read the process or its status", ALLOW_ATTACHING, is_denied=True)
    if scope == 3:
        remedy = "Reboot the host with another value of kernel.yama.ptrace_scope."
        reason = "no permission: kernel.yama.ptrace_scope is 3, which forbids it to all users"
        return DumpFailed(reason, remedy, cause="permission")
    if os.geteuid() == 0 or capabilities(own, "CapEff") & CAP_SYS_PTRACE:
        return _why_root_is_denied(own, its)
    user = its.get("Uid", "").split()[1:2]
    if user != [str(os.geteuid())]:
        remedy = f"Run dstack as the user who runs Ray (uid {' '.join(user)}) or as root."
        return DumpFailed("no permission: the process belongs to another user", remedy, is_denied=True)
    if proc.owner(pid) not in (None, os.geteuid()):
        remedy = "Run dstack as root: the process forbids reading (prctl PR_SET_DUMPABLE) or was started setuid."
        return DumpFailed("no permission: the process is not dumpable", remedy, is_denied=True)
    if capabilities(its, "CapPrm") & ~capabilities(own, "CapPrm"):
        remedy = "Run dstack as root."
        return DumpFailed("no permission: the process has capabilities that dstack lacks", remedy, is_denied=True)
    if scope:
        return DumpFailed(
            f"no permission: kernel.yama.ptrace_scope is {scope}, only root may read other processes",
            _allow(own, ALLOW_ATTACHING),
            is_denied=True,
        )
    return DumpFailed("no permission to read the process", _allow(own, ALLOW_ATTACHING), is_denied=True)


def last_words(stderr: str) -> str:
    """The first line of what py-spy said, without its ``Error:``."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return re.sub(r"^Error: ", "", lines[0])[:300] if lines else "exited without output"


def _why_root_is_denied(own: dict[str, str], its: dict[str, str]) -> DumpFailed:
    if not capabilities(own, "CapEff") & CAP_SYS_PTRACE:
        return DumpFailed(
            "no permission: dstack runs without the capability SYS_PTRACE, as in a container",
            _allow(own, ALLOW_IN_DOCKER),
            cause="permission",
        )
    if own.get("Seccomp") == "2":
        reason = "no permission: a seccomp filter of the container forbids it"
        return DumpFailed(reason, ALLOW_IN_DOCKER, cause="permission")
    return DumpFailed(
        "no permission: the process is in another user namespace",
        "Run dstack on the host itself, or in the container of the process.",
        cause="permission",
    )


def _allow(own: dict[str, str], otherwise: str) -> str:
    """The remedy for the place where this process runs: a pod, a container, or neither.

    In a pod with the capability, a user other than root has it only through ``sudo``, which was tried before.
    """
    is_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if not capabilities(own, "CapBnd") & CAP_SYS_PTRACE:
        return ALLOW_IN_KUBERNETES if is_pod else ALLOW_IN_DOCKER
    return AS_ROOT_IN_KUBERNETES if is_pod and os.geteuid() != 0 else otherwise


def capabilities(status: dict[str, str], which: str) -> int:
    """The bits of a set of capabilities, such as ``CapEff``, in a ``/proc/PID/status``; none if they are unreadable."""
    try:
        return int(status.get(which, "0"), 16)
    except ValueError:
        return 0

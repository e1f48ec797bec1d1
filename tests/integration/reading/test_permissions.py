"""Processes that dstack may not read, or only with sudo; the tests drop the permissions really."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dstack.probes.node.pyspy import find_pyspy
from tests.paths import PROGRAMS
from tests.processes import running, wait_until
from tests.sampling import IN_RAY_GET

Json = dict[str, Any]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop permissions and change its user")

OTHER_USER = 65534
AS_OTHER_USER = (
    *("setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),  # to read the checkout
)
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace")
BELOW = """
import sys
from dstack.probes.node.procfs.children import Families
print([*Families([int(sys.argv[1])]).below(int(sys.argv[1]))])
"""
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print("ready", os.getpid(), flush=True)
else:
    os.wait()
time.sleep(1000)
"""
NOT_DUMPABLE = (
    "import ctypes; ctypes.CDLL(None).prctl(4, 0); " + "import time; print('ready', flush=True); time.sleep(1000)"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every user can read."""
    path = Path(tempfile.mkdtemp(prefix="dsk", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def in_ray_get(folder: Path) -> Iterator[int]:
    """The pid of a process of root in a function that resembles Ray's blocking one."""
    file = folder / "ray" / "_private" / "worker.py"
    file.parent.mkdir(parents=True)
    file.write_text(IN_RAY_GET)
    with python(folder, str(file)) as pid:
        yield pid


@contextmanager
def python(folder: Path, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[int]:
    with running([*prefix, sys.executable, *arguments], os.environ, folder / "log") as child:
        child.wait_for_line("ready", deadline_s=20)
        yield child.pid


def sample(pid: int, pyspy: Path, prefix: Sequence[str] = (), path: Path | None = None) -> Json:
    """The answer of a probe that runs under ``prefix``, with the commands in ``path`` before all others."""
    found = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
    environment = {**os.environ, "PATH": found}
    command = [*prefix, sys.executable, str(PROGRAMS / "tools/sample_process.py"), str(pid), str(pyspy)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answer: Json = json.loads(done.stdout)
    return answer


def own_pyspy(folder: Path, mode: int) -> Path:
    found = find_pyspy()
    assert found is not None
    copy = folder / f"py-spy-{mode:o}"
    shutil.copy(found, copy)
    copy.chmod(mode)
    return copy


def command(folder: Path, script: str) -> Path:
    """A directory with a ``sudo`` that runs this script."""
    file = folder / "bin" / "sudo"
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file.parent


def reasons(answer: Json) -> str:
    return "; ".join(f"{failure['reason']} {failure['remedy']}" for failure in answer["failures"])


def assert_in_ray_get(answer: Json, access: str) -> None:
    process = answer["processes"]["w"]
    assert process["access"] == access
    main = next(thread for thread in process["threads"] if thread["call"])
    assert main["call"]["site"] == "ray.get"
    assert main["call"]["need"]["kind"] == "held refs"
    assert main["call"]["timeout_s"] is None


def test_a_setuid_pyspy_shows_stacks_without_memory(in_ray_get: int, folder: Path) -> None:
    answer = sample(in_ray_get, own_pyspy(folder, 0o4755), AS_OTHER_USER)

    assert_in_ray_get(answer, "setuid py-spy")
    assert "its memory could not be read: no permission: the process belongs to another user" in reasons(answer)


def test_sudo_is_the_fallback_without_permission_and_never_asks_for_a_password(in_ray_get: int, folder: Path) -> None:
    as_root = own_pyspy(folder, 0o4755)
    sudo = command(folder, f'[ "$1 $2" = "-n --" ] && [ ! -t 0 ] || exit 9; shift 3; exec {as_root} "$@"')
    answer = sample(in_ray_get, own_pyspy(folder, 0o755), AS_OTHER_USER, sudo)

    assert_in_ray_get(answer, "py-spy via sudo")


@pytest.mark.parametrize("says", ["echo 'sudo: a password is required' >&2; exit 1", "exec sleep 1000"])
def test_a_failing_sudo_changes_nothing(in_ray_get: int, folder: Path, says: str) -> None:
    began = time.monotonic()
    answer = sample(in_ray_get, own_pyspy(folder, 0o755), AS_OTHER_USER, command(folder, says))

    assert not answer["processes"]["w"]["threads"]
    assert "the process belongs to another user Run dstack as the user who runs Ray (uid 0)" in reasons(answer)
    assert time.monotonic() - began < 40


def test_sudo_is_not_used_with_permission(in_ray_get: int, folder: Path) -> None:
    answer = sample(in_ray_get, own_pyspy(folder, 0o755), path=command(folder, f"touch {folder}/tried"))

    assert answer["processes"]["w"]["access"] == "memory"
    assert not (folder / "tried").exists()


def test_a_container_without_ptrace_is_named_as_the_reason(in_ray_get: int, folder: Path) -> None:
    answer = sample(in_ray_get, own_pyspy(folder, 0o755), WITHOUT_PTRACE)

    assert "without the capability SYS_PTRACE" in reasons(answer)
    assert "docker run --cap-add=SYS_PTRACE" in reasons(answer)


def below(pid: int, prefix: Sequence[str] = ()) -> list[int]:
    """The processes below this one for dstack under ``prefix``."""
    done = subprocess.run([*prefix, sys.executable, "-c", BELOW, str(pid)], capture_output=True, text=True, check=True)
    found: list[int] = json.loads(done.stdout)
    return found


def test_only_own_orphans_are_children(in_ray_get: int, folder: Path) -> None:
    with running([sys.executable, "-c", DAEMON], os.environ, folder / "daemon.log") as parent:
        orphan = int(parent.wait_for_line("ready", deadline_s=20).split()[1])
        try:
            assert below(parent.pid) == [orphan]
            assert below(in_ray_get) == []
            assert below(in_ray_get, WITHOUT_PTRACE) == []
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_a_process_that_is_not_dumpable_differs_from_one_of_another_user(folder: Path) -> None:
    with python(folder, "-c", NOT_DUMPABLE, prefix=AS_OTHER_USER) as pid:
        wait_until(lambda: psutil.Process(pid).uids().real == OTHER_USER, deadline_s=20, what=lambda: "another user")
        answer = sample(pid, own_pyspy(folder, 0o755), AS_OTHER_USER)

    assert "the process is not dumpable" in reasons(answer)


def test_a_process_that_is_not_python_is_reported(folder: Path) -> None:
    with running(["sh", "-c", "echo ready; sleep 1000 & wait"], os.environ, folder / "log") as child:
        child.wait_for_line("ready", deadline_s=20)
        answer = sample(child.pid, own_pyspy(folder, 0o755))

    assert "py-spy does not recognise it as a Python process" in reasons(answer)


def test_a_pyspy_for_another_machine_type_is_reported(in_ray_get: int, folder: Path) -> None:
    broken = folder / "py-spy"
    broken.write_bytes(b"\x7fELF" + b"\0" * 60)
    broken.chmod(0o755)

    assert "built for another kind of machine" in reasons(sample(in_ray_get, broken, AS_OTHER_USER))

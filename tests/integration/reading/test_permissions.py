"""What dstack makes of processes that it may not read, or not by itself: as who it is then, it really may not."""

from __future__ import annotations

import json
import os
import shutil
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

from dstack.probes.node.pyspy.runner import find_pyspy
from tests.paths import PROGRAMS
from tests.processes import running, wait_until
from tests.sampling import IN_RAY_GET

Json = dict[str, Any]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up, and another user to be")

NOBODY = 65534
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),  # to read this very file
)
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace")
NOT_DUMPABLE = (
    "import ctypes; ctypes.CDLL(None).prctl(4, 0); " + "import time; print('ready', flush=True); time.sleep(1000)"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can see."""
    path = Path(tempfile.mkdtemp(prefix="dsk", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def in_ray_get(place: Path) -> Iterator[int]:
    """The pid of a process of root's that is in what looks like Ray's blocking function."""
    file = place / "ray" / "_private" / "worker.py"
    file.parent.mkdir(parents=True)
    file.write_text(IN_RAY_GET)
    with python(place, str(file)) as pid:
        yield pid


@contextmanager
def python(place: Path, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[int]:
    with running([*prefix, sys.executable, *arguments], os.environ, place / "log") as child:
        child.wait_for_line("ready", deadline_s=20)
        yield child.pid


def look(pid: int, pyspy: Path, prefix: Sequence[str] = (), path: Path | None = None) -> Json:
    """What a probe tells that runs behind ``prefix``, with the commands in ``path`` before all others."""
    found = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
    environment = {**os.environ, "PATH": found}
    command = [*prefix, sys.executable, str(PROGRAMS / "tools/sample_process.py"), str(pid), str(pyspy)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told: Json = json.loads(done.stdout)
    return told


def own_pyspy(place: Path, mode: int) -> Path:
    found = find_pyspy()
    assert found is not None
    copy = place / f"py-spy-{mode:o}"
    shutil.copy(found, copy)
    copy.chmod(mode)
    return copy


def command(place: Path, script: str) -> Path:
    """A directory with a ``sudo`` that does what the script does."""
    file = place / "bin" / "sudo"
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file.parent


def reasons(told: Json) -> str:
    return "; ".join(f"{failure['reason']} {failure['remedy']}" for failure in told["failures"])


def assert_in_ray_get(told: Json, access: str) -> None:
    process = told["processes"]["w"]
    assert process["access"] == access
    main = next(thread for thread in process["threads"] if "call" in thread)
    assert (main["call"]["kind"], main["call"]["held"], main["call"]["timeout_s"]) == ("ray.get", True, None)


def test_a_setuid_pyspy_shows_stacks_without_memory(in_ray_get: int, place: Path) -> None:
    told = look(in_ray_get, own_pyspy(place, 0o4755), AS_NOBODY)

    assert_in_ray_get(told, "setuid py-spy")
    assert "its memory could not be read: no permission: the process belongs to another user" in reasons(told)


def test_sudo_is_the_fallback_without_permission_and_never_asks_for_a_password(in_ray_get: int, place: Path) -> None:
    as_root = own_pyspy(place, 0o4755)
    sudo = command(place, f'[ "$1 $2" = "-n --" ] && [ ! -t 0 ] || exit 9; shift 3; exec {as_root} "$@"')
    told = look(in_ray_get, own_pyspy(place, 0o755), AS_NOBODY, sudo)

    assert_in_ray_get(told, "py-spy via sudo")


@pytest.mark.parametrize("says", ["echo 'sudo: a password is required' >&2; exit 1", "exec sleep 1000"])
def test_a_failing_sudo_changes_nothing(in_ray_get: int, place: Path, says: str) -> None:
    began = time.monotonic()
    told = look(in_ray_get, own_pyspy(place, 0o755), AS_NOBODY, command(place, says))

    assert not told["processes"]["w"]["threads"]
    assert "the process belongs to another user Run dstack as the user who runs Ray (uid 0)" in reasons(told)
    assert time.monotonic() - began < 40


def test_sudo_is_not_used_with_permission(in_ray_get: int, place: Path) -> None:
    told = look(in_ray_get, own_pyspy(place, 0o755), path=command(place, f"touch {place}/tried"))

    assert told["processes"]["w"]["access"] == "memory"
    assert not (place / "tried").exists()


def test_a_container_without_ptrace_is_named_as_the_reason(in_ray_get: int, place: Path) -> None:
    told = look(in_ray_get, own_pyspy(place, 0o755), WITHOUT_PTRACE)

    assert "without the capability SYS_PTRACE" in reasons(told)
    assert "docker run --cap-add=SYS_PTRACE" in reasons(told)


def test_a_process_that_is_not_dumpable_differs_from_one_of_another_user(place: Path) -> None:
    with python(place, "-c", NOT_DUMPABLE, prefix=AS_NOBODY) as pid:
        wait_until(lambda: psutil.Process(pid).uids().real == NOBODY, deadline_s=20, what=lambda: "another user")
        told = look(pid, own_pyspy(place, 0o755), AS_NOBODY)

    assert "the process is not dumpable" in reasons(told)


def test_a_process_that_is_not_python_is_reported(place: Path) -> None:
    with running(["sh", "-c", "echo ready; sleep 1000 & wait"], os.environ, place / "log") as child:
        child.wait_for_line("ready", deadline_s=20)
        told = look(child.pid, own_pyspy(place, 0o755))

    assert "py-spy does not recognise it as a Python process" in reasons(told)


def test_a_pyspy_for_another_machine_type_is_reported(in_ray_get: int, place: Path) -> None:
    broken = place / "py-spy"
    broken.write_bytes(b"\x7fELF" + b"\0" * 60)
    broken.chmod(0o755)

    assert "built for another kind of machine" in reasons(look(in_ray_get, broken, AS_NOBODY))

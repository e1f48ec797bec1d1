"""What `dstack doctor` says about this machine; what it reads is replaced."""

from __future__ import annotations

import os
import platform

import pytest
import ray

from dstack.model.diagnosis import Level
from dstack.probes import this_host
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.procfs import proc
from dstack.probes.this_host import host_checks

PTRACE = "0000000000080000"
NONE = "0000000000000000"


def check(number: int) -> tuple[Level, str, str | None]:
    one = host_checks()[number]
    return one.level, one.text, one.remedy


@pytest.mark.parametrize(
    ("effective", "scope", "uid", "level", "says"),
    [
        (PTRACE, 0, 0, "ok", "may read all processes here"),
        (PTRACE, 2, 0, "ok", "may read all processes here"),
        (NONE, 0, 1000, "ok", "may read the processes of this user here"),
        (NONE, 1, 1000, "limit", "kernel.yama.ptrace_scope 1: may not read Ray's processes here"),
        (NONE, 0, 0, "limit", "may not read Ray's processes here"),
        (PTRACE, 3, 0, "failure", "kernel.yama.ptrace_scope 3 forbids to read any process"),
    ],
)
def test_the_permission_follows_from_the_capability_the_user_and_yama(
    monkeypatch: pytest.MonkeyPatch, effective: str, scope: int, uid: int, level: str, says: str
) -> None:
    monkeypatch.setattr(proc, "status", lambda pid: {"CapEff": effective})
    monkeypatch.setattr(proc, "ptrace_scope", lambda: scope)
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    found, text, remedy = check(4)
    assert (found, says in text) == (level, True), text
    assert (remedy is None) == (level == "ok")


def test_a_missing_pyspy_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_host, "find_pyspy", lambda: None)

    assert check(5) == ("limit", "no py-spy, so no --native, --pause or --gil", "Install it: pip install py-spy.")


def test_the_known_layouts_are_that_of_this_python_and_the_saved_ones() -> None:
    level, text, _ = check(6)

    version = ".".join(platform.python_version_tuple()[:2])
    assert (level, text.split(", and ")[0]) == ("ok", f"memory layouts: CPython {version} as it is here")
    assert "saved for 3.10, 3.11, 3.12, 3.13, 3.14 and 3.15" in text


def test_a_build_with_an_unknown_layout_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UnreadableMemory("it runs a free-threaded build of Python 3.13, which dstack cannot read")

    monkeypatch.setattr(this_host, "own_layout", refuse)

    level, text, remedy = check(6)
    assert (level, "free-threaded" in text) == ("limit", True)
    assert "py-spy" in str(remedy)


def test_an_unsupported_ray_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.45.1")

    assert check(2) == ("failure", "Ray 2.45.1: not supported", "Use Ray 2.46 or later, that of the cluster.")


def test_the_installed_ray_has_all_pieces() -> None:
    level, text, _ = check(3)

    assert (level, "pieces that dstack reads" in text) == ("ok", True)


def test_another_platform_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    assert check(0)[0] == "failure"


def test_another_python_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "9", "1"))

    assert check(1)[0] == "failure"


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("2.46.0", "dstack is tested with it"),
        ("2.60.1", "dstack is tested with it"),
        ("2.53.0", "not tested with dstack, whose tests run with earlier and later ones"),
        ("2.61.0", "not tested with dstack, whose tests run with Ray up to 2.60"),
    ],
)
def test_a_supported_version_of_ray_is_said_to_be_tested_or_not(
    monkeypatch: pytest.MonkeyPatch, version: str, says: str
) -> None:
    monkeypatch.setattr(ray, "__version__", version)
    assert check(2) == ("ok", f"Ray {version}: {says}", None)

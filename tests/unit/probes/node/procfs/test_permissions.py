"""Reasons why a process is unreadable, by the kernel's figures for it and for the reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import CAP_SYS_PTRACE, why_denied, why_dump_failed

PID = os.getpid()
ALL = f"{(1 << 41) - 1:x}"
NONE, WITHOUT = "0", f"{(1 << 41) - 1 & ~CAP_SYS_PTRACE:x}"


Shows = Callable[..., None]


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shows:
    """Set the kernel's figures for this process, for the other, and the host's ptrace scope."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(proc, "PTRACE_SCOPE", str(scope))

    def shows(uid: int, own: dict[str, str], its_uid: int, its: str = NONE, ptrace: int | None = None) -> None:
        statuses = {"self": own, PID: {"Uid": f"{its_uid}\t{its_uid}\t0\t0", "CapPrm": its}}
        monkeypatch.setattr(proc, "status", lambda pid: statuses[pid])
        monkeypatch.setattr(proc, "owner", lambda pid: its_uid)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        if ptrace is not None:
            scope.write_text(f"{ptrace}\n")

    return shows


def user(bound: str = ALL) -> dict[str, str]:
    return {"CapEff": NONE, "CapPrm": NONE, "CapBnd": bound}


def root(capabilities: str = ALL, seccomp: str = "0") -> dict[str, str]:
    return {"CapEff": capabilities, "CapPrm": capabilities, "CapBnd": capabilities, "Seccomp": seccomp}


def test_yama_is_named_with_its_sysctl(shows: Shows) -> None:
    shows(uid=1000, own=user(), its_uid=1000, ptrace=1)

    refused = why_denied(PID)

    assert "kernel.yama.ptrace_scope is 1" in refused.reason
    assert "sysctl kernel.yama.ptrace_scope=0" in str(refused.remedy)
    assert refused.is_denied


def test_an_irreversible_yama_setting_has_another_remedy(shows: Shows) -> None:
    shows(uid=0, own=root(), its_uid=0, ptrace=3)

    assert "ptrace_scope is 3" in why_denied(PID).reason
    assert not why_denied(PID).is_denied


def test_the_remedy_for_yama_in_a_container_is_the_capability(shows: Shows, monkeypatch: pytest.MonkeyPatch) -> None:
    shows(uid=1000, own=user(WITHOUT), its_uid=1000, ptrace=1)
    assert "docker run --cap-add=SYS_PTRACE" in str(why_denied(PID).remedy)

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert "securityContext" in str(why_denied(PID).remedy)


def test_the_remedy_in_a_pod_with_the_capability_is_the_user_root(
    shows: Shows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    shows(uid=1000, own=user(), its_uid=1000, ptrace=1)

    assert "runAsUser: 0" in str(why_denied(PID).remedy)


def test_reasons_for_root_are_specific(shows: Shows) -> None:
    shows(uid=0, own=root(WITHOUT), its_uid=0)
    assert "without the capability SYS_PTRACE" in why_denied(PID).reason

    shows(uid=0, own=root(seccomp="2"), its_uid=0)
    assert "seccomp" in why_denied(PID).reason

    shows(uid=0, own=root(), its_uid=0)
    assert "user namespace" in why_denied(PID).reason


def test_the_owner_of_a_process_is_checked_before_its_capabilities(shows: Shows) -> None:
    shows(uid=1000, own=user(), its_uid=1001, its=ALL, ptrace=1)
    assert "belongs to another user" in why_denied(PID).reason
    assert "uid 1001" in str(why_denied(PID).remedy)

    shows(uid=1000, own=user(), its_uid=1000, its=ALL, ptrace=0)
    assert "capabilities that dstack lacks" in why_denied(PID).reason


def test_other_messages_of_pyspy_are_passed_on() -> None:
    failed = why_dump_failed(PID, "Error: Failed to find python version from target process\n\nCaused by: x\n")
    assert failed.reason.startswith("py-spy does not recognise it as a Python process")

    assert why_dump_failed(PID, "Error: out of luck\n").reason == "py-spy: out of luck"
    assert why_dump_failed(PID, "").reason == "py-spy: exited without output"

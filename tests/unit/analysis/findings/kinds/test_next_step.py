"""The next step: one thing to inspect, where no change is known to resolve a finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Advice
from dstack.observed.processes import Frame, Halt
from dstack.report.summaries import headline
from dstack.report.text import report_text
from tests.unit.analysis.findings.kinds.small_findings import only_finding
from tests.unit.scenes import Scene, SceneProcess


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("/venv/ray/util/rpdb.py", "Run `ray debug`: a breakpoint is open in work at train.py:12"),
        (
            "/venv/ray/util/debugpy.py",
            "Attach the Ray Distributed Debugger: a breakpoint is open in work at train.py:12",
        ),
    ],
)
def test_an_open_breakpoint_is_the_next_step(file: str, words: str) -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.gets(call)
    worker.slots[0].leaf = Frame(function="listen", file=file, line=7, origin="ray")
    worker.slots[0].outer = (Frame(function="work", file="/app/train.py", line=12, origin="user"),)

    advice = only_finding(scene.diagnose()).advice

    assert advice is not None
    assert (advice.kind, advice.text.startswith(words)) == ("next", True)


STOPPED = Halt(kind="stopped")
IN_DRIVER = Halt(kind="uninterruptible", by="nfs_wait_on_request", os_thread_id=1)


@pytest.mark.parametrize(
    ("halt", "state", "next_step"),
    [
        (STOPPED, "stopped by a signal until SIGCONT", "`kill -CONT {pid}` on its node lets the process go on"),
        (
            Halt(kind="traced", by="gdb", tracer=7),
            "stopped by gdb (pid 7), which traces it",
            "Detach or end gdb (pid 7) on its node",
        ),
        (Halt(kind="dumps core"), "writing a core dump: it has crashed", "The core dump of the process with pid {pid}"),
        (
            IN_DRIVER,
            "in uninterruptible sleep in nfs_wait_on_request of the kernel",
            "`cat /proc/{pid}/task/{tid}/stack`",
        ),
    ],
)
def test_a_process_that_the_kernel_does_not_run_is_not_said_to_run(halt: Halt, state: str, next_step: str) -> None:
    scene, worker = _waiting()
    worker.known["halt"] = replace(halt, os_thread_id=halt.os_thread_id and worker.threads[0].tid)

    diagnosis = scene.sample().sample().diagnose()

    finding = only_finding(diagnosis)
    pid, tid = str(worker.worker.pid), str(worker.threads[0].tid)
    assert headline(diagnosis).startswith(f"driver train.py waits for work, {state} at ")
    assert any(f" is {state}; 1 waiter depends on it" in step.text for step in finding.explanation)
    assert finding.advice is not None
    assert finding.advice.text.startswith(next_step.format(pid=pid, tid=tid))


def test_a_waiter_that_is_stopped_has_its_wait_too() -> None:
    scene, worker = _waiting()
    scene.procs[0].known["halt"] = STOPPED

    text = report_text(AnalysedSnapshot.of(scene.sample().sample().snapshot()), details=True)

    assert "waits in ray.get for work (→2); it is stopped by a signal until SIGCONT" in " ".join(text.split())
    assert worker.known == {}


def test_an_uninterruptible_sleep_of_a_moment_is_not_reported() -> None:
    scene, worker = _waiting()
    worker.known["halt"] = replace(IN_DRIVER, os_thread_id=worker.threads[0].tid)
    scene.sample()
    del worker.known["halt"]

    assert "uninterruptible" not in str(scene.sample().diagnose())
    worker.known["halt"] = replace(IN_DRIVER, os_thread_id=worker.threads[0].tid + 1)
    assert "uninterruptible" not in headline(scene.diagnose())


def _waiting() -> tuple[Scene, SceneProcess]:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.gets(call)
    return scene, worker


def test_advice_is_printed_with_its_kind() -> None:
    assert str(Advice(kind="fix", text="Take it.")) == "Fix: Take it."
    assert str(Advice(kind="next", text="See it.")) == "Next: See it."

"""The language of a process, and the tools that print its stacks: real gdb, and scripts in place of the tools."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dstack.observed.calls import Call, HeldRefs, Unreadable
from dstack.probes.node import other_languages
from dstack.probes.node.blocked_calls.blocked_call import Surroundings
from dstack.probes.node.jstack_and_gdb import NativeThread, RayCall
from dstack.probes.node.other_languages import CPP, JAVA, Language, language_of, threads_of
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.procfs.proc import Mapping
from dstack.probes.node.reading import ProcessReading, Request
from dstack.probes.node.threads import Position
from tests.processes import wait_until

SLEEP = shutil.which("sleep") or "/bin/sleep"
DUMP = '"main" #1 prio=5 nid=0x7 runnable\n\tat Main.main(Main.java:3)\n'


def mapped(*paths: str) -> list[Mapping]:
    return [Mapping(0, 1, 0, ("fd:00", str(index)), path) for index, path in enumerate(paths)]


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps and handles no SIGQUIT."""
    with subprocess.Popen([SLEEP, "100"]) as process:
        try:
            wait_until(lambda: is_asleep(process.pid), deadline_s=30, what=lambda: f"sleep: {proc.state(process.pid)}")
            yield process.pid
        finally:
            process.kill()


def is_asleep(pid: int) -> bool:
    """Whether it has become the program, and sleeps."""
    return os.path.basename(proc.program(pid)) in ("sleep", "busybox", "coreutils") and proc.state(pid) == "S"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on the PATH, besides those of the system for scripts."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def script(path: Path, text: str) -> None:
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{text}\n")
    path.chmod(0o755)


def is_unharmed(pid: int) -> bool:
    """Whether the process was neither ended nor left stopped or traced."""
    return proc.state(pid) in ("R", "S") and proc.tracer(pid) == 0


def failure(language: object, pid: int, timeout_s: float = 30.0) -> DumpFailed:
    assert language in (JAVA, CPP)
    with pytest.raises(DumpFailed) as caught:
        threads_of(JAVA if language is JAVA else CPP, pid, timeout_s)
    return caught.value


@pytest.mark.parametrize(
    ("paths", "language"),
    [
        (("/usr/bin/java", "/tmp/ray/1795649995344/libcore_worker_library_java.so"), JAVA),
        (("/tmp/ray/1/libcore_worker_library_java.so (deleted)",), JAVA),
        (("/app/restaurant", "/site-packages/ray/cpp/lib/libray_api.so"), CPP),
        (("/usr/bin/python3", "/usr/lib/jvm/lib/server/libjvm.so"), None),
        ((), None),
    ],
)
def test_a_language_is_that_of_rays_library(paths: tuple[str, ...], language: object) -> None:
    assert language_of(mapped(*paths)) is language


def test_this_python_is_no_other_language() -> None:
    assert language_of(proc.mapped_files(os.getpid()).values()) is None


def test_a_missing_tool_is_named_with_the_remedy(tools: Path, sleeper: int) -> None:
    java, cpp = failure(JAVA, sleeper), failure(CPP, sleeper)

    assert java.reason == "it runs Java, and jstack was not found on its node"
    assert (java.remedy or "").startswith("Install the JDK")
    assert (cpp.reason, cpp.cause) == ("it runs C++, and gdb was not found on its node", "missing")


def test_jstack_is_not_run_where_its_signal_would_end_the_process(tools: Path, sleeper: int) -> None:
    script(tools / "jstack", f"os.kill(int(sys.argv[1]), {int(signal.SIGQUIT)})")

    assert "handles no SIGQUIT" in failure(JAVA, sleeper).reason
    assert is_unharmed(sleeper)


def test_threads_are_those_that_the_tool_prints(tools: Path) -> None:
    script(tools / "jstack", f"print({DUMP!r})")
    handles = (
        "import signal, time; signal.signal(signal.SIGQUIT, lambda *_: None); print(1, flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", handles], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        (thread,) = threads_of(JAVA, process.pid, 30)
        process.kill()

    assert (thread.os_thread_id, thread.positions[0].qualified) == (7, "Main.main")


def test_a_tool_that_hangs_is_killed_and_leaves_the_process_running(tools: Path, sleeper: int) -> None:
    script(tools / "gdb", f"os.kill({sleeper}, {int(signal.SIGSTOP)}); time.sleep(100)")

    found = failure(CPP, sleeper, timeout_s=3.0)

    assert (found.reason, found.cause) == ("gdb timed out after 3.0 s", "timeout")
    assert is_unharmed(sleeper)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pass", "the output of gdb has no threads"),
        ("sys.stderr.write('warning: x\\nno such process\\n')", "gdb failed: no such process"),
        ("sys.stderr.write('Picked up JAVA_TOOL_OPTIONS: -X')", "the output of gdb has no threads"),
        ("sys.stderr.write(os.environ['LC_ALL'])", "gdb failed: C"),
        ("sys.stderr.write('ptrace: Operation not permitted.')", "no permission"),
    ],
)
def test_output_without_threads_has_a_reason(tools: Path, sleeper: int, text: str, reason: str) -> None:
    script(tools / "gdb", text)

    assert failure(CPP, sleeper).reason.startswith(reason)


def test_a_tool_that_does_not_start_is_named(tools: Path, sleeper: int) -> None:
    (tools / "gdb").write_bytes(b"\x7fELF")
    (tools / "gdb").chmod(0o755)

    assert failure(CPP, sleeper).reason.startswith("gdb could not be started: ")


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
def test_gdb_reads_a_process_and_leaves_it_running(sleeper: int) -> None:
    (thread,) = threads_of(CPP, sleeper, 60)

    assert thread.os_thread_id == sleeper
    assert any("nanosleep" in one.qualified for one in thread.positions)
    assert is_unharmed(sleeper)


PID = 2**30
POSITIONS = (Position("Ray.java", "get", "io.ray.api.Ray.get", 83), Position("Main.java", "run", "Main.run", 3))
MAIN = NativeThread(PID + 1, "main", POSITIONS, is_main=True)


def request(*, native: bool = True, is_driver: bool = False) -> Request:
    options = {"native": native, "locals": False, "pause": native, "children": False, "deadline_s": 9.0}
    return Request(
        pid=PID,
        title="java",
        is_driver=is_driver,
        is_child=False,
        around=Surroundings(),
        thread_context=None,
        options={**options, "thread_context": None},  # type: ignore[typeddict-item]
        deadline=time.monotonic() + 9,
    )


def reading(
    monkeypatch: pytest.MonkeyPatch, *threads: NativeThread, language: Language = JAVA, is_driver: bool = False
) -> ProcessReading:
    monkeypatch.setattr(other_languages, "threads_of", lambda *_: [*threads])
    return other_languages.read_with_tool(language, request(is_driver=is_driver))


@pytest.mark.parametrize(("language", "tool"), [(JAVA, "jstack"), (CPP, "gdb")])
def test_without_native_only_the_language_is_named_with_the_option(language: Language, tool: str) -> None:
    with pytest.raises(DumpFailed) as caught:
        other_languages.read_with_tool(language, request(native=False))

    assert caught.value.reason == f"it runs {language.name}, whose stacks are read only with --native"
    assert caught.value.remedy == (
        f"Use dstack check --native: {tool} then reads them on its node, and pauses the process."
    )


def test_the_reading_names_the_tool_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reading(monkeypatch, MAIN)

    assert found.access == "jstack"
    assert [one.reason for one in found.problems] == [
        "it runs Java: its locks, and the refs of its calls, could not be read"
    ]
    assert not found.has_tasks


@pytest.mark.parametrize(
    ("thread", "is_driver", "role"),
    [
        (replace(MAIN, runs_task=True), False, "task"),
        (MAIN, False, "ray"),
        (MAIN, True, "user"),
        (NativeThread(PID, "driver", POSITIONS, is_service=True), True, "user"),
        (NativeThread(8, "Finalizer", POSITIONS, is_service=True), True, "ray"),
        (NativeThread(8, "pool-1", POSITIONS), False, "user"),
        (NativeThread(8, "pool-1", POSITIONS, runs_task=True), False, "task"),
    ],
)
def test_roles(monkeypatch: pytest.MonkeyPatch, thread: NativeThread, is_driver: bool, role: str) -> None:
    (found,) = reading(monkeypatch, thread, is_driver=is_driver).threads

    assert found.role == role


def test_the_main_thread_has_the_id_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    main, other = reading(monkeypatch, MAIN, NativeThread(8, "pool-1", POSITIONS)).threads

    assert (main.thread.os_thread_id, other.thread.os_thread_id) == (PID, 8)


def test_only_a_call_that_certainly_has_no_timeout_is_a_wait_for_held_refs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [RayCall("ray.get", 0, is_endless=True), RayCall("ray.get", 0, is_endless=False), None]

    found = reading(monkeypatch, *(replace(MAIN, call=call) for call in calls))

    assert [one.call for one in found.threads] == [
        Call(site="ray.get", frame=0, need=HeldRefs()),
        Call(site="ray.get", frame=0, need=Unreadable(reason="its timeout could not be read")),
        None,
    ]


def test_a_running_thread_is_in_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "threads", lambda _: [MAIN.os_thread_id])
    monkeypatch.setattr(proc, "thread_state", lambda *_: "R")

    (found,) = reading(monkeypatch, replace(MAIN, call=RayCall("ray.get", 0, is_endless=True))).threads

    assert (found.thread.is_running, found.call) == (True, None)

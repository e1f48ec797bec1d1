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
from hypothesis import given
from hypothesis import strategies as st

from dstack.observed.calls import Call, HeldRefs, Unreadable
from dstack.probes.node import other_languages
from dstack.probes.node.other_languages import (
    CPP,
    JAVA,
    MAX_NAME,
    UNREAD,
    Language,
    NativeThread,
    language_of,
    parse_gdb,
    parse_jstack,
    short_name,
    threads_of,
)
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.procfs.proc import Mapping
from dstack.probes.node.system_calls import Surroundings
from dstack.probes.node.target_process import ProcessReading, ReadRequest
from dstack.probes.node.thread_stacks import CodePosition
from tests.processes import wait_until

GET = "\tat io.ray.runtime.AbstractRayRuntime.get(AbstractRayRuntime.java:{})\n"
IN_NATIVE_GET = """\
"main" #1 prio=5 os_prio=0 cpu=773.10ms elapsed=12.03s tid=0x00007f5a10018d70 nid=0xc47 runnable  [0x00007f5a15919000]
   java.lang.Thread.State: RUNNABLE
\tat io.ray.runtime.object.NativeObjectStore.nativeGet(Native Method)
\tat io.ray.runtime.object.NativeObjectStore.getRaw(NativeObjectStore.java:43)
\tat io.ray.runtime.object.ObjectStore.get(ObjectStore.java:104)
"""
BELOW_GET = """\
\tat io.ray.api.Ray.get(Ray.java:83)
\tat io.ray.runtime.object.ObjectRefImpl.get(ObjectRefImpl.java:77)
\t- locked <0x000000069e8bf468> (a io.ray.runtime.object.ObjectRefImpl)
\tat Restaurant$Waiter.order(Restaurant.java:15)
\tat jdk.internal.reflect.NativeMethodAccessorImpl.invoke0(java.base@17.0.15/Native Method)
\tat java.lang.reflect.Method.invoke(java.base@17.0.15/Method.java:569)
\tat io.ray.runtime.task.TaskExecutor.execute(TaskExecutor.java:140)
\tat io.ray.runtime.runner.worker.DefaultWorker.main(DefaultWorker.java:15)

   Locked ownable synchronizers:
\t- None

"""
OTHERS = """\
"Finalizer" #3 daemon prio=8 os_prio=0 cpu=0.15ms elapsed=12.01s tid=0x00007f5a100fa640 nid=0xc54 in Object.wait()
   java.lang.Thread.State: WAITING (on object monitor)
\tat java.lang.Object.wait(java.base@17.0.15/Native Method)
\t- waiting on <0x0000000687400788> (a java.lang.ref.ReferenceQueue$Lock)

"VM Thread" os_prio=0 cpu=1.00ms elapsed=12.00s tid=0x00007f5a100f5000 nid=0xc52 runnable
"""
HEADER = """\
2026-11-25 23:40:08
Full thread dump OpenJDK 64-Bit Server VM (17.0.15+6-Debian-1deb12u1 mixed mode, sharing):

"""


def call_at(site: str, *, frame: int, is_endless: bool) -> Call:
    return Call(site=site, frame=frame, need=HeldRefs() if is_endless else Unreadable(reason=UNREAD))


def in_get(*lines: int) -> str:
    return HEADER + IN_NATIVE_GET + "".join(map(GET.format, lines)) + BELOW_GET + OTHERS


def test_the_frames_of_a_task_in_java_are_read_with_their_files_lines_and_origins() -> None:
    main, _ = parse_jstack(in_get(128, 109, 104))

    assert (main.os_thread_id, main.name, main.runs_task, main.is_main, main.is_service) == (
        0xC47, "main", True, True, False
    )  # fmt: skip
    waiter = main.positions[8]
    assert (waiter.qualified, waiter.function, waiter.file, waiter.line, waiter.origin) == (
        "Restaurant$Waiter.order", "order", "Restaurant.java", 15, "user"
    )  # fmt: skip
    assert [one.origin for one in main.positions] == [*["ray"] * 8, "user", "stdlib", "stdlib", "ray", "ray"]
    native = main.positions[0]
    assert (native.file, native.line) == ("NativeObjectStore.java", 0)


def test_threads_of_the_virtual_machine_are_left_out_and_its_daemons_are_service_threads() -> None:
    _, finalizer = parse_jstack(in_get(128, 109, 104))

    assert (finalizer.name, finalizer.is_service, finalizer.is_main) == ("Finalizer", True, False)


def test_only_the_get_without_a_timeout_calls_itself_twice() -> None:
    calls = [parse_jstack(in_get(*lines))[0].call for lines in ((128, 109, 104), (128, 109), (128, 113), (128,))]

    assert calls[0] == call_at("ray.get", frame=7, is_endless=True)
    assert calls[1:] == [call_at("ray.get", frame=frame, is_endless=False) for frame in (6, 6, 5)]


def test_a_wait_has_a_timeout_that_is_unknown() -> None:
    text = in_get().replace("nativeGet", "nativeWait")

    assert parse_jstack(text)[0].call == call_at("ray.wait", frame=4, is_endless=False)


def test_code_of_the_user_below_which_ray_waits_is_no_call() -> None:
    text = in_get(128, 109, 104).replace("\tat io.ray", "\tat Callback.run(Callback.java:3)\n\tat io.ray", 1)

    assert parse_jstack(text)[0].call is None


def test_calls_of_ray_by_itself_and_further_out_do_not_count() -> None:
    by_ray = in_get(128, 109, 104).replace("Restaurant$Waiter", "io.ray.runtime.Waiter")
    outer = GET.format(109) + "\tat Main.main(Main.java:3)\n"
    nested = in_get(128, 109).replace("\tat jdk", outer + "\tat jdk", 1)

    assert parse_jstack(by_ray)[0].call is None
    assert parse_jstack(nested)[0].call == call_at("ray.get", frame=6, is_endless=False)


def test_thread_ids_may_be_decimal_as_in_jdk_21() -> None:
    text = in_get().replace('"main" #1 prio', '"main" #1 [3143] prio').replace("nid=0xc47", "nid=3143")

    assert parse_jstack(text)[0].os_thread_id == 3143


def test_thread_ids_of_any_other_form_begin_no_thread() -> None:
    assert parse_jstack(in_get().replace("nid=0xc47", "nid=007"))[0].os_thread_id == 7
    assert [one.name for one in parse_jstack(in_get().replace("nid=0xc47", "nid=" + "9" * 5_000))] == ["Finalizer"]


@given(
    st.lists(st.one_of(st.text(), st.sampled_from(in_get(128, 109).splitlines()), st.text().map('"{}" nid=1'.format)))
)
def test_any_text_of_jstack_is_parsed_within_bounds(lines: list[str]) -> None:
    for thread in parse_jstack("\n".join(lines)):
        assert 0 <= thread.os_thread_id < 2**31
        assert thread.positions
        for one in thread.positions:
            assert max(map(len, (one.file, one.function, one.qualified))) <= MAX_NAME + 5
            assert 0 <= one.line < 10**9


API = "/site-packages/ray/cpp/lib/libray_api.so"
INCLUDE = "/site-packages/ray/cpp/include/ray/api"
TEXT = f"""\
[New LWP 18438]
[Thread debugging using libthread_db enabled]
__futex_abstimed_wait_common64 (private=0, cancel=true) at ./nptl/futex-internal.c:57
57\t./nptl/futex-internal.c: No such file or directory.

Thread 2 (Thread 0x7ff8be7fc6c0 (LWP 18483) "event_engine"):
#0  syscall () at ../sysdeps/unix/sysv/linux/x86_64/syscall.S:38
#1  0x00007ff8d76edcc3 in grpc_core::(anonymous namespace)::ThreadInternalsPosix::ThreadInternalsPosix(char const*, \
void (*)(void*), void*, bool*)::{{lambda(void*)#1}}::_FUN(void*) () from {API}
#2  0x00007ff8d5f278ec in clone3 () at ../sysdeps/unix/sysv/linux/x86_64/clone3.S:81

Thread 1 (Thread 0x7ff8d5bfda80 (LWP 18400) "default_worker"):
#0  0x00007ff8d5ea3f7b in __GI___futex_abstimed_wait_cancelable64 () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007ff8d69bbf7c in ray::internal::AbstractRayRuntime::Get(std::basic_string<char, std::char_traits<char> > \
const&, int const&) () from {API}
#2  0x00007ff8d4156091 in ray::GetFromRuntime<int> (object=..., timeout_ms=@0x7fff2ffec124: -1) at {INCLUDE}/ref.h:125
#3  ray::Get<int> (object=...) at {INCLUDE}.h:248
#4  Cook::CookMeal (this=<optimized out>, password=0x1234 "secret") at /src/Restaurant.cc:35
#5  0x00007ff8d4157071 in std::__invoke_impl<int, int (*&)(int (Cook::* const&)())> (__f=<optimized out>) at \
/usr/include/c++/12/bits/invoke.h:61
#6  0x00007ff8d69dfbff in ray::internal::TaskExecutor::ExecuteTask(ray::rpc::Address const&) () from {API}
#7  0x0000000000400c1c in main ()
[Inferior 1 (process 18400) detached]
"""


def test_the_frames_of_a_task_in_cpp_are_read_with_their_files_lines_and_origins() -> None:
    service, task = parse_gdb(TEXT)

    assert (service.os_thread_id, service.name, service.is_service, service.runs_task) == (
        18483, "event_engine", True, False
    )  # fmt: skip
    assert (task.os_thread_id, task.is_service, task.runs_task) == (18400, False, True)
    cook = task.positions[4]
    assert (cook.qualified, cook.function, cook.file, cook.line) == (
        "Cook::CookMeal", "CookMeal", "/src/Restaurant.cc", 35
    )  # fmt: skip
    assert [one.origin for one in task.positions] == [
        "stdlib", "ray", "ray", "ray", "user", "stdlib", "ray", "user"
    ]  # fmt: skip
    assert [one.qualified for one in task.positions[5:]] == [
        "std::__invoke_impl", "ray::internal::TaskExecutor::ExecuteTask", "main"
    ]  # fmt: skip


def test_values_of_arguments_are_not_kept() -> None:
    assert "secret" not in repr(parse_gdb(TEXT))


def test_a_get_is_endless_if_its_timeout_is_shown_and_negative() -> None:
    texts = [
        TEXT,
        TEXT.replace("timeout_ms=@0x7fff2ffec124: -1", "timeout_ms=@0x7fff2ffec124: 5000"),
        TEXT.replace("timeout_ms=@0x7fff2ffec124: -1", "timeout_ms=<optimized out>"),
        TEXT.replace(", timeout_ms=@0x7fff2ffec124: -1", "").replace("password=", "timeout_ms=-1, password="),
    ]

    calls = [parse_gdb(text)[1].call for text in texts]

    assert calls == [call_at("ray.get", frame=3, is_endless=is_endless) for is_endless in (True, False, False, False)]


def test_a_thread_that_ray_itself_waits_in_has_no_call() -> None:
    assert parse_gdb(TEXT)[0].call is None


def test_a_process_with_one_thread_has_no_lwp() -> None:
    (thread,) = parse_gdb("\nThread 1 (process 77):\n#0  0x0000 in pause () from /lib/x86_64-linux-gnu/libc.so.6\n")

    assert (thread.os_thread_id, thread.name) == (77, "")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Cook::CookMeal", "Cook::CookMeal"),
        ("ray::Get<int>", "ray::Get"),
        ("std::vector<std::pair<int, A<B> > >::at(unsigned long) const", "std::vector::at"),
        ("absl::CondVar::WaitCommon(absl::Mutex*, absl::KernelTimeout) [clone .cold]", "absl::CondVar::WaitCommon"),
        ("(anonymous namespace)::run(int)", "(anonymous namespace)::run"),
        ("A::operator<<", "A::operator<<"),
        ("unbalanced(", "unbalanced("),
        ("unbalanced<", "unbalanced<"),
    ],
)
def test_names_are_without_parameters_and_arguments_of_templates(name: str, short: str) -> None:
    assert short_name(name) == short


@given(st.lists(st.one_of(st.text(), st.sampled_from(TEXT.splitlines()), st.text().map("#1  {}".format))))
def test_any_text_of_gdb_is_parsed_within_bounds(lines: list[str]) -> None:
    for thread in parse_gdb("\n".join(lines)):
        assert thread.positions
        for one in thread.positions:
            assert max(map(len, (one.file, one.function, one.qualified))) <= MAX_NAME
            assert 0 <= one.line < 10**9


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
POSITIONS = (CodePosition("Ray.java", "get", "io.ray.api.Ray.get", 83), CodePosition("Main.java", "run", "Main.run", 3))
MAIN = NativeThread(PID + 1, "main", POSITIONS, is_main=True)


def request(*, native: bool = True, is_driver: bool = False) -> ReadRequest:
    options = {"native": native, "locals": False, "pause": native, "children": False, "deadline_s": 9.0}
    return ReadRequest(
        pid=PID,
        title="java",
        is_driver=is_driver,
        is_child=False,
        around=Surroundings(),
        options=options,  # type: ignore[arg-type]
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
    calls = [call_at("ray.get", frame=0, is_endless=True), call_at("ray.get", frame=0, is_endless=False), None]

    found = reading(monkeypatch, *(replace(MAIN, call=call) for call in calls))

    assert [one.call for one in found.threads] == [
        Call(site="ray.get", frame=0, need=HeldRefs()),
        Call(site="ray.get", frame=0, need=Unreadable(reason="its timeout could not be read")),
        None,
    ]


def test_a_running_thread_is_in_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "threads", lambda _: [MAIN.os_thread_id])
    monkeypatch.setattr(proc, "thread_state", lambda *_: "R")

    (found,) = reading(monkeypatch, replace(MAIN, call=call_at("ray.get", frame=0, is_endless=True))).threads

    assert (found.thread.is_running, found.call) == (True, None)

"""The output of gdb: threads, frames and calls of Ray."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node.other_languages.gdb_text import parse_gdb, short_name
from dstack.probes.node.other_languages.stacks import MAX_NAME, RayCall

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


def test_the_frames_of_a_task_are_read_with_their_files_lines_and_origins() -> None:
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

    assert calls == [RayCall("ray.get", 3, is_endless=is_endless) for is_endless in (True, False, False, False)]


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
def test_any_text_is_parsed_within_bounds(lines: list[str]) -> None:
    for thread in parse_gdb("\n".join(lines)):
        assert thread.positions
        for one in thread.positions:
            assert max(map(len, (one.file, one.function, one.qualified))) <= MAX_NAME
            assert 0 <= one.line < 10**9

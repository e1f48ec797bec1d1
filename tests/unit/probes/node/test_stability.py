"""The call of a thread that ran during every reading is kept only if all readings agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dstack.observed.calls import Call, Refs, Unreadable
from dstack.probes.node.stability import UNPROVEN, unproven_call
from dstack.probes.node.thread_stacks import CodePosition, PythonThread, TextFrame

TID = 7
GET = Call(site="ray.get", frame=0, need=Refs(refs=("aa",)))


def thread(line: int = 10) -> PythonThread[TextFrame]:
    return PythonThread(0, TID, "", [TextFrame(CodePosition("app.py", "f", "f", line))])


def unproven(*calls: Call | None, lines: tuple[int, ...] = (10, 10, 10)) -> Call | None:
    return unproven_call([(thread(line), call) for call, line in zip(calls, lines, strict=True)])


def test_the_same_call_in_all_readings_may_be_a_wait_but_has_no_refs() -> None:
    assert unproven(GET, GET, GET) == Call(site="ray.get", frame=0, need=Unreadable(reason=UNPROVEN))


def test_other_refs_in_between_mean_that_the_thread_proceeds() -> None:
    assert unproven(GET, replace(GET, need=Refs(refs=("bb",))), GET) is None


def test_another_line_in_between_means_that_the_thread_proceeds() -> None:
    assert unproven(GET, GET, GET, lines=(10, 11, 10)) is None


def test_a_thread_that_has_left_the_line_by_the_last_reading_proceeds() -> None:
    assert unproven(GET, GET, GET, lines=(10, 10, 11)) is None


def test_a_frame_more_means_that_the_thread_proceeds() -> None:
    deeper = PythonThread(0, TID, "", [*thread().frames, *thread().frames])

    assert unproven_call([(thread(), GET), (deeper, GET)]) is None


@pytest.mark.parametrize("calls", [(GET, None, GET), (None, GET, GET), (GET, GET, None), (None, None, None)])
def test_a_thread_with_one_reading_outside_of_a_call_proceeds(calls: tuple[Call | None, ...]) -> None:
    assert unproven(*calls) is None


def test_a_call_that_could_not_be_read_is_no_proof() -> None:
    unread = replace(GET, need=Unreadable(reason="there is no local variable object_refs"))

    assert unproven(unread, unread, unread) is None


@pytest.mark.parametrize(("timeout_s", "is_found"), [(0.1, False), (60.0, True)])
def test_a_short_timeout_moves_a_thread_by_itself(timeout_s: float, is_found: bool) -> None:
    call = replace(GET, timeout_s=timeout_s)

    assert bool(unproven(call, call, call)) is is_found


@pytest.mark.parametrize("site", ["threading.Lock.acquire", "Future.result", "thread.join", "queue.Queue.get"])
def test_a_thread_is_woken_from_a_call_of_another_kind_only_to_proceed(site: str) -> None:
    call = replace(GET, site=site)

    assert unproven(call, call, call) is None


def test_no_reading_gives_no_call() -> None:
    assert unproven_call([]) is None

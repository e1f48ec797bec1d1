"""Who moved in every reading and was in the same call in all of them may be stuck; who was not goes on."""

from __future__ import annotations

from typing import Any

import pytest

from dstack.probes.node.procfs.restless import UNPROVEN, Restless

PID = 7
GET = {"kind": "ray.get", "frame": 0, "refs": ["aa"], "timeout_s": None}


def thread(line: int = 10) -> dict[str, Any]:
    return {"os_thread_id": PID, "frames": [{"filename": "app.py", "line": line}]}


def restless(*calls: dict[str, Any] | None, lines: tuple[int, ...] = (10, 10, 10), now: int = 10) -> dict[int, Any]:
    found = Restless()
    for call, line in zip(calls, lines, strict=True):
        found.note([thread(line)], {PID: call} if call else {})
    return found.calls([thread(now)], still=set())


def test_the_same_call_in_all_readings_may_be_a_wait_but_tells_no_refs() -> None:
    assert restless(GET, GET, GET) == {PID: {"kind": "ray.get", "frame": 0, "unread": UNPROVEN}}


def test_other_refs_in_between_mean_that_it_goes_on() -> None:
    assert restless(GET, {**GET, "refs": ["bb"]}, GET) == {}


def test_another_line_in_between_means_that_it_goes_on() -> None:
    assert restless(GET, GET, GET, lines=(10, 11, 10)) == {}


def test_who_has_left_the_line_by_the_last_reading_goes_on() -> None:
    assert restless(GET, GET, GET, now=11) == {}


def test_who_was_in_no_call_once_goes_on() -> None:
    assert restless(GET, None, GET) == {}


def test_who_is_proven_still_has_his_own_call() -> None:
    found = Restless()
    found.note([thread()], {PID: GET})

    assert found.calls([thread()], still={PID}) == {}


@pytest.mark.parametrize(("timeout_s", "is_found"), [(0.1, False), (60.0, True)])
def test_a_short_timeout_moves_a_thread_by_itself(timeout_s: float, is_found: bool) -> None:
    call = {**GET, "timeout_s": timeout_s}

    assert bool(restless(call, call, call)) is is_found


@pytest.mark.parametrize("kind", ["lock", "future", "thread.join", "other"])
def test_nobody_is_woken_in_a_call_of_another_kind_but_to_go_on(kind: str) -> None:
    call = {**GET, "kind": kind}

    assert restless(call, call, call) == {}


def test_nothing_was_read() -> None:
    assert Restless().calls([thread()], still=set()) == {}

"""Repeated calls are sequential, regular, and short compared with their interval."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dstack.model.snapshot import FunctionTimes, RecentEnds, RepeatedCall
from dstack.probes.connection.ray_stubs import common_pb2, gcs_pb2
from dstack.probes.ray_state.repeated_calls import (
    EndedCall,
    call_of,
    ends_of,
    function_times,
    recent_ends,
    repeated_calls,
)

DRIVER, ACTOR, JOB = "f" * 40 + "01000000", "2b" * 16, "01000000"
NOW = 1.7e9
"""The default end of the newest call."""


def calls(
    ends: Sequence[float], took_s: float = 0.002, name: str = "Buffer.size", actor: str = ACTOR, by: str = DRIVER
) -> list[EndedCall]:
    """Calls that ended at these times after ``NOW``."""
    return [EndedCall(JOB, name, actor, by, NOW + end - took_s, NOW + end) for end in ends]


def every(interval_s: float, count: int, last: float = 0.0) -> list[float]:
    return [last - interval_s * i for i in range(count)]


def found(*ended: Sequence[EndedCall], latest_at: float = NOW) -> tuple[RepeatedCall, ...]:
    shuffled = [call for part in ended for call in part]
    random.Random(7).shuffle(shuffled)
    return repeated_calls(shuffled, latest_at)


@pytest.mark.parametrize(("interval_s", "count"), [(0.01, 600), (0.5, 200), (1.0, 5), (3.0, 9)])
def test_a_poll_is_found_with_its_rate_and_start(interval_s: float, count: int) -> None:
    (call,) = found(calls(every(interval_s, count)))

    assert (call.name, call.actor_id, call.job_id, call.parent_task_id) == ("Buffer.size", ACTOR, JOB, DRIVER)
    assert (call.calls - 1) / call.over_s == pytest.approx(1 / interval_s, rel=0.01)
    assert call.over_s <= 10.0
    assert call.first_at == pytest.approx(NOW - interval_s * (count - 1) - 0.002)
    assert (call.last_at, call.other_calls) == (NOW, 0)
    assert call.longest_s == pytest.approx(0.002, abs=1e-4)


def test_an_interval_that_varies_is_still_regular() -> None:
    generator = random.Random(1)
    ends = [-sum(generator.uniform(0.3, 0.9) for _ in range(i)) for i in range(12)]

    assert len(found(calls(sorted(ends)))) == 1


@pytest.mark.parametrize(
    ("why", "ended"),
    [
        ("too few", calls(every(1.0, 2))),
        ("not at once", calls(every(2.0, 5), took_s=0.6)),
        ("all of the time", calls(every(0.1, 50), took_s=0.09)),
        ("one burst", calls([-0.001 * i for i in range(100)], took_s=0.2)),
        ("a short row", calls(every(0.01, 20))),
        ("bursts", calls([-2.0 * i - 0.01 * j for i in range(5) for j in range(4)])),
        ("at the same time", calls([*every(1.0, 9), *every(1.0, 9)])),
        ("no actor", calls(every(1.0, 9), actor="")),
        ("a clock that was set back", calls(every(1.0, 9), took_s=-0.1)),
    ],
)
def test_other_calls_are_no_polls(why: str, ended: list[EndedCall]) -> None:
    assert found(ended) == (), why


def test_calls_are_separate_by_caller_method_and_actor() -> None:
    one, two = calls(every(4.0, 3)), calls(every(4.0, 3, -2.0), actor="3c" * 16)
    third = calls(every(4.0, 3, -1.0), name="Buffer.is_full")
    fourth = calls(every(4.0, 2), by="4d" * 24)

    assert {(c.name, c.actor_id, c.calls) for c in found(one, two, third, fourth)} == {
        ("Buffer.size", ACTOR, 3),
        ("Buffer.size", "3c" * 16, 3),
        ("Buffer.is_full", ACTOR, 3),
    }


def test_other_calls_of_the_caller_are_counted() -> None:
    (call,) = found(calls(every(1.0, 9)), calls([-1.0, -2.0, -30.0], name="Buffer.fill"), calls([-1.5], by="4d" * 24))

    assert call.other_calls == 2


@pytest.mark.parametrize(("silent_s", "is_repeated"), [(1.5, True), (4.0, True), (8.0, False), (3600.0, False)])
def test_calls_that_stopped_are_not_repeated(silent_s: float, is_repeated: bool) -> None:
    by_another = calls([silent_s], name="Buffer.fill")

    assert len(found(calls(every(1.0, 9)), latest_at=NOW + silent_s)) == is_repeated
    assert len(found(calls(every(1.0, 9)), by_another, latest_at=NOW)) == is_repeated


def test_the_series_begins_after_the_last_pause() -> None:
    (call,) = found(calls([*every(1.0, 20), *every(1.0, 20, -100.0)]))

    assert call.first_at == pytest.approx(NOW - 19.002)


def test_a_job_has_the_ends_of_its_other_calls() -> None:
    polls, work = calls(every(1.0, 9)), calls([-41.0, -50.0], name="Trainer.step")

    assert ends_of([*polls, *work], found(polls, work)) == {JOB: [NOW - 50.0, NOW - 41.0]}
    assert ends_of(polls, found(polls)) == {}
    assert ends_of(polls, ())[JOB][-1] == NOW


def test_recent_ends_are_those_of_the_last_seconds_or_of_what_a_limited_reply_shows() -> None:
    ends = [NOW - 60.0, NOW - 8.0, NOW - 4.0, NOW - 2.0]

    assert recent_ends(ends, NOW, is_limited=False) == RecentEnds(tasks=3, over_s=10.0)
    assert recent_ends(ends, NOW + 30.0, is_limited=False) == RecentEnds(tasks=0, over_s=10.0)
    assert recent_ends(ends[1:], NOW, is_limited=True) == RecentEnds(tasks=3, over_s=8.0)


def test_functions_have_the_median_of_their_run_times() -> None:
    def call(name: str, began_at: float | None, took_s: float) -> EndedCall:
        return EndedCall(JOB, name, "", "", None, (began_at or NOW) + took_s, began_at)

    ended = [call("load", NOW, 1.0), call("load", NOW, 3.0), call("load", NOW, 1.1), call("save", None, 9.0)]

    assert function_times(ended) == {JOB: {"load": FunctionTimes(calls=3, usual_s=1.1)}}


def test_a_series_without_times_or_of_a_task_is_no_poll() -> None:
    row = gcs_pb2.TaskEvents(job_id=bytes.fromhex(JOB))
    row.task_info.type, row.task_info.name = common_pb2.NORMAL_TASK, "load"
    row.state_updates.state_ts_ns[common_pb2.FINISHED] = 2**63 - 1

    assert call_of(row) == EndedCall(JOB, "load", "", "", None, (2**63 - 1) / 1e9)
    assert repeated_calls([EndedCall(JOB, "f", ACTOR, DRIVER, None, None)] * 9, NOW) == ()


def test_the_first_call_of_all_may_wait_for_the_start_of_its_actor() -> None:
    start = calls([-4.0], took_s=2.0)
    later = calls(every(0.5, 8))

    (call,) = found(start, later)

    assert (call.calls, call.longest_s < 0.1) == (8, True)
    assert not found(calls([-6.0]), calls([-3.8], took_s=2.0), later)

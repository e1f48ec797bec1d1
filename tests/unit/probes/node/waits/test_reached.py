"""The threads and coroutines that reach the object of a wait."""

from __future__ import annotations

import time

import pytest

from dstack.observed.calls import Call, ProcessObject, Refs
from dstack.probes.node.waits.reached import ACTOR, COROUTINE, MAX_DEPTH, MAX_REACHED, THREAD, Reached, Root
from dstack.probes.node.waits.shared_objects import NOTHING, WaitsOn

QUEUE, HOLDER = 0x10, 0x20
GET = WaitsOn((QUEUE,), (QUEUE, "get"))
JOIN = WaitsOn((QUEUE,), (QUEUE, "join"))
WAITER: Root = (THREAD, 1)
CALL = Call(site="queue.Queue.get", frame=0, need=ProcessObject(object_id="0x10"))
BY_TWO = ProcessObject(object_id="0x10", reached_by=(2,))


def test_a_call_that_needs_no_object_is_unchanged() -> None:
    call = Call(site="ray.get", frame=0, need=Refs(refs=("aa",)))

    assert Reached({}, {QUEUE: [(THREAD, 2)]}).with_reach(WAITER, call, GET) is call


def test_every_kind_of_reaching_vertex_is_returned() -> None:
    roots = {QUEUE: [WAITER, (THREAD, 3)], HOLDER: [(THREAD, 2), (COROUTINE, 0xAB), (ACTOR, HOLDER)]}

    found = Reached({QUEUE: [HOLDER]}, roots, {WAITER: GET}).with_reach(WAITER, CALL, GET).need

    assert found == ProcessObject(
        object_id="0x10", reached_by=(2, 3), reached_by_coroutines=("0xab",), reached_by_actor=True
    )


def test_a_waiter_whose_wait_is_new_does_not_reach_its_own_object() -> None:
    assert Reached({}, {QUEUE: [WAITER]}).with_reach(WAITER, CALL, GET).need == CALL.need


def test_waiters_for_the_same_object_do_not_end_the_wait() -> None:
    other: Root = (THREAD, 2)
    roots = {QUEUE: [WAITER, other]}

    same = Reached({}, roots, {WAITER: GET, other: GET}).with_reach(WAITER, CALL, GET).need
    another = Reached({}, roots, {WAITER: GET, other: JOIN}).with_reach(WAITER, CALL, GET).need

    assert (same, another) == (CALL.need, BY_TWO)


def test_a_call_without_objects_is_reached_by_nothing() -> None:
    assert Reached({}, {0: [(THREAD, 2)]}).with_reach(WAITER, CALL, NOTHING).need == CALL.need


@pytest.mark.parametrize(("steps", "is_reached"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_a_search_backwards_ends(steps: int, is_reached: bool) -> None:
    holders = {QUEUE + step: [QUEUE + step + 1] for step in range(steps)}

    found = Reached(holders, {QUEUE + steps: [(THREAD, 2)]}).with_reach(WAITER, CALL, GET).need

    assert found == (BY_TWO if is_reached else CALL.need)


def test_a_search_through_a_cycle_of_holders_ends() -> None:
    found = Reached({QUEUE: [HOLDER], HOLDER: [QUEUE]}, {HOLDER: [(THREAD, 2)]}).with_reach(WAITER, CALL, GET).need

    assert found == BY_TWO


@pytest.mark.parametrize(("count", "said"), [(MAX_REACHED, MAX_REACHED), (MAX_REACHED + 1, 0)])
def test_an_object_that_too_many_vertices_reach_has_no_answer(count: int, said: int) -> None:
    roots: list[Root] = [(COROUTINE, 8 * number) for number in range(count)]

    found = Reached({}, {QUEUE: roots}).with_reach(WAITER, CALL, GET).need

    assert isinstance(found, ProcessObject)
    assert len(found.reached_by_coroutines) == said
    assert (found == CALL.need) is not bool(said)


def test_thousands_of_coroutines_that_share_thousands_of_objects_are_searched_quickly() -> None:
    count = 5_000
    waiters: list[Root] = [(COROUTINE, 8 * number) for number in range(count)]
    waits = {root: WaitsOn((1_000_000 + at,), (1_000_000 + at, "wait")) for at, root in enumerate(waiters)}
    holders = {1_000_000 + at: [HOLDER] for at in range(count)}
    reached = Reached(holders, {HOLDER: waiters}, waits)

    began = time.process_time()
    found = [reached.with_reach(root, CALL, waits_on) for root, waits_on in waits.items()]

    assert found == [CALL] * count
    assert time.process_time() - began < 20.0

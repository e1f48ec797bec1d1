"""The groups of waits in ray.get, ray.wait and Thread.join, in one sample."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.naming.descriptions import describe
from dstack.observed.calls import NEEDS, Call
from tests.unit.analysis.graph.wait_targets import unknown_labels, unobserved_targets
from tests.unit.scenes import Scene, groups_of
from tests.unit.support.random_snapshots import values_of

# Every need


@pytest.mark.parametrize("need", NEEDS.values())
@given(st.data())
def test_a_call_with_any_need_is_a_wait(need: Any, data: st.DataObject) -> None:
    scene = Scene()
    driver = scene.driver()
    driver.threads[0].call = Call(site="selectors.select", frame=0, need=data.draw(values_of(need)))

    assert scene.graph()[driver.key].wait is not None


# ray.get


def test_get_waits_for_the_thread_that_runs_the_task() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("f", by=driver)
    driver.gets(call)

    wait = scene.wait_of(driver)

    assert wait.kind == "ray.get"
    assert groups_of(wait) == [(1, [worker.key])]
    assert wait.groups[0].targets[0].ref == call.ref
    assert wait.evidence == "exact"


def test_get_of_several_refs_needs_each_unavailable_one() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "abc"]
    driver.has(calls[1]).gets(*calls)

    wait = scene.wait_of(driver)

    assert groups_of(wait) == [(1, [calls[0].key]), (1, [calls[2].key])]
    assert (wait.needed, wait.total) == (3, 3)


@pytest.mark.parametrize("state", ["FINISHED", "FAILED"])
def test_a_task_that_has_ended_has_given_its_value_or_an_error(state: str) -> None:
    scene = Scene()
    driver = scene.driver()
    ended, pending = scene.task("a", by=driver), scene.task("b", by=driver)
    driver.knows(ended, state=state).gets(ended, pending)

    assert groups_of(scene.wait_of(driver)) == [(1, [pending.key])]


def test_get_of_available_values_is_about_to_end() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.task("f", by=driver)
    driver.has(call).gets(call)

    wait = scene.wait_of(driver)

    assert unknown_labels(scene, wait) == ["value that is already available and being fetched"]


def test_get_of_a_put_value_never_waits_for_the_task_that_put_it() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("f", by=driver)
    driver.gets(worker.puts())

    targets = [target for _, group in groups_of(scene.wait_of(driver)) for target in group]

    assert worker.key not in targets
    assert call.key not in targets


def test_a_put_value_of_any_size_is_available() -> None:
    scene = Scene()
    driver = scene.driver()
    pending = scene.task("g", by=driver)
    _, worker = scene.run("f", by=driver)
    driver.gets(worker.puts(size_bytes=0), pending)

    assert groups_of(scene.wait_of(driver)) == [(1, [pending.key])]


def test_get_of_an_unlisted_ref_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets("ab" * 28)

    (target,) = unobserved_targets(scene, scene.wait_of(driver))

    assert describe(target).startswith("value of abababab")


def test_get_of_unreadable_refs_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.threads[0].waits_unreadably("a set where a list was expected")

    (target,) = unobserved_targets(scene, scene.wait_of(driver))

    assert describe(target) == "target of ray.get, which is unreadable: a set where a list was expected"


def test_a_timeout_is_kept_with_the_wait() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("f", by=driver), timeout_s=0.0)

    assert scene.wait_of(driver).is_timed


def test_a_wait_with_a_timeout_is_in_no_deadlock() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    again = scene.call(actor, "again", by=actor)
    actor.runs(scene.call(actor, "once", by=driver)).gets(again, timeout_s=5.0)

    assert [finding.kind for finding in scene.diagnose().findings] == ["polling"]


# ray.wait


def test_wait_needs_some_of_its_refs() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "abc"]
    driver.waits(*calls, num_returns=2)

    wait = scene.wait_of(driver)

    assert wait.kind == "ray.wait"
    assert groups_of(wait) == [(2, [call.key for call in calls])]
    assert (wait.needed, wait.total) == (2, 3)


def test_wait_counts_available_values() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "abc"]
    driver.has(calls[0]).waits(*calls, num_returns=2)

    wait = scene.wait_of(driver)

    assert groups_of(wait) == [(1, [calls[1].key, calls[2].key])]
    assert (wait.needed, wait.total) == (2, 3)


def test_wait_for_available_values_is_about_to_end() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "ab"]
    driver.has(calls[0]).waits(*calls)

    wait = scene.wait_of(driver)

    assert unknown_labels(scene, wait) == ["value that is already available and being fetched"]


# Thread.join


def test_join_waits_for_the_thread() -> None:
    scene = Scene()
    driver = scene.driver()
    helper = driver.thread("helper", "user")
    driver.joins(helper)

    wait = scene.wait_of(driver)

    assert wait.kind == "thread.join"
    assert groups_of(wait) == [(1, [helper.key])]


def test_a_joined_library_thread_is_a_vertex() -> None:
    scene = Scene()
    driver = scene.driver()
    pool = driver.thread("pool", "ray")
    driver.joins(pool)

    assert describe(scene.graph()[pool.key]) == 'thread "pool" of driver train.py'


def test_a_library_thread_without_a_waiter_is_no_vertex() -> None:
    scene = Scene()
    driver = scene.driver()
    pool = driver.thread("pool", "ray")

    assert pool.key not in scene.graph()


def test_join_of_a_helper_that_waits_for_its_own_actor_is_a_deadlock() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    helper = actor.thread("helper", "user")
    actor.runs(scene.call(actor, "outer", by=driver)).joins(helper)
    helper.gets(scene.call(actor, "inner", by=actor))

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert {actor.key, helper.key} <= set(diagnosis.findings[0].cycle)


def test_join_of_an_unobserved_thread_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.joins(4321)

    assert unobserved_targets(scene, scene.wait_of(driver))

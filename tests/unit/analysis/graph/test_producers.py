"""A wait for a ref of `PlacementGroup.ready()` is a wait for a pending group."""

from dataclasses import replace

from dstack.model.snapshot import Bundle
from dstack.model.vertex_keys import UnknownKey
from dstack.observed.calls import Refs
from tests.unit.scenes import Scene, SceneProcess, groups_of, key_of

READY = f"00{'f' * 38}01000000{(100_000_001).to_bytes(4, 'little').hex()}"


def awaits_group(scene: Scene, owner: str = "") -> SceneProcess:
    """A driver in `ray.get` for a ref of ``ready()``, which names no owner."""
    driver = scene.driver()
    driver.gets(READY).knows(READY, state=None, size_bytes=-1)
    call = driver.threads[0].call
    assert call is not None
    driver.threads[0].call = replace(call, need=Refs(refs=call.refs, owners=(owner,)))
    return driver


def test_a_get_of_ready_waits_for_any_pending_group() -> None:
    scene = Scene()
    driver = awaits_group(scene)
    scene.group("CREATED", Bundle(resources={"CPU": 1}))
    pending = [scene.group(state, Bundle(resources={"CPU": 1})) for state in ("PENDING", "RESCHEDULING")]

    ((needs, (promise,)),) = groups_of(scene.wait_of(driver))
    wait = scene.graph()[promise].wait

    assert needs == 1
    assert wait is not None
    assert groups_of(wait) == [(1, [key_of(group) for group in pending])]
    assert wait.evidence == "inferred"


def test_a_get_of_ready_is_blocked_behind_an_infeasible_group() -> None:
    scene = Scene()
    driver = awaits_group(scene)
    group = scene.group(
        "PENDING",
        Bundle(resources={"GPU": 99}),
        scheduling_state="INFEASIBLE",
        job_id=driver.worker.job_id,
    )

    diagnosis = scene.second_sample().diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("hang", False)
    assert diagnosis.findings[0].members == (key_of(group),)
    assert driver.key in diagnosis.findings[0].blocked_behind


def test_a_get_of_ready_waits_for_an_unknown_vertex_without_a_pending_group() -> None:
    scene = Scene()
    driver = awaits_group(scene)
    scene.group("CREATED", Bundle(resources={"CPU": 1}))

    ((_, (target,)),) = groups_of(scene.wait_of(driver))

    assert isinstance(target, UnknownKey)


def test_a_value_that_another_process_puts_is_no_group() -> None:
    scene = Scene()
    driver = awaits_group(scene, owner=scene.driver().worker_id)
    scene.group("PENDING", Bundle(resources={"CPU": 1}))

    ((_, (target,)),) = groups_of(scene.wait_of(driver))

    assert isinstance(target, UnknownKey)

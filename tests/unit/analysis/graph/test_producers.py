"""Waits for refs of `PlacementGroup.ready()`, and for some of the refs that an unread process holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.descriptions import describe
from dstack.model.snapshot import Bundle
from dstack.model.vertex_keys import UnknownKey
from dstack.observed.calls import Refs
from dstack.observed.node import Failure
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


class Ring:
    """Two actors; each runs a call, holds the other's call, and is in ``ray.get`` on refs that it holds."""

    def __init__(self, **terms: Any) -> None:
        self.scene = Scene()
        self.driver = self.scene.driver()
        self.left, self.right = self.scene.actor("Left"), self.scene.actor("Right")
        self.ping = self.scene.call(self.left, "ping", by=self.driver)
        self.pong = self.scene.call(self.right, "pong", by=self.left)
        self.back = self.scene.call(self.left, "back", by=self.right)
        self.driver.gets(self.ping)
        self.left.runs(self.ping).keeps(self.pong).threads[0].gets_held_refs(**terms)
        self.right.runs(self.pong).keeps(self.back).threads[0].gets_held_refs()
        self.left.access = self.right.access = "py-spy via sudo"

    @property
    def members(self) -> list[SceneProcess]:
        return [self.left, self.right]


def test_a_deadlock_of_unread_refs_is_suspected_and_never_confirmed() -> None:
    ring = Ring()

    diagnosis = ring.scene.sample().second_sample().diagnose()

    assert (diagnosis.verdict, diagnosis.findings[0].confirmed) == ("deadlock", False)
    assert diagnosis.findings[0].assumed == ("the refs that it waits for are among those that its process holds",)


def test_an_unread_wait_may_be_for_any_other_held_ref() -> None:
    ring = Ring()
    call, _ = ring.scene.run("work", by=ring.right)
    ring.right.keeps(call)

    assert ring.scene.sample().second_sample().diagnose().verdict == "running"


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        ({"state": "FINISHED", "size_bytes": 8}, "deadlock"),
        ({"state": "FINISHED", "size_bytes": 1 << 20}, "running"),
        ({"size_bytes": 8}, "running"),
    ],
    ids=["at hand", "large", "borrowed"],
)
def test_an_available_value_may_be_on_its_way(known: dict[str, object], verdict: str) -> None:
    ring = Ring()
    ring.left.keeps("a" * 48 + "01000000", **known)

    assert ring.scene.sample().second_sample().diagnose().verdict == verdict


def test_a_timeout_ends_an_unread_wait() -> None:
    assert Ring(timeout_s=1.0).scene.sample().second_sample().diagnose().verdict == "running"


def test_a_process_with_an_incomplete_list_of_refs_may_wait_for_another() -> None:
    ring = Ring()
    ring.scene.sample().second_sample()
    failure = Failure(stage="core worker", reason="it returned only 1 of its 2 refs", worker_id=ring.left.worker_id)

    snapshot = msgspec.structs.replace(ring.scene.snapshot(), failures=(failure,))

    assert diagnose(snapshot).verdict == "running"


def test_a_process_that_holds_other_refs_in_the_second_sample_has_moved() -> None:
    ring = Ring()
    ring.scene.sample()
    again = ring.scene.call(ring.right, "pong", by=ring.left)
    ring.left.refs.clear()
    ring.left.keeps(again)

    assert ring.scene.second_sample().diagnose().verdict == "running"


def test_an_unobserved_process_may_wait_but_has_no_wait() -> None:
    ring = Ring()
    for proc in ring.members:
        proc.is_unreadable = True

    diagnosis = ring.scene.sample().second_sample().diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("unknown", True)
    waits = {describe(vertex): vertex.wait for vertex in diagnosis.vertices.values()}
    wait = waits["Left.ping"]
    assert wait is not None
    assert wait.kind == "perhaps ray.get"
    assert "Right.pong" in {describe(diagnosis.vertices[target.vertex]) for target in wait.groups[0].targets}


def test_an_unobserved_driver_may_wait_for_its_held_refs() -> None:
    ring = Ring()
    ring.driver.keeps(ring.ping)
    ring.driver.is_unreadable = True

    diagnosis = ring.scene.sample().second_sample().diagnose()

    (driver,) = (vertex for vertex in diagnosis.vertices.values() if describe(vertex).startswith("driver"))
    assert driver.wait is not None
    assert driver.wait.kind == "perhaps ray.get"
    assert diagnosis.verdict == "deadlock"
    assert driver.key not in (*diagnosis.findings[0].members, *diagnosis.findings[0].blocked_behind)


def test_a_partly_read_cluster_is_not_clear() -> None:
    scene = Scene()
    actor = scene.actor("Left")
    actor.computes().access = "text stack"

    diagnosis = scene.sample().diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("idle", True)
    assert diagnosis.coverage.access == {"text stack": 1}

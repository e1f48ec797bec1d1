"""The exit code of ``check --fail-on``: each kind includes the worse kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from dstack.analysis.findings import verdict_of
from dstack.model.diagnosis import FAILING, Diagnosis, FailOn, FindingKind
from tests.unit.analysis.evidence.polling_scenes import poller
from tests.unit.scenes import Scene


def suspected() -> Diagnosis:
    return poller().watch()


def confirmed() -> Diagnosis:
    it = poller()
    it.polls(None)
    return it.watch()


def orphaned() -> Diagnosis:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gone")
    call = scene.call(actor, "run", by=driver, state="PENDING_NODE_ASSIGNMENT")
    owner = scene.driver(job_id="02000000")
    owner.submitted.append(call.becomes(owner_id=owner.worker_id))
    driver.submitted.remove(call)
    scene.dies(owner)
    driver.gets(call)
    return scene.sample().sample().diagnose()


def stalled() -> Diagnosis:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gate")
    call = scene.call(actor, "enter", by=driver)
    actor.runs(call).is_in("threading.Condition.wait", "0x1")
    driver.gets(call)
    return scene.sample().sample().diagnose()


def starved() -> Diagnosis:
    scene = Scene()
    scene.node(free={}, GPU=1.0)
    driver = scene.driver()
    wanting = scene.task("wanting", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    scene.run("busy", by=driver, GPU=1.0)
    driver.gets(wanting)
    return scene.sample().sample().diagnose()


def polling() -> Diagnosis:
    it = poller()
    it.polls(60.0)
    return it.watch()


def blocked() -> Diagnosis:
    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("work", by=driver)
    driver.gets(call)
    return scene.sample().sample().diagnose()


def clear() -> Diagnosis:
    scene = Scene()
    scene.driver()
    return scene.sample().sample().diagnose()


@pytest.mark.parametrize(
    ("made", "kind", "fails_on"),
    [
        (suspected, "deadlock", ("deadlock", "stalled", "starved")),
        (confirmed, "deadlock", ("deadlock", "stalled", "starved")),
        (orphaned, "orphaned", ("deadlock", "stalled", "starved")),
        (stalled, "stalled", ("stalled", "starved")),
        (starved, "starved", ("starved",)),
        (polling, "polling", ()),
        (blocked, "running", ()),
        (clear, None, ()),
    ],
)
def test_the_exit_code_of_a_check(
    made: Callable[[], Diagnosis], kind: str | None, fails_on: tuple[FailOn, ...]
) -> None:
    diagnosis = made()

    assert next((finding.kind for finding in diagnosis.findings), None) == kind
    assert tuple(on for on in get_args(FailOn) if diagnosis.fails(on)) == fails_on
    assert diagnosis.fails() is ("deadlock" in fails_on)


def test_the_kinds_that_fail_agree_with_the_verdicts_that_they_lead_to() -> None:
    kinds = get_args(FindingKind)

    assert FAILING["deadlock"] == {kind for kind in kinds if verdict_of(kind) in ("deadlock", "hang")}
    assert FAILING["stalled"] == {kind for kind in kinds if verdict_of(kind) != "running"}

"""Scenes with one deadlock, one wait or one infeasible task, and their findings."""

from __future__ import annotations

from dstack.model.diagnosis import Diagnosis, Finding
from tests.unit.scenes import Call, Scene, SceneProcess


def ring(scene: Scene, *names: str) -> list[SceneProcess]:
    """Actors in a cycle, each of which runs a call that gets a call of the next."""
    owner = scene.driver()
    actors = [scene.actor(name) for name in names]
    for actor in actors:
        actor.runs(scene.call(actor, "run", by=owner))
    for number, actor in enumerate(actors):
        actor.gets(scene.call(actors[(number + 1) % len(actors)], "step", by=actor))
    return actors


def parked() -> Scene:
    """A driver that waits for nothing of Ray's."""
    scene = Scene()
    scene.driver().is_in("threading.Event.wait", "0x1")
    return scene.sample().second_sample()


def deadlocked() -> Scene:
    """Two actors that wait for each other, and the driver behind them."""
    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
    back = scene.call(left, "back", by=right)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(back)
    return scene.sample().second_sample()


def infeasible(scene: Scene, by: SceneProcess, **needs: float) -> Call:
    """A task that asks for a resource that no node has."""
    return scene.task("big", by=by, state="PENDING_NODE_ASSIGNMENT", required_resources=needs or {"TPU": 1.0})


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings]


def only_finding(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding

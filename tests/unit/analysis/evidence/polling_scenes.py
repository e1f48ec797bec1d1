"""Scenes of a process that polls, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dstack.libraries.train import RETRYING
from dstack.model.diagnosis import Diagnosis, Finding
from dstack.observed.processes import Frame
from tests.unit.scenes import Call, Scene, SceneProcess

ONLY_POLLS = "the loop at app.py:30 only polls"


TRAIN_CONTROLLER = Frame(
    function="TrainController.run",
    file=f"/usr/lib/python3/site-packages/{RETRYING[0]}",
    line=7,
    origin="ray",
)


@dataclass
class Poller:
    """An actor's method that polls for a call of its own actor, which can only begin when it has ended."""

    scene: Scene
    driver: SceneProcess
    actor: SceneProcess
    again: Call

    def polls(self, timeout_s: float | None = 1.0) -> None:
        self.actor.waits(self.again, timeout_s=timeout_s)

    def watch(self, *changes: Callable[[], object], readings: int = 3, every_s: float = 1.0) -> Diagnosis:
        """Takes both samples and the readings between them; each after one of the ``changes``, if any are left."""
        self.scene.sample()
        for number in range(readings):
            if number < len(changes):
                changes[number]()
            self.scene.read([self.actor], every_s=every_s)
        if len(changes) > readings:
            changes[readings]()
        self.scene.sample()
        return self.scene.diagnose()


def poller() -> Poller:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Poller")
    call = scene.call(actor, "run", by=driver)
    actor.works_for().runs(call)
    again = scene.call(actor, "again", by=actor)
    driver.gets(call)
    it = Poller(scene, driver, actor, again)
    it.polls()
    return it


def only_finding(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


def is_suspected(diagnosis: Diagnosis) -> bool:
    assert not any(finding.confirmed for finding in diagnosis.findings)
    return diagnosis.verdict == "deadlock"


def nothing() -> None:
    """No change, as between two readings of a process that hangs."""

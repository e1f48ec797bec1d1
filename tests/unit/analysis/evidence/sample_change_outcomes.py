"""The outcome of two samples of busy actors."""

from __future__ import annotations

from dstack.model.diagnosis import Diagnosis
from tests.unit.scenes import Scene, SceneProcess

NOTHING = ("nothing", False)
UNDECIDED = ("running", True)


def outcome(diagnosis: Diagnosis) -> tuple[str, bool]:
    """The kind of the worst finding, and whether something unread could change it."""
    return diagnosis.findings[0].kind if diagnosis.findings else "nothing", diagnosis.incomplete


def of(scene: Scene) -> tuple[str, bool]:
    return outcome(scene.diagnose())


class Busy(Scene):
    """A driver that calls two actors all the time; each wait ends within a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_ = self.driver()
        self.front, self.back = self.actor("Front"), self.actor("Back")
        for proc in (self.front, self.back):
            proc.tasks_read = True

    def call_down(self) -> None:
        """The driver gets a call of the front actor, which gets one of the back actor, which computes."""
        for proc in (self.driver_, self.front):
            proc.submitted.clear()
        outer = self.call(self.front, "serve", by=self.driver_)
        inner = self.call(self.back, "work", by=self.front)
        self.driver_.gets(outer)
        self.front.runs(outer).gets(inner)
        self.back.runs(inner).computes()


def unread(driver: SceneProcess) -> None:
    driver.threads[0].waits_unreadably("its thread was woken during every reading")

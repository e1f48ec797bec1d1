"""Which findings are new, which last and which are over, from look to look."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.sightings import Changes, Sightings
from dstack.model import Snapshot
from tests.unit.scenes import Proc, Scene


class Ring(Scene):
    """A driver waits for actors that wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_, self.left, self.right = self.driver(), self.actor("Left"), self.actor("Right")
        self.pair(self.left, self.right)

    def pair(self, left: Proc, right: Proc) -> None:
        ping = self.call(left, "ping", by=self.driver_)
        pong = self.call(right, "pong", by=left)
        self.driver_.gets(ping)
        left.runs(ping).gets(pong)
        right.runs(pong).gets(self.call(left, "back", by=right))


def looked_at_once(scene: Scene) -> Snapshot:
    """A new snapshot of it for which there was no second look."""
    scene.samples.clear()
    return scene.look().snapshot()


class Seen:
    """Sightings with a clock, a minute from look to look."""

    def __init__(self) -> None:
        self.sightings = Sightings(stuck_after_s=60)
        self.now_s = 0.0

    def sees(self, snapshot: Snapshot) -> Changes:
        self.now_s += 60
        return self.sightings.take(snapshot, diagnose(snapshot), self.now_s)


def looked_at(scene: Scene) -> Snapshot:
    """A new snapshot of it as it is now, of two looks."""
    scene.samples.clear()
    return scene.look().look_again().snapshot()


def test_a_deadlock_is_new_once_and_then_lasts() -> None:
    scene, seen = Ring(), Seen()

    first = seen.sees(looked_at(scene))
    second = seen.sees(looked_at(scene))

    assert (first.new, first.lasting, first.over) == ((0,), (), ())
    assert (second.new, [one.kind for one in second.lasting], second.over) == ((), ["deadlock"], ())
    assert second.lasting[0].began_s == 60


def test_more_who_wait_behind_it_make_no_new_one() -> None:
    scene, seen = Ring(), Seen()
    seen.sees(looked_at(scene))
    scene.driver().gets(scene.call(scene.left, "more", by=scene.driver_))

    changes = seen.sees(looked_at(scene))

    assert not changes.new
    assert len(changes.lasting) == 1


def test_another_deadlock_is_a_new_one() -> None:
    scene, seen = Ring(), Seen()
    seen.sees(looked_at(scene))
    scene.pair(scene.actor("Up"), scene.actor("Down"))

    changes = seen.sees(looked_at(scene))

    assert (len(changes.new), len(changes.lasting), len(changes.over)) == (1, 1, 0)


def test_what_is_not_there_any_more_is_over() -> None:
    seen = Seen()
    seen.sees(looked_at(Ring()))

    changes = seen.sees(looked_at(Scene()))

    assert [one.kind for one in changes.over] == ["deadlock"]
    assert not seen.sightings.lasting


def test_a_deadlock_somewhere_else_of_the_same_actors_is_another_one() -> None:
    scene, seen = Ring(), Seen()
    seen.sees(looked_at(scene))
    again = Ring()
    again.pair(again.left, again.right)  # other calls of the same actors

    changes = seen.sees(looked_at(again))

    assert (len(changes.new), len(changes.over)) == (1, 1)


def test_nothing_is_over_while_somebody_in_it_could_not_be_seen() -> None:
    scene, seen = Ring(), Seen()
    seen.sees(looked_at(scene))
    scene.left.is_unseen = True

    changes = seen.sees(looked_at(scene))

    assert changes == Changes()
    assert len(seen.sightings.lasting) == 1


def test_who_only_waits_for_somebody_who_runs_is_nothing_to_tell() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    worker.computes()
    driver.gets(call)
    snapshot = looked_at(scene)

    assert diagnose(snapshot).findings
    assert Seen().sees(snapshot) == Changes()


class Stalled(Scene):
    """A driver waits for a task in a condition that nobody is left to end."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_ = self.driver()
        call, self.busy = self.run("work", by=self.driver_)
        self.busy.strands[0].is_in("threading.Condition.wait", "0x1")
        self.driver_.gets(call)


def test_what_only_seems_stuck_is_told_when_it_still_stands_after_a_while() -> None:
    scene, seen = Stalled(), Seen()
    assert [finding.kind for finding in diagnose(looked_at(scene)).findings] == ["stalled"]

    assert seen.sees(looked_at(scene)) == Changes()
    assert seen.sightings.doubtful
    assert seen.sees(looked_at(scene)).new == (0,)
    assert not seen.sightings.doubtful


def test_what_only_seems_stuck_is_not_told_too_soon() -> None:
    scene, seen = Stalled(), Seen()
    seen.sees(looked_at(scene))

    seen.now_s -= 1

    assert seen.sees(looked_at(scene)) == Changes()


def test_what_only_seems_stuck_and_has_moved_begins_anew() -> None:
    scene, seen = Stalled(), Seen()
    seen.sees(looked_at(scene))

    scene.busy.strands[0].line += 1

    assert seen.sees(looked_at(scene)) == Changes()
    assert seen.sees(looked_at(scene)).new == (0,)


def test_a_suspected_deadlock_is_told_when_it_still_stands_after_a_while() -> None:
    scene, seen = Ring(), Seen()
    assert not diagnose(looked_at_once(scene)).findings[0].confirmed

    assert seen.sees(looked_at_once(scene)) == Changes()
    assert seen.sees(looked_at_once(scene)).new == (0,)


def test_a_finding_is_touched_when_one_who_was_there_is_gone() -> None:
    scene, seen = Ring(), Seen()
    snapshot = looked_at(scene)
    seen.sees(snapshot)
    (sighting,) = seen.sightings.lasting
    present = sighting.workers | sighting.tasks - {min(sighting.tasks)}

    seen.sightings.track(present)

    assert not seen.sightings.is_touched(present)
    assert seen.sightings.is_touched(present - {scene.left.worker_id})
    assert seen.sightings.is_touched(present - {max(sighting.tasks)})


def test_numbers_do_not_tell_findings_apart() -> None:
    snapshot = looked_at(Ring())
    later = replace(snapshot, taken_at=snapshot.taken_at + 3600)
    seen = Seen()
    seen.sees(snapshot)

    assert len(seen.sees(later).lasting) == 1

"""New, lasting and ended findings, from snapshot to snapshot."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.snapshot import Snapshot
from dstack.watch.alerts import Changes, FindingTracker
from tests.unit.scenes import Scene, SceneProcess


class Ring(Scene):
    """A driver waits for two actors that wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_, self.left, self.right = self.driver(), self.actor("Left"), self.actor("Right")
        self.pair(self.left, self.right)

    def pair(self, left: SceneProcess, right: SceneProcess) -> None:
        ping = self.call(left, "ping", by=self.driver_)
        pong = self.call(right, "pong", by=left)
        self.driver_.gets(ping)
        left.runs(ping).gets(pong)
        right.runs(pong).gets(self.call(left, "back", by=right))


def sampled_once(scene: Scene) -> Snapshot:
    """A new snapshot of the scene with one sample."""
    scene.samples.clear()
    return scene.sample().snapshot()


class Timeline:
    """A finding tracker with a clock: a snapshot every minute."""

    def __init__(self) -> None:
        self.tracker = FindingTracker(stuck_after_s=60)
        self.now_s = 0.0

    def observe(self, snapshot: Snapshot) -> Changes:
        self.now_s += 60
        return self.tracker.update(AnalysedSnapshot.of(snapshot), self.now_s)


def began_at(scene: Scene) -> Snapshot:
    """A new snapshot of the scene as it is now, with two samples."""
    scene.samples.clear()
    return scene.sample().second_sample().snapshot()


def test_a_deadlock_is_new_once_and_then_lasts() -> None:
    scene, timeline = Ring(), Timeline()

    first = timeline.observe(began_at(scene))
    second = timeline.observe(began_at(scene))

    assert (first.new, first.lasting, first.over) == ((0,), (), ())
    assert (second.new, [one.kind for one in second.lasting], second.over) == ((), ["deadlock"], ())
    assert second.lasting[0].began_s == 60


def test_more_waits_behind_a_deadlock_are_no_new_alert() -> None:
    scene, timeline = Ring(), Timeline()
    timeline.observe(began_at(scene))
    scene.driver().gets(scene.call(scene.left, "more", by=scene.driver_))

    changes = timeline.observe(began_at(scene))

    assert not changes.new
    assert len(changes.lasting) == 1


def test_another_deadlock_is_a_new_one() -> None:
    scene, timeline = Ring(), Timeline()
    timeline.observe(began_at(scene))
    scene.pair(scene.actor("Up"), scene.actor("Down"))

    changes = timeline.observe(began_at(scene))

    assert (len(changes.new), len(changes.lasting), len(changes.over)) == (1, 1, 0)


def test_an_absent_finding_is_over() -> None:
    timeline = Timeline()
    timeline.observe(began_at(Ring()))

    changes = timeline.observe(began_at(Scene()))

    assert [one.kind for one in changes.over] == ["deadlock"]
    assert not timeline.tracker.lasting


def test_a_deadlock_of_the_same_actors_at_other_lines_is_a_new_one() -> None:
    scene, timeline = Ring(), Timeline()
    timeline.observe(began_at(scene))
    again = Ring()
    again.pair(again.left, again.right)  # other calls of the same actors

    changes = timeline.observe(began_at(again))

    assert (len(changes.new), len(changes.over)) == (1, 1)


def test_a_finding_with_an_unreadable_member_is_not_over() -> None:
    scene, timeline = Ring(), Timeline()
    timeline.observe(began_at(scene))
    scene.left.is_unreadable = True

    changes = timeline.observe(began_at(scene))

    assert changes == Changes()
    assert len(timeline.tracker.lasting) == 1


def test_a_wait_for_a_running_task_is_no_alert() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    worker.computes()
    driver.gets(call)
    snapshot = began_at(scene)

    assert diagnose(snapshot).findings
    assert Timeline().observe(snapshot) == Changes()


class Stalled(Scene):
    """A driver waits for a task that waits on a condition without a known waker."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_ = self.driver()
        call, self.busy = self.run("work", by=self.driver_)
        self.busy.threads[0].is_in("threading.Condition.wait", "0x1")
        self.driver_.gets(call)


def test_a_stalled_finding_is_reported_if_it_lasts() -> None:
    scene, timeline = Stalled(), Timeline()
    assert [finding.kind for finding in diagnose(began_at(scene)).findings] == ["stalled"]

    assert timeline.observe(began_at(scene)) == Changes()
    assert timeline.tracker.unproven
    assert timeline.observe(began_at(scene)).new == (0,)
    assert not timeline.tracker.unproven


def test_a_stalled_finding_is_not_reported_too_soon() -> None:
    scene, timeline = Stalled(), Timeline()
    timeline.observe(began_at(scene))

    timeline.now_s -= 1

    assert timeline.observe(began_at(scene)) == Changes()


def test_a_stalled_finding_that_changed_starts_again() -> None:
    scene, timeline = Stalled(), Timeline()
    timeline.observe(began_at(scene))

    scene.busy.threads[0].line += 1

    assert timeline.observe(began_at(scene)) == Changes()
    assert timeline.observe(began_at(scene)).new == (0,)


def test_a_suspected_deadlock_is_reported_if_it_lasts() -> None:
    scene, timeline = Ring(), Timeline()
    assert not diagnose(sampled_once(scene)).findings[0].confirmed

    assert timeline.observe(sampled_once(scene)) == Changes()
    assert timeline.observe(sampled_once(scene)).new == (0,)


def test_a_finding_is_changed_if_a_member_is_absent() -> None:
    scene, timeline = Ring(), Timeline()
    snapshot = began_at(scene)
    timeline.observe(snapshot)
    (tracked,) = timeline.tracker.lasting
    present = tracked.workers | tracked.tasks - {min(tracked.tasks)}

    timeline.tracker.track(present)

    assert not timeline.tracker.has_progress(present)
    assert timeline.tracker.has_progress(present - {scene.left.worker_id})
    assert timeline.tracker.has_progress(present - {max(tracked.tasks)})


def test_findings_that_differ_in_numbers_are_the_same() -> None:
    snapshot = began_at(Ring())
    later = replace(snapshot, taken_at=snapshot.taken_at + 3600)
    timeline = Timeline()
    timeline.observe(snapshot)

    assert len(timeline.observe(later).lasting) == 1


# Identity of findings that grow, shrink, merge and split


class Pair:
    """Two actors that wait for each other until one is released, and for another pair if they are linked."""

    def __init__(self, scene: Scene, driver: SceneProcess) -> None:
        self.scene = scene
        self.left, self.right = scene.actor("Left"), scene.actor("Right")
        ping = scene.call(self.left, "ping", by=driver)
        self.pong = scene.call(self.right, "pong", by=self.left)
        self.left.runs(ping)
        self.right.runs(self.pong).gets(scene.call(self.left, "back", by=self.right))
        self.wait_for()

    def wait_for(self, *others: Pair) -> None:
        """Make its left actor wait for its right one, and for the left ones of the others."""
        self.left.gets(self.pong, *(self.scene.call(one.left, "more", by=self.left) for one in others))

    def ends(self) -> None:
        """Make its left actor compute."""
        self.left.threads[0].computes()


class Pairs(Scene):
    """A number of separate deadlocks."""

    def __init__(self, count: int) -> None:
        super().__init__()
        driver = self.driver()
        self.pairs = [Pair(self, driver) for _ in range(count)]

    def link(self, *linked: Pair) -> None:
        """Merge these into one deadlock."""
        for one, following in zip(linked, (*linked[1:], linked[0]), strict=True):
            one.wait_for(following)


def numbers(changes: Changes) -> tuple[int, int, int, int]:
    return len(changes.new), len(changes.lasting), len(changes.merged), len(changes.over)


def test_merged_findings_are_one_and_end_once() -> None:
    scene, timeline = Pairs(3), Timeline()
    first, second, _ = scene.pairs
    assert numbers(timeline.observe(began_at(scene))) == (3, 0, 0, 0)

    scene.link(first, second)
    changes = timeline.observe(began_at(scene))
    assert numbers(changes) == (0, 2, 1, 0)
    ((was, into),) = changes.merged
    assert was.positions < into.positions
    assert into in changes.lasting
    assert len(timeline.tracker.lasting) == 2
    assert numbers(timeline.observe(began_at(scene))) == (0, 2, 0, 0)

    for one in (first, second):
        one.ends()
    changes = timeline.observe(began_at(scene))
    assert numbers(changes) == (0, 1, 0, 1)
    assert changes.over[0].began_s == 60, "the beginning of the older one"


def test_a_part_that_splits_off_is_new_and_each_part_ends_separately() -> None:
    scene, timeline = Pairs(2), Timeline()
    first, second = scene.pairs
    scene.link(first, second)
    assert numbers(timeline.observe(began_at(scene))) == (1, 0, 0, 0)

    for one in (first, second):
        one.wait_for()
    changes = timeline.observe(began_at(scene))
    assert numbers(changes) == (1, 1, 0, 0)
    assert [one.began_s for one in timeline.tracker.lasting] == [60, 60], "its members have been stuck since then"
    assert numbers(timeline.observe(began_at(scene))) == (0, 2, 0, 0)

    first.ends()
    assert numbers(timeline.observe(began_at(scene))) == (0, 1, 0, 1)
    second.ends()
    assert numbers(timeline.observe(began_at(scene))) == (0, 0, 0, 1)


def test_a_finding_that_grows_and_shrinks_is_the_same() -> None:
    scene, timeline = Pairs(1), Timeline()
    first = scene.pairs[0]
    assert numbers(timeline.observe(began_at(scene))) == (1, 0, 0, 0)

    late = Pair(scene, scene.driver())
    scene.link(first, late)
    assert numbers(timeline.observe(began_at(scene))) == (0, 1, 0, 0)
    first.wait_for()
    late.ends()
    changes = timeline.observe(began_at(scene))

    assert numbers(changes) == (0, 1, 0, 0)
    assert changes.lasting[0].began_s == 60


def test_findings_that_exchange_members_remain_two() -> None:
    scene, timeline = Pairs(4), Timeline()
    a, b, c, d = scene.pairs
    scene.link(a, b)
    scene.link(c, d)
    assert numbers(timeline.observe(began_at(scene))) == (2, 0, 0, 0)

    scene.link(a, c)
    scene.link(b, d)

    assert numbers(timeline.observe(began_at(scene))) == (0, 2, 0, 0)


def test_one_of_two_findings_with_the_same_members_is_over_and_not_merged() -> None:
    snapshot, timeline = began_at(Ring()), Timeline()
    timeline.observe(snapshot)
    timeline.tracker.lasting *= 2

    assert numbers(timeline.observe(snapshot)) == (0, 1, 0, 1)


def test_a_stalled_finding_that_grows_or_shrinks_is_unchanged() -> None:
    for sizes in ((1, 2), (2, 1)):
        scene, timeline = Stalled(), Timeline()
        others: list[SceneProcess] = []
        for size in sizes:
            assert not timeline.tracker.lasting
            while len(others) < size:
                others.append(scene.driver().gets(*scene.driver_.submitted))
            while len(others) > size:
                scene.procs.remove(others.pop())
            changes = timeline.observe(began_at(scene))

        assert changes.new == (0,)

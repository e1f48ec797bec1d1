"""Open chains: blocked, starved and polling findings, and their final blockers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dstack.analysis.solve.open_chains import MAX_RANKED
from tests.unit.analysis.findings.kinds.small_findings import kinds, only_finding, ring
from tests.unit.scenes import Scene, SceneProcess


def test_the_end_of_a_chain_is_its_final_blocker() -> None:
    scene = Scene()
    driver = scene.driver()
    first, relay = scene.run("first", by=driver)
    last, worker = scene.run("last", by=relay)
    driver.gets(first)
    relay.gets(last)

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind) == ("running", "running")
    assert set(finding.members) == {driver.key, relay.key}
    (blocker,) = finding.final_blockers
    assert (blocker.vertex, blocker.waiters_direct, blocker.waiters_total) == (worker.key, 1, 2)


def test_final_blockers_are_ranked_by_their_waiters() -> None:
    scene = Scene()
    driver = scene.driver()
    call, relay = scene.run("relay", by=driver)
    heavy, behind_relay = scene.run("heavy", by=relay)
    light, popular = scene.run("light", by=driver)
    relay.gets(heavy)
    driver.gets(call, light)
    scene.driver().gets(call)
    scene.driver().gets(light)

    blockers = only_finding(scene.diagnose()).final_blockers

    ranking = [(blocker.vertex, blocker.waiters_direct, blocker.waiters_total) for blocker in blockers]
    assert ranking == [(behind_relay.key, 1, 3), (popular.key, 2, 2)]


def test_of_many_final_blockers_those_with_most_waiters_are_listed() -> None:
    scene = Scene()
    driver = scene.driver()
    ends = [scene.run("work", by=driver) for _ in range(3 * MAX_RANKED)]
    driver.gets(*(call for call, _ in ends))
    popular, worker = ends[-1]
    for _ in range(5):
        scene.driver().gets(popular)

    blockers = only_finding(scene.diagnose()).final_blockers

    assert len(blockers) == MAX_RANKED
    assert (blockers[0].vertex, blockers[0].waiters_total) == (worker.key, 6)


def test_separate_chains_are_separate_findings_the_longest_first() -> None:
    scene = Scene()
    for waiters in (1, 3, 2):
        call, _ = scene.run(f"work{waiters}", by=scene.driver())
        for _ in range(waiters):
            scene.driver().gets(call)

    assert [len(finding.members) for finding in scene.diagnose().findings] == [3, 2, 1]


def test_a_long_queue_is_blocked_on_the_call_that_runs() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(100)]
    clerk.runs(calls[0])
    driver.gets(calls[-1])

    diagnosis = scene.diagnose()

    (blocker,) = only_finding(diagnosis).final_blockers
    assert diagnosis.verdict == "running"
    assert (blocker.vertex, blocker.waiters_total) == (clerk.key, 100)


def test_waiting_for_held_resources_is_starved() -> None:
    scene = Scene()
    scene.node({"CPU": 4.0}, CPU=4.0, GPU=1.0)
    driver = scene.driver()
    _, holder = scene.run("train", by=driver, GPU=1.0)
    driver.gets(scene.task("next", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0}))

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind, finding.resources) == ("running", "starved", ("GPU",))
    assert [blocker.vertex for blocker in finding.final_blockers] == [holder.key]


def test_waiting_with_timeouts_is_polling() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.waits(call, timeout_s=0.5)

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind) == ("running", "polling")
    assert [blocker.vertex for blocker in finding.final_blockers] == [worker.key]


def test_a_cycle_with_a_timeout_is_polling() -> None:
    scene = Scene()
    left, _ = ring(scene, "Left", "Right")
    left.gets(left.submitted[0], timeout_s=1.0)

    assert kinds(scene.diagnose()) == ["polling"]


def test_a_polling_cycle_with_a_waiter_without_a_timeout_is_polling() -> None:
    scene = Scene()
    left, _ = ring(scene, "Left", "Right")
    left.gets(left.submitted[0], timeout_s=1.0)
    scene.procs[0].gets(left.running[0])

    assert kinds(scene.diagnose()) == ["polling"]


def test_two_calls_that_poll_each_other_have_no_final_blocker() -> None:
    scene = Scene()
    for actor in ring(scene, "Left", "Right"):
        actor.gets(actor.submitted[0], timeout_s=1.0)

    finding = only_finding(scene.diagnose())

    assert (finding.kind, finding.final_blockers) == ("polling", ())
    assert finding.summary == "4 tasks wait; a timeout of 1.0 s in Left.run ends that (ray.get at app.py:30)"


def advice_of(change: Callable[[SceneProcess], None] | None, *, first: Callable[[SceneProcess], None]) -> str:
    """The advice for a driver behind a task, which is as ``first`` in the first sample, and changed in the second."""
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.gets(call)
    first(worker)
    scene.sample()
    if change:
        change(worker)
        scene.sample()
    return str(only_finding(scene.diagnose()).advice)


def runs(worker: SceneProcess) -> None:
    worker.slots[0].slices = 1


def runs_again(worker: SceneProcess) -> None:
    worker.slots[0].slices = 2


def is_off_cpu(worker: SceneProcess) -> None:
    worker.slots[0].slices, worker.slots[0].is_asleep = 2, True


def is_off_cpu_after_much_cpu_time(worker: SceneProcess) -> None:
    is_off_cpu(worker)
    worker.cpu_s = 9.0


def sleeps(worker: SceneProcess) -> None:
    is_off_cpu(worker)
    worker.slots[0].sleeps = True


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (runs, runs, "work is computing at "),
        (runs, runs_again, "work is computing at "),
        (runs, is_off_cpu_after_much_cpu_time, "work is computing at "),
        (is_off_cpu, runs, "work sleeps, or waits outside Python"),
        (runs, is_off_cpu, "work uses little CPU time at "),
        (runs, sleeps, "work wakes and sleeps at "),
        (runs, None, "work runs at "),
        (sleeps, runs, "work sleeps at "),
    ],
)
def test_only_what_used_a_cpu_between_the_samples_computes(
    first: Callable[[SceneProcess], None], second: Callable[[SceneProcess], None] | None, words: str
) -> None:
    advice = advice_of(second, first=first)

    assert words in advice
    assert ("computing" in advice) == ("computing" in words)


def test_actors_that_start_are_counted_in_one_sentence() -> None:
    scene = Scene()
    node = scene.node({"GPU": 0.0}, GPU=1.0)
    driver = scene.driver(node)
    scene.actor("Rollout", node, held={"GPU": 1.0})
    starts = []
    for _ in range(2):
        (_, runs), (_, waits) = scene.pending_actor("Rollout", driver), scene.pending_actor("Rollout", driver, GPU=1.0)
        scene.worker(node).runs(runs)
        waits.becomes(state="PENDING_NODE_ASSIGNMENT")
        starts += [runs, waits]
    driver.gets(*starts)

    finding = only_finding(scene.diagnose())

    sentence = "Rollout: 1 of 5 actors is created; 2 run their constructors and 2 wait for GPU"
    assert sentence in [step.text for step in finding.explanation]
    assert not [step for step in finding.diagram.remarks if "Rollout.__init__" in step.text]

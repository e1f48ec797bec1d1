"""Train ranks and Data readers that wait for each other: the missing parties, and the findings."""

from __future__ import annotations

from dataclasses import dataclass

from dstack.model.diagnosis import Diagnosis
from tests.unit.scenes import Scene, SceneProcess, SceneThread, group_of

REPORT = "ray.train.report"


@dataclass
class Run:
    """Two Train workers; the first reports its result, and waits in the actor that is the ranks' barrier."""

    scene: Scene
    driver: SceneProcess
    workers: list[SceneProcess]
    trains: list[SceneThread]

    def diagnose(self) -> Diagnosis:
        """The diagnosis after two samples."""
        return self.scene.sample().second_sample().diagnose()


def run(*, has_left: bool = False) -> Run:
    scene = Scene()
    driver = scene.driver()
    meeting = scene.async_actor("SynchronizationActor", owner_id=driver.worker_id).works_for()
    workers = [scene.actor("RayTrainWorker", owner_id=driver.worker_id).works_for().idles() for _ in range(2)]
    known = {"library": "ray.train", "world": meeting.actor_id, "name": "workers", "description": ""}
    trains = [worker.thread("TrainingThread(train_fn)", "user") for worker in workers]
    for at, worker in enumerate(workers):
        worker.is_member(group_of(at, 0, 1, **known, has_left=has_left and at == 1))
    call = scene.call(meeting, "broadcast_from_rank_zero", by=workers[0])
    trains[0].gets(call)
    meeting.begins(call).collects(REPORT, group_of(0, 0, 1, **known), mark="")
    if has_left:
        workers[1].threads.remove(trains[1])
    return Run(scene, driver, workers, trains)


def test_a_rank_that_trains_is_what_a_report_waits_for() -> None:
    it = run()

    diagnosis = it.diagnose()

    assert diagnosis.verdict == "running"
    assert diagnosis.findings[0].final_blockers[0].vertex == it.trains[1].key


def test_a_rank_whose_function_has_ended_leaves_the_others_orphaned() -> None:
    it = run(has_left=True)

    diagnosis = it.diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.kind, finding.confirmed) == ("hang", "orphaned", True)
    assert it.trains[0].key in finding.blocked_behind
    assert finding.summary.startswith(
        "rank 1 of the worker group makes no more calls: its training function has ended; "
        "rank 0 waits in ray.train.report of the worker group"
    )
    first = finding.explanation[0].text
    assert first.startswith("Rank 0")
    assert "in ray.train.report of the worker group, and waits for rank 1" in first
    assert "it is training function " in first
    assert finding.explanation[0].vertex == it.trains[0].key
    assert "same number of times" in str(finding.advice)


def test_ranks_that_wait_for_each_other_in_two_ways_are_deadlocked() -> None:
    it = run()
    score = it.scene.actor("Score", owner_id=it.driver.worker_id).works_for()
    asked = it.scene.call(score, "ask", by=it.workers[1])
    report = it.trains[0].call
    assert report is not None
    score.runs(asked)
    score.threads[0].gets(*report.refs)
    it.trains[1].gets(asked)

    diagnosis = it.diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.confirmed, finding.assumed) == ("deadlock", True, ())
    assert finding.summary.startswith(
        "rank 0 is in ray.train.report of the worker group; rank 1 is in ray.get for Score.ask"
    )


def test_two_calls_of_one_group_meet_whatever_their_names_are() -> None:
    it = run()
    meeting = it.scene.actors[0]
    known = {"library": "ray.train", "world": meeting.actor_id, "name": "workers", "description": ""}
    coordinator = next(proc for proc in it.scene.procs if proc.actor is meeting)
    call = it.scene.call(coordinator, "broadcast_from_rank_zero", by=it.workers[1])
    it.trains[1].gets(call)
    coordinator.begins(call).collects("ray.train.collective.barrier", group_of(1, 0, 1, **known), mark="")

    diagnosis = it.diagnose()

    assert diagnosis.verdict not in ("deadlock", "hang")


def reader(*, waits: bool) -> tuple[Scene, SceneProcess, Diagnosis]:
    """A reader of the first of two splits, and the driver, which has the second and may wait for the first."""
    scene = Scene()
    driver = scene.driver()
    coordinator = scene.actor("SplitCoordinator", owner_id=driver.worker_id).works_for()
    first = scene.actor("Reader", owner_id=driver.worker_id).works_for()
    count = scene.call(first, "count", by=driver)
    start = scene.call(coordinator, "start_epoch", by=first)
    first.runs(count).gets(start)
    coordinator.tasks_read = True
    coordinator.runs(start)
    coordinator.collects(
        "start_epoch",
        group_of(0, 0, 1, library="ray.data", world=coordinator.actor_id, name="", description=""),
        mark="",
    )
    if waits:
        driver.gets(count)
    return scene, driver, scene.sample().second_sample().diagnose()


def test_a_split_without_a_possible_reader_is_a_deadlock() -> None:
    _, driver, diagnosis = reader(waits=True)

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.kind) == ("deadlock", "deadlock")
    assert driver.key in finding.members
    assert finding.summary.startswith(
        "split 0 of streaming_split waits until all 2 splits are read, and split 1 is not"
    )
    assert "start every reader before waiting" in str(finding.advice)


def test_a_split_with_a_possible_reader_is_only_waited_for() -> None:
    _, _, diagnosis = reader(waits=False)
    assert diagnosis.verdict in ("running", "idle")

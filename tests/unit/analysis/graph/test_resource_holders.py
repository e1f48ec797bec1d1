"""The executions that can end an actor or remove a placement group, and so release its resources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.naming.descriptions import describe
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Bundle, Job, Node
from dstack.model.vertex_keys import AnyKey, Key
from dstack.observed.processes import Frame
from dstack.report.check_json import check_json
from dstack.watch.figures import waits_of
from tests.unit.scenes import JOB, Call, Scene, SceneProcess

OTHER_JOB = "02000000"


@dataclass
class Held:
    """An actor holds the only GPU, and a process waits for a task that needs it."""

    scene: Scene
    node: Node
    driver: SceneProcess
    actor: SceneProcess
    call: Call

    def enders(self) -> set[str]:
        """The labels of the executions that can end the actor; shared vertices are followed to their targets."""
        graph = self.scene.graph()
        found: set[str] = set()
        ahead: list[Key] = [AnyKey("end of actor", (self.actor.actor_id,))]
        visited = set(ahead)
        while ahead:
            vertex = graph[ahead.pop()]
            if vertex.kind != "lifetime":
                found.add(describe(vertex))
                continue
            assert vertex.wait is not None
            targets = {target.vertex for group in vertex.wait.groups for target in group.targets} - visited
            visited |= targets
            ahead += targets
        return found

    def verdict(self) -> str:
        return self.scene.diagnose().verdict


def held(**known: Any) -> Held:
    """An actor of the driver, which waits in vain for a task that needs the actor's GPU."""
    scene = Scene()
    node = scene.node(free={}, GPU=1.0)
    driver = scene.driver()
    actor = scene.actor("Trainer", **{"held": {"GPU": 1.0}, "owner_id": driver.worker_id, **known}).idles()
    call = scene.task("wanting", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    driver.holds(actor).gets(call)
    return Held(scene, node, driver, actor, call)


def test_an_actor_whose_owner_waits_for_its_resources_never_releases_them() -> None:
    it = held()

    (finding,) = it.scene.diagnose().findings

    assert it.enders() == {"driver train.py"}
    assert finding.kind == "deadlock"
    assert finding.resources == ("GPU",)
    assert [describe(it.scene.graph()[key]) for key in finding.cycle] == [
        "driver train.py",
        "wanting",
        f"end of actor Trainer {it.actor.actor_id[:8]}, which holds 1 GPU",
    ]


def test_an_owner_that_proceeds_may_end_the_actor() -> None:
    it = held()
    it.driver.computes()

    (finding,) = it.scene.diagnose().findings

    assert finding.kind == "starved"
    assert "ends" not in finding.summary
    assert ", depends on driver train.py" in finding.explanation[0].text


def test_another_thread_of_the_owner_may_end_the_actor() -> None:
    it = held()
    it.driver.thread("helper", "user")

    assert it.verdict() == "running"


@pytest.mark.parametrize(
    ("file", "is_stuck"), [("/ray/_private/worker.py", True), ("/ray/data/executor.py", False), ("/lib/x.py", False)]
)
def test_library_threads_may_use_a_handle_and_threads_of_rays_core_do_not(file: str, is_stuck: bool) -> None:
    it = held()
    thread = it.driver.thread("monitor", "ray")
    thread.leaf = Frame(function="run", file=file, line=1, origin="ray" if "ray" in file else "library")

    assert it.verdict() == ("deadlock" if is_stuck else "running")


def test_an_idle_executor_thread_uses_no_handle() -> None:
    it = held()
    thread = it.driver.thread("ThreadPoolExecutor-0_0", "ray")
    thread.leaf = Frame(
        function="_worker", file="/usr/lib/python3/concurrent/futures/thread.py", line=1, origin="stdlib"
    )

    assert it.verdict() == "deadlock"


def test_a_call_that_runs_in_the_actor_may_end_it() -> None:
    it = held()
    method = it.scene.call(it.actor, "fit", by=it.driver)
    it.actor.threads[0].role = "task"
    it.actor.runs(method)

    assert it.enders() == {"driver train.py", "Trainer.fit"}
    assert it.verdict() == "running"


def test_a_call_that_is_queued_at_the_actor_may_end_it() -> None:
    it = held()
    argument = it.scene.task("other", by=it.driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"TPU": 1.0})
    it.scene.call(it.actor, "fit", by=it.driver, state="PENDING_ARGS_AVAIL")
    it.driver.passes(argument)

    assert it.enders() == {"driver train.py", "Trainer.fit"}


def test_a_process_with_a_handle_may_end_the_actor() -> None:
    it = held()
    call, worker = it.scene.run("evaluate", by=it.driver)
    worker.holds(it.actor)

    assert it.enders() == {"driver train.py", "evaluate"}
    assert it.verdict() == "running"
    worker.gets(it.call)
    assert it.verdict() == "running"
    it.scene.samples.clear()
    assert it.verdict() == "deadlock"
    assert call.task.name == "evaluate"


def test_an_idle_worker_that_has_a_handle_may_be_ended_with_it() -> None:
    it = held()
    it.scene.worker().idles().holds(it.actor)

    assert it.verdict() == "running"


def test_an_idle_actor_with_a_handle_proceeds_if_it_is_called() -> None:
    it = held()
    other = it.scene.actor("Pool", owner_id=it.driver.worker_id).idles()
    other.holds(it.actor).holds(other)
    it.actor.holds(other)
    it.driver.holds(other)
    caller = it.scene.actor("Caller", owner_id=it.driver.worker_id)
    caller.holds(other).runs(it.scene.call(caller, "work", by=it.driver))

    assert it.enders() == {"driver train.py", "Caller.work"}
    assert it.verdict() == "running"
    it.scene.samples.clear()
    caller.gets(it.call)
    assert it.verdict() == "deadlock"


def test_a_task_with_a_handle_as_an_argument_may_end_the_actor() -> None:
    it = held()
    it.driver.holds(it.actor, argument_uses=1)
    it.scene.task("other", by=it.driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"TPU": 1.0})

    assert it.enders() == {"driver train.py", "wanting", "other"}
    assert [finding.kind for finding in it.scene.diagnose().findings] == ["infeasible"]


def test_a_handle_inside_another_value_may_be_used_by_the_whole_job() -> None:
    it = held()
    it.driver.holds(it.actor, is_contained=True)
    _, worker = it.scene.run("evaluate", by=it.driver)
    worker.worker = replace(worker.worker, job_id=JOB)

    assert it.enders() == {"driver train.py", "wanting", "evaluate"}
    assert it.verdict() == "running"


def test_a_named_actor_may_be_ended_from_anywhere_in_its_namespace() -> None:
    it = held(name="left", namespace="default")
    it.scene.jobs.append(Job(job_id=OTHER_JOB, namespace="default", entrypoint="python other.py"))
    other = it.scene.driver()
    other.worker = replace(other.worker, job_id=OTHER_JOB)

    assert it.enders() == {"driver train.py", "wanting", "driver other.py"}
    assert it.verdict() == "running"


def test_a_detached_actor_outlives_its_job() -> None:
    it = held(name="left", namespace="elsewhere", is_detached=True, owner_id="d" * 56)
    it.driver.refs.clear()

    assert it.enders() == {'client outside of all running jobs that looks up actor Trainer "left"'}
    assert it.scene.diagnose().findings[0].kind == "starved"


def test_a_restarting_actor_may_do_anything() -> None:
    it = held(state="RESTARTING")

    assert it.enders() == {"driver train.py", "Trainer.__init__"}


@pytest.mark.parametrize("how", ["unreachable", "unreadable", "without stacks"])
@pytest.mark.parametrize("process", ["driver", "actor", "bystander"])
def test_an_unobserved_process_may_end_the_actor(process: str, how: str) -> None:
    it = held()
    bystander = it.scene.worker().idles()
    proc = {"driver": it.driver, "actor": it.actor, "bystander": bystander}[process]
    proc.is_unreachable, proc.is_unreadable, proc.has_no_stacks = (
        how == one for one in ("unreachable", "unreadable", "without stacks")
    )

    is_stuck = process == "bystander" and how != "unreachable"  # it reported that it holds no handle

    assert (it.verdict() == "deadlock") == is_stuck


# Placement groups


def reserved(**known: Any) -> tuple[Scene, SceneProcess]:
    """A driver that waits for a task, which needs the resources of the driver's placement group."""
    scene = Scene()
    node = scene.node(free={}, GPU=1.0)
    driver = scene.driver()
    scene.group("CREATED", Bundle(resources={"GPU": 1.0}, node_id=node.node_id), **{"name": "", "job_id": JOB, **known})
    call = scene.task("wanting", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    driver.gets(call)
    return scene, driver


def test_a_placement_group_may_be_removed_from_anywhere_in_its_job() -> None:
    scene, driver = reserved()

    assert scene.diagnose().verdict == "deadlock"
    scene.samples.clear()
    driver.thread("helper", "user")
    assert scene.diagnose().verdict == "running"


def test_a_named_placement_group_may_be_removed_from_anywhere_in_its_namespace() -> None:
    scene, _ = reserved(name="trainers", namespace="default")
    scene.jobs.append(Job(job_id=OTHER_JOB, namespace="default"))
    other = scene.driver()
    other.worker = replace(other.worker, job_id=OTHER_JOB)

    assert scene.diagnose().verdict == "running"


def test_an_actor_that_another_job_may_call_may_remove_a_placement_group_of_its_job() -> None:
    scene, driver = reserved()
    actor = scene.actor("Manager", owner_id=driver.worker_id).idles()
    actor.worker = replace(actor.worker, job_id=JOB)
    assert scene.diagnose().verdict == "deadlock"
    scene.samples.clear()
    scene.jobs.append(Job(job_id=OTHER_JOB, namespace="elsewhere"))
    other = scene.driver().holds(actor)
    other.worker = replace(other.worker, job_id=OTHER_JOB)

    assert scene.diagnose().verdict == "running"


def test_a_detached_placement_group_outlives_its_job() -> None:
    scene, _ = reserved(name="trainers", namespace="elsewhere", is_detached=True, job_id=OTHER_JOB)

    assert scene.diagnose().findings[0].kind == "starved"


def test_the_group_of_an_actor_is_removed_with_it() -> None:
    scene, driver = reserved()
    creator = scene.actor("Tuner", owner_id=driver.worker_id)
    scene.groups[-1] = replace(scene.groups[-1], creator_actor_id=creator.actor_id)
    creator.runs(scene.call(creator, "tune", by=driver))

    assert scene.diagnose().verdict == "running"


def test_a_shared_vertex_is_not_a_waiter() -> None:
    it = held()

    (finding,) = it.scene.diagnose().findings
    kinds = {vertex.kind for vertex in _members(it.scene, finding.members)}

    assert kinds == {"execution", "task"}
    assert {vertex.kind for vertex in _members(it.scene, finding.helpers)} == {"lifetime"}


def _members(scene: Scene, keys: tuple[Key, ...]) -> list[Vertex]:
    return [scene.graph()[key] for key in keys]


def test_only_executions_calls_actors_and_groups_are_members() -> None:
    it = held()
    for _ in range(2):
        required = {"GPU": 1.0}
        it.scene.task("wanting too", by=it.driver, state="PENDING_NODE_ASSIGNMENT", required_resources=required)
    snapshot = it.scene.sample().second_sample().snapshot()

    analysed = AnalysedSnapshot.of(snapshot)
    (finding,) = json.loads(check_json(analysed))["findings"]

    assert [one["execution"] for one in finding["members"]] == ["driver train.py", "wanting"]
    assert [one["execution"] for one in finding["blocked_behind"]] == ["wanting too", "wanting too"]
    assert (finding["waiters_direct"], finding["waiters_total"]) == (2, 2)
    assert "2 more pending behind it" in finding["explanation"]
    waits, _ = waits_of(analysed.diagnosis)
    assert waits == {"ray.get": 1, "resources": 3}

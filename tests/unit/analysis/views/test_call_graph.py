"""The call graph of hand-made histories and samples, and its figures against brute force."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dstack.analysis.history.call_nodes import UNKNOWN, NodeKey
from dstack.analysis.views.call_graph import CallGraph
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Job, TaskAttempt
from dstack.observed.node import TaskKind
from dstack.report.calls_text import call_table
from tests.fuzzing.effort import examples
from tests.paths import RECORDED_CLUSTERS
from tests.unit.scenes import Scene
from tests.unit.scenes.calls import JOB, Call
from tests.unit.scenes.processes import SceneProcess
from tests.unit.support.call_histories import DRIVER, NOW, attempt, edges, ended, graph_of, with_history

OTHER_JOB = "02000000"
DRIVER_TITLE = "driver train.py"


def test_an_edge_has_the_figures_of_all_calls_of_its_methods() -> None:
    scene = Scene()
    driver, store = scene.driver(), scene.actor("Store")
    puts = [ended(scene, scene.call(store, "put", by=driver)) for _ in range(2)]
    size = ended(scene, scene.call(store, "size", by=driver))
    scene.sample()
    graph = graph_of(
        with_history(
            scene,
            [
                attempt(puts[0], driver, -9, started=-9, ended=-8),
                attempt(puts[1], driver, -8, started=-8, ended=-5),
                attempt(size, driver, -7, started=-6, failed=-4),
            ],
        )
    )

    ((names, edge),) = edges(graph).items()
    assert names == (DRIVER_TITLE, "Store")
    figures = edge.figures
    assert (figures.attempts, figures.tasks, figures.finished, figures.failed) == (3, 3, 2, 1)
    assert (figures.mean_s, figures.max_s, figures.is_max_open) == (2.0, 3.0, False)
    assert (figures.first_at, figures.last_at) == (NOW - 9, NOW - 7)
    assert [(one.method, one.figures.attempts) for one in edge.methods] == [("put", 2), ("size", 1)]
    assert graph.figures == figures


def test_a_retry_is_an_attempt_but_no_further_task_and_its_bytes_count_once() -> None:
    scene = Scene()
    driver = scene.driver()
    call = ended(scene, scene.task("prepare", by=driver))
    attempts = [
        attempt(call, driver, -9, started=-9, failed=-8),
        attempt(call, driver, -8, attempt=1, started=-7, ended=-6),
    ]
    edge = edges(graph_of(with_history(scene, attempts, object_bytes={call.task.task_id: 700})))[
        DRIVER_TITLE, "prepare"
    ]

    figures = edge.figures
    assert (figures.attempts, figures.tasks, figures.failed, figures.finished) == (2, 1, 1, 1)
    assert figures.live_bytes == 700


def test_the_longest_call_may_be_one_that_still_runs() -> None:
    scene = Scene()
    driver, trainer = scene.driver(), scene.actor("Trainer")
    step, sync = (scene.call(trainer, method, by=driver) for method in ("step", "sync"))
    ended(scene, step)
    trainer.runs(sync)
    attempts = [attempt(step, driver, -90, started=-80, ended=-79), attempt(sync, driver, -70, started=-60)]
    figures = edges(graph_of(with_history(scene, attempts)))[DRIVER_TITLE, "Trainer"].figures

    assert (figures.mean_s, figures.max_s, figures.is_max_open) == (1.0, 60.0, True)


def test_calls_of_tasks_and_actors_have_their_callers() -> None:
    scene = Scene()
    driver, trainer, store = scene.driver(), scene.actor("Trainer"), scene.async_actor("Store")
    step = scene.call(trainer, "step", by=driver)
    inner = scene.task("inner", by=trainer)
    nested = scene.task("nested", by=trainer)
    calls = [ended(scene, call) for call in (step, inner, nested)]
    by_store = ended(scene, scene.call(trainer, "version", by=store))
    attempts = [
        attempt(calls[0], driver, started=-9, ended=-1),
        attempt(calls[1], step, started=-8, ended=-2),
        attempt(calls[2], inner, started=-7, ended=-3),
        attempt(by_store, store, started=-7, ended=-3),
    ]
    graph = graph_of(with_history(scene, attempts))

    expected = {(DRIVER_TITLE, "Trainer"), ("Trainer", "inner"), ("inner", "nested"), ("Store", "Trainer")}
    assert set(edges(graph)) == expected
    levels = {node.title: node.level for node in graph.nodes}
    assert levels == {DRIVER_TITLE: 0, "Store": 0, "Trainer": 1, "inner": 2, "nested": 3}
    assert not graph.has_unknown_callers


def test_the_caller_of_a_dropped_parent_is_known_if_it_is_an_actor() -> None:
    scene = Scene()
    driver, trainer = scene.driver(), scene.actor("Trainer")
    dropped, function = scene.call(trainer, "step", by=driver), scene.task("gone", by=driver)
    calls = [ended(scene, scene.task(name, by=trainer)) for name in ("one", "two", "three")]
    for call in (dropped, function):
        ended(scene, call)
    graph = graph_of(
        with_history(scene, [attempt(calls[0], dropped), attempt(calls[1], function), attempt(calls[2], None)])
    )

    assert set(edges(graph)) == {("Trainer", "one"), ("unknown caller", "two"), ("unknown caller", "three")}
    assert graph.has_unknown_callers
    assert UNKNOWN in graph.edges_of


def test_functions_of_two_jobs_are_different_nodes_and_a_job_can_be_selected() -> None:
    scene = Scene()
    scene.jobs.append(Job(job_id=OTHER_JOB, entrypoint="python other.py"))
    drivers = scene.driver(), scene.driver(job_id=OTHER_JOB)
    calls = [ended(scene, scene.task("prepare", by=driver)) for driver in drivers]
    snapshot = with_history(scene, map(attempt, calls, drivers))
    graph = graph_of(snapshot)

    assert {(edge.source.job_id, edge.target.job_id) for edge in graph.edges} == {(JOB, JOB), (OTHER_JOB, OTHER_JOB)}
    assert graph.has_several_jobs
    only = graph_of(snapshot, job=OTHER_JOB)
    assert [node.title for node in only.nodes] == ["driver other.py", "prepare"]
    assert not only.has_several_jobs


def test_actors_are_merged_by_class_or_each_has_a_node() -> None:
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor("Worker"), scene.actor("Worker", name="second")]
    calls = [ended(scene, scene.call(actor, "step", by=driver)) for actor in actors]
    snapshot = with_history(scene, [attempt(call, driver) for call in calls])
    merged, single = graph_of(snapshot), graph_of(snapshot, by="instance")

    assert [(node.title, node.instances) for node in merged.nodes] == [(DRIVER_TITLE, 1), ("Worker", 2)]
    assert {node.title for node in single.nodes} == {DRIVER_TITLE, 'Worker "second"', "Worker 00000000"}
    assert merged.figures.attempts == single.figures.attempts == 2
    assert len(single.edges) == 2


def test_methods_are_named_without_their_class_and_by_the_name_of_the_caller() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Store")
    call = ended(scene, scene.call(actor, "put", by=driver))
    named = ended(scene, scene.call(actor, "put", by=driver)).becomes(name="my.own name")
    edge = edges(graph_of(with_history(scene, [attempt(call, driver), attempt(named, driver)])))[DRIVER_TITLE, "Store"]

    assert [one.method for one in edge.methods] == ["my.own name", "put"]


def test_the_owner_of_a_task_is_its_caller_if_the_parent_is_a_thread() -> None:
    scene = Scene()
    driver, trainer = scene.driver(), scene.actor("Trainer")
    thread = "5" * 16 + "f" * 24 + JOB
    new, old = (scene.call(trainer, "step", by=driver, parent_task_id=thread) for _ in range(2))
    outer, worker = scene.run("outer", by=driver)
    inner = scene.task("inner", by=worker, parent_task_id="6" * 16 + "f" * 24 + JOB)
    trainer.runs(new)
    ended(scene, old)
    graph = graph_of(with_history(scene, [attempt(old, thread), attempt(outer, driver)]))

    assert edges(graph)[DRIVER_TITLE, "Trainer"].figures.attempts == 2
    assert edges(graph)["outer", "inner"].open_tasks == (inner.task.task_id,)
    assert not graph.has_unknown_callers


def test_a_class_of_a_library_has_the_name_of_its_part() -> None:
    graph = graph_of(load(RECORDED_CLUSTERS / "serve-deadlock-ray-2.60.json.gz"))
    titles = {node.title for node in graph.nodes}

    assert {"Serve deployment Front of app shop", "Serve deployment Kitchen of app shop", "Serve's proxy"} <= titles
    assert "unknown caller" not in titles


# Samples


def test_tasks_that_the_gcs_does_not_have_yet_are_added_once() -> None:
    scene = Scene()
    driver, trainer = scene.driver(), scene.actor("Trainer")
    known, new = (scene.call(trainer, "step", by=driver, parent_task_id=DRIVER) for _ in range(2))
    trainer.runs(known)
    edge = edges(graph_of(with_history(scene, [attempt(known, driver)])))[DRIVER_TITLE, "Trainer"]

    assert (edge.figures.attempts, edge.figures.running, edge.figures.pending) == (2, 1, 1)
    assert edge.open_tasks == (known.task.task_id, new.task.task_id)


def test_an_end_in_the_history_counts_more_than_an_older_sample() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("prepare", by=driver)
    figures = graph_of(with_history(scene, [attempt(call, driver, started=-1, ended=0)])).figures

    assert worker.worker_id
    assert (figures.attempts, figures.finished, figures.running) == (1, 1, 0)


def test_a_later_attempt_in_a_sample_is_a_further_attempt() -> None:
    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("prepare", by=driver)
    call.becomes(attempt=1, parent_task_id=DRIVER)
    figures = graph_of(with_history(scene, [attempt(call, driver, started=-2, failed=-1)])).figures

    assert (figures.attempts, figures.tasks, figures.failed, figures.running) == (2, 1, 1, 1)


def test_a_graph_without_history_has_the_unfinished_calls() -> None:
    scene = Scene()
    driver, trainer = scene.driver(), scene.actor("Trainer")
    call = scene.call(trainer, "step", by=driver)
    trainer.runs(call)
    graph = graph_of(scene)

    assert set(edges(graph)) == {(DRIVER_TITLE, "Trainer")}  # the owner is the driver, its task is unknown
    assert graph.ended_at is None
    assert graph.figures.per_s is None
    assert graph.figures.running == 1


def test_a_snapshot_without_any_sample_or_history_has_an_empty_graph() -> None:
    graph = graph_of(replace(Scene().snapshot(), samples=()))

    assert graph == CallGraph("class", None, (), (), (), graph.figures)
    assert graph.figures.attempts == 0


# Rates and bytes


def answered(call: Call, by: SceneProcess, at: float) -> TaskAttempt:
    """A call that ends after 5 ms."""
    return attempt(call, by, at, started=at, ended=at + 0.005)


def test_frequent_calls_are_marked_and_bursts_are_not() -> None:
    scene = Scene()
    driver, store = scene.driver(), scene.actor("Store")
    polls = [ended(scene, scene.call(store, "size", by=driver)) for _ in range(100)]
    burst = [ended(scene, scene.task("burst", by=driver)) for _ in range(9)]
    attempts = [answered(call, driver, -9 + number / 50) for number, call in enumerate(polls)]
    found = edges(graph_of(with_history(scene, [*attempts, *(attempt(call, driver) for call in burst)])))
    size, other = (found[DRIVER_TITLE, name].figures for name in ("Store", "burst"))

    assert size.per_s == pytest.approx(100 / 1.98)
    assert size.is_frequent
    assert other.per_s == 9
    assert not other.is_frequent


@pytest.mark.parametrize("span_s", [0.1, 2.0])
@pytest.mark.parametrize("kind", ["constructors", "one call of each actor", "tasks"])
def test_calls_that_are_made_once_are_no_loop_that_polls(kind: str, span_s: float) -> None:
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor("Worker") for _ in range(40)]
    is_task = kind == "tasks"
    calls = [scene.task("burst", by=driver) if is_task else scene.call(one, "ready", by=driver) for one in actors]
    begins = [-9 + span_s * number / 40 for number in range(40)]
    attempts = [
        attempt(ended(scene, call), driver, at, started=at, ended=at + 2.5 if is_task else at + 0.01)
        for call, at in zip(calls, begins, strict=True)
    ]
    if kind == "constructors":
        attempts = [replace(one, kind="ACTOR_CREATION_TASK") for one in attempts]
    graph = graph_of(with_history(scene, attempts))

    assert graph.figures.per_s == pytest.approx(40 if span_s < 1 else 40 / (span_s * 39 / 40))
    assert not any(edge.figures.is_frequent for edge in graph.edges)
    assert "polls" not in call_table(graph)


def test_one_early_call_does_not_hide_the_rate_of_another_method() -> None:
    scene = Scene()
    driver, store = scene.driver(), scene.actor("Store")
    polls = [ended(scene, scene.call(store, "size", by=driver)) for _ in range(100)]
    first = ended(scene, scene.call(store, "start", by=driver))
    attempts = [answered(call, driver, -9 + number / 50) for number, call in enumerate(polls)]
    edge = edges(graph_of(with_history(scene, [attempt(first, driver, -900), *attempts])))[DRIVER_TITLE, "Store"]

    assert edge.figures.is_frequent


def test_bytes_are_of_the_edge_of_the_driver_or_of_neither() -> None:
    scene = Scene()
    driver = scene.driver()
    call = ended(scene, scene.task("prepare", by=driver))
    by_driver, by_call, unknown = f"00{DRIVER[2:]}", f"00{call.task.task_id[2:]}", "9" * 16 + "f" * 24 + JOB
    call.becomes(task_id=f"ab{call.task.task_id[2:]}")
    sizes = {call.task.task_id: 5, by_driver: 30, by_call: 7, unknown: 100}
    graph = graph_of(with_history(scene, [attempt(call, driver)], object_bytes=sizes))

    assert graph.figures.live_bytes == 5
    assert [node.put_bytes for node in graph.nodes] == [30, 7]
    assert graph.other_bytes == 100


# Waits


def test_waits_connect_nodes_and_say_which_are_deadlocked() -> None:
    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping = scene.call(left, "ping", by=driver)
    pong, back = scene.call(right, "pong", by=left), scene.call(left, "back", by=right)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(back)
    scene.sample().second_sample()
    graph = graph_of(with_history(scene, []))
    titles = {node.key: node.title for node in graph.nodes}
    waits = {(titles[wait.source], titles[wait.target]): wait for wait in graph.waits}

    assert set(waits) == {("Left", "Right"), ("Right", "Left"), ("Left", "Left"), (DRIVER_TITLE, "Left")}
    assert all(wait.count == 1 for wait in graph.waits)
    assert dict(waits["Left", "Right"].kinds) == {"ray.get": 1}
    assert dict(waits["Left", "Left"].kinds) == {"actor slot": 1}  # the call back is queued behind ping
    deadlocked = {names for names, wait in waits.items() if wait.deadlocked}
    assert deadlocked == {("Left", "Right"), ("Right", "Left"), ("Left", "Left")}
    assert waits[DRIVER_TITLE, "Left"].blocked == 1


def test_a_wait_for_resources_goes_to_what_holds_them() -> None:
    scene = Scene()
    node = scene.node(free={"CPU": 0.0}, CPU=1.0)
    driver = scene.driver(node)
    scene.run("holder", by=driver, node=node, CPU=1.0)
    scene.task("starved", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 1.0})
    graph = graph_of(scene)
    titles = {node.key: node.title for node in graph.nodes}

    assert ("starved", "holder") in {(titles[wait.source], titles[wait.target]) for wait in graph.waits}


def test_a_wait_for_one_of_several_possible_arguments_is_marked_as_inferred() -> None:
    """Ray says that a call waits for arguments, not for which: the owner has passed two that are pending."""
    scene = Scene()
    driver = scene.driver()
    first, _ = scene.run("step_a", by=driver)
    second = scene.task("step_b", by=driver, state="PENDING_ARGS_AVAIL")
    scene.task("step_c", by=driver, state="PENDING_ARGS_AVAIL")
    driver.passes(first, second)
    graph = graph_of(scene)
    lines = call_table(graph).splitlines()

    assert "? step_c may wait for step_a: 1 × arguments" in lines
    assert "? step_c may wait for step_b: 1 × arguments" in lines
    assert "… step_b waits for step_a: 1 × arguments" in lines  # it is not its own argument
    assert not any("own function" in line for line in lines)


def test_a_wait_for_any_of_several_targets_in_one_node_is_a_fact() -> None:
    scene = Scene()
    driver = scene.driver()
    several = [scene.run("step_a", by=driver)[0] for _ in range(2)]
    scene.task("step_b", by=driver, state="PENDING_ARGS_AVAIL")
    driver.passes(*several)
    (wait,) = graph_of(scene).waits

    assert not wait.is_inferred


def test_a_node_without_known_calls_has_its_waits() -> None:
    scene = Scene()
    driver, left = scene.driver(), scene.actor("Left")
    driver.gets(f"{'7' * 16}{left.actor.actor_id if left.actor else ''}01000000")
    graph = graph_of(with_history(scene, []))

    assert {node.key.kind for node in graph.nodes} <= {"driver", "actor"}
    assert graph.edges == ()


# Brute force

NAMES = ("f", "g")
ACTORS = tuple(f"{number:024x}{JOB}" for number in range(3))


@st.composite
def histories(draw: st.DrawFn) -> list[TaskAttempt]:
    """Attempts of functions and actors, of which some have callers that are not kept, and some are retried."""
    made: list[TaskAttempt] = []
    parents: list[str | None] = [None, DRIVER, "f" * 40 + OTHER_JOB, "a" * 16 + "f" * 24 + JOB]
    for number in range(draw(st.integers(0, 12))):
        actor = draw(st.sampled_from((None, *ACTORS)))
        task_id = f"{number:016x}{actor or 'f' * 24 + JOB}"
        name = f"C{int(actor[:24], 16) % 2}.m{number % 2}" if actor else draw(st.sampled_from(NAMES))
        kind: TaskKind = "ACTOR_TASK" if actor else "NORMAL_TASK"
        parent = draw(st.sampled_from(parents))
        for retry in range(draw(st.integers(1, 3))):
            states = {"PENDING_ARGS_AVAIL": NOW + number}
            states |= draw(st.sampled_from([{}, {"RUNNING": NOW + 1}, {"FINISHED": NOW + 2}]))
            states |= draw(st.sampled_from([{}, {"FAILED": NOW + 3}, {"RUNNING": NOW, "FINISHED": NOW + 4}]))
            made.append(
                TaskAttempt(
                    task_id=task_id,
                    name=name,
                    kind=kind,
                    job_id=draw(st.sampled_from((JOB, OTHER_JOB))),
                    attempt=retry,
                    actor_id=actor,
                    parent_task_id=parent,
                    states=states,
                )
            )
        parents.append(task_id)
    return made


@pytest.mark.parametrize("by", ["class", "instance"])
def test_the_sums_of_all_edges_are_those_of_the_history(by: Any) -> None:
    @examples(200)
    @given(histories())
    def check(attempts: list[TaskAttempt]) -> None:
        sizes = {one.task_id: 3 for one in attempts[::2]} | {f"00{DRIVER[2:]}": 7, "e" * 48: 11}
        graph = graph_of(with_history(Scene(), attempts, object_bytes=sizes), by=by)
        states = Counter(_state(one) for one in attempts)
        total = graph.figures

        assert total.attempts == len(attempts) == sum(edge.figures.attempts for edge in graph.edges)
        assert total.tasks == len({one.task_id for one in attempts})
        for state in ("pending", "running", "finished", "failed"):
            assert getattr(total, state) == states[state]
        assert all(edge.figures.attempts == sum(one.figures.attempts for one in edge.methods) for edge in graph.edges)
        placed = total.live_bytes + sum(node.put_bytes for node in graph.nodes)
        assert placed + graph.other_bytes == sum(sizes.values())
        keys = {node.key for node in graph.nodes}
        assert len(keys) == len(graph.nodes)
        assert {key for edge in graph.edges for key in (edge.source, edge.target)} == keys
        assert sum(map(len, graph.edges_of.values())) == len(graph.edges)
        _require_callers(graph, attempts)

    check()


def _require_callers(graph: CallGraph, attempts: list[TaskAttempt]) -> None:
    """Count the calls of each driver and function by brute force."""
    names = {one.task_id: one.name for one in attempts if not one.actor_id}
    expected = Counter(names[one.parent_task_id or ""] for one in attempts if one.parent_task_id in names)
    for key, edges_made in graph.edges_of.items():
        made = sum(edge.figures.attempts for edge in edges_made)
        if key.kind == "driver":
            assert made == sum(one.parent_task_id == "f" * 40 + key.job_id for one in attempts)
    by_name: Counter[str] = Counter()
    for key, edges_made in graph.edges_of.items():
        if key.kind == "function":
            by_name[key.name] += sum(edge.figures.attempts for edge in edges_made)
    assert by_name == expected


def _state(one: TaskAttempt) -> str:
    for name, state in (("FAILED", "failed"), ("FINISHED", "finished"), ("RUNNING", "running")):
        if name in one.states:
            return state
    return "pending"


def test_keys_of_nodes_are_text_that_differs() -> None:
    keys = {
        NodeKey("actor", JOB, "Store"),
        NodeKey("actor", JOB, "Store", ACTORS[0]),
        NodeKey("function", JOB, "Store"),
        NodeKey("driver", JOB),
        UNKNOWN,
    }

    assert len({str(key) for key in keys}) == len(keys)

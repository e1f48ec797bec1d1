"""The groups of each kind of wait, in one sample."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.analysis.graph.builder import MANY
from dstack.diagnosis import Target, Vertex, Wait
from dstack.vertex_keys import AnyKey, Key
from tests.unit.scenes import Scene, SceneProcess, groups_of


def unobserved_targets(scene: Scene, wait: Wait) -> list[Vertex]:
    """The targets of a wait, all of which must be unknown because they were not observed."""
    graph = scene.graph()
    targets = [graph[target.vertex] for group in wait.groups for target in group.targets]
    assert all(target.kind == "unknown" and target.unobserved for target in targets), targets
    return targets


def target_of(graph: dict[Key, Vertex], key: Key) -> tuple[Target, ...]:
    """The targets of a vertex that needs one of them."""
    wait = graph[key].wait
    assert wait is not None
    (group,) = wait.groups
    return group.targets


def unknown_labels(scene: Scene, wait: Wait) -> list[str]:
    """The labels of a wait's targets, all of which must be unknown though everything was observed."""
    graph = scene.graph()
    targets = [graph[target.vertex] for group in wait.groups for target in group.targets]
    assert all(target.kind == "unknown" and not target.unobserved for target in targets), targets
    return [target.label for target in targets]


def busy_actor(scene: Scene, by: SceneProcess, count: int = 1) -> SceneProcess:
    """An actor that runs ``count`` calls; several calls run on threads of their own."""
    actor = scene.actor() if count == 1 else scene.threaded_actor(count)
    return actor.runs(*(scene.call(actor, "work", by=by) for _ in range(count)))


# ray.get


def test_get_waits_for_the_thread_that_runs_the_task() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("f", by=driver)
    driver.gets(call)

    wait = scene.wait_of(driver)

    assert wait.kind == "ray.get"
    assert groups_of(wait) == [(1, [worker.key])]
    assert wait.groups[0].targets[0].ref == call.ref
    assert wait.evidence == "exact"


def test_get_of_several_refs_needs_each_unavailable_one() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "abc"]
    driver.has(calls[1]).gets(*calls)

    wait = scene.wait_of(driver)

    assert groups_of(wait) == [(1, [calls[0].key]), (1, [calls[2].key])]
    assert (wait.needed, wait.total) == (3, 3)


@pytest.mark.parametrize("state", ["FINISHED", "FAILED"])
def test_a_task_that_has_ended_has_given_its_value_or_an_error(state: str) -> None:
    scene = Scene()
    driver = scene.driver()
    ended, pending = scene.task("a", by=driver), scene.task("b", by=driver)
    driver.knows(ended, state=state).gets(ended, pending)

    assert groups_of(scene.wait_of(driver)) == [(1, [pending.key])]


def test_get_of_available_values_is_about_to_end() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.task("f", by=driver)
    driver.has(call).gets(call)

    wait = scene.wait_of(driver)

    assert unknown_labels(scene, wait) == ["value that is already available and being fetched"]


def test_get_of_a_put_value_never_waits_for_the_task_that_put_it() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("f", by=driver)
    driver.gets(worker.puts())

    targets = [target for _, group in groups_of(scene.wait_of(driver)) for target in group]

    assert worker.key not in targets
    assert call.key not in targets


def test_a_put_value_of_any_size_is_available() -> None:
    scene = Scene()
    driver = scene.driver()
    pending = scene.task("g", by=driver)
    _, worker = scene.run("f", by=driver)
    driver.gets(worker.puts(size_bytes=0), pending)

    assert groups_of(scene.wait_of(driver)) == [(1, [pending.key])]


def test_get_of_an_unlisted_ref_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets("ab" * 28)

    (target,) = unobserved_targets(scene, scene.wait_of(driver))

    assert target.label.startswith("value of abababab")


def test_get_of_unreadable_refs_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.threads[0].waits_unreadably("a set where a list was expected")

    (target,) = unobserved_targets(scene, scene.wait_of(driver))

    assert target.label == "target of ray.get, which is unreadable: a set where a list was expected"


def test_a_timeout_is_kept_with_the_wait() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("f", by=driver), timeout_s=0.0)

    assert scene.wait_of(driver).is_timed


def test_a_wait_with_a_timeout_is_in_no_deadlock() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    again = scene.call(actor, "again", by=actor)
    actor.runs(scene.call(actor, "once", by=driver)).gets(again, timeout_s=5.0)

    assert [finding.kind for finding in scene.diagnose().findings] == ["polling"]


# ray.wait


def test_wait_needs_some_of_its_refs() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "abc"]
    driver.waits(*calls, num_returns=2)

    wait = scene.wait_of(driver)

    assert wait.kind == "ray.wait"
    assert groups_of(wait) == [(2, [call.key for call in calls])]
    assert (wait.needed, wait.total) == (2, 3)


def test_wait_counts_available_values() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "abc"]
    driver.has(calls[0]).waits(*calls, num_returns=2)

    wait = scene.wait_of(driver)

    assert groups_of(wait) == [(1, [calls[1].key, calls[2].key])]
    assert (wait.needed, wait.total) == (2, 3)


def test_wait_for_available_values_is_about_to_end() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.task(name, by=driver) for name in "ab"]
    driver.has(calls[0]).waits(*calls)

    wait = scene.wait_of(driver)

    assert unknown_labels(scene, wait) == ["value that is already available and being fetched"]


# Thread.join


def test_join_waits_for_the_thread() -> None:
    scene = Scene()
    driver = scene.driver()
    helper = driver.thread("helper", "user")
    driver.joins(helper)

    wait = scene.wait_of(driver)

    assert wait.kind == "thread.join"
    assert groups_of(wait) == [(1, [helper.key])]


def test_a_joined_library_thread_is_a_vertex() -> None:
    scene = Scene()
    driver = scene.driver()
    pool = driver.thread("pool", "ray")
    driver.joins(pool)

    assert scene.graph()[pool.key].label == 'thread "pool" of driver train.py'


def test_a_library_thread_without_a_waiter_is_no_vertex() -> None:
    scene = Scene()
    driver = scene.driver()
    pool = driver.thread("pool", "ray")

    assert pool.key not in scene.graph()


def test_join_of_a_helper_that_waits_for_its_own_actor_is_a_deadlock() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    helper = actor.thread("helper", "user")
    actor.runs(scene.call(actor, "outer", by=driver)).joins(helper)
    helper.gets(scene.call(actor, "inner", by=actor))

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert {actor.key, helper.key} <= set(diagnosis.findings[0].cycle)


def test_join_of_an_unobserved_thread_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.joins(4321)

    assert unobserved_targets(scene, scene.wait_of(driver))


# The execution of a task


def test_a_task_on_an_unknown_thread_needs_any_of_the_threads() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=2)
    driver.gets(actor.running[0])

    assert groups_of(scene.wait_of(driver)) == [(1, [actor.running[0].key])]
    wait = scene.wait_of(actor.running[0])
    assert groups_of(wait) == [(1, [thread.key for thread in actor.slots])]
    assert wait.evidence == "inferred"


def test_a_task_runs_on_the_thread_with_its_id() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=2)
    actor.tasks_read = True
    driver.gets(actor.running[1])

    assert groups_of(scene.wait_of(driver)) == [(1, [actor.slots[1].key])]
    assert scene.graph()[actor.slots[1].key].task_id == actor.running[1].task.task_id


def test_a_task_without_a_thread_is_unobserved() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=2)
    actor.tasks_read = True
    actor.slots[1].task_id = None
    driver.gets(actor.running[1])

    assert unobserved_targets(scene, scene.wait_of(actor.running[1]))


def test_many_tasks_on_many_threads_keep_the_graph_small() -> None:
    scene = Scene()
    actor = busy_actor(scene, scene.driver(), count=MANY + 1)

    graph = scene.graph()

    (shared,) = {target.vertex for call in actor.running for target in target_of(graph, call.key)}
    assert [target.vertex for target in target_of(graph, shared)] == [thread.key for thread in actor.slots]


def test_a_task_without_python_frames_is_not_on_the_thread_of_another() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    caller, called = (scene.call(actor, "work", by=driver) for _ in range(2))
    actor.runs(caller, called).gets(called)

    assert unobserved_targets(scene, scene.wait_of(called))
    assert scene.diagnose().verdict == "blocked"


def test_helper_threads_do_not_hide_which_thread_runs_the_task() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver)
    actor.thread("helper", "user")
    driver.gets(actor.running[0])

    assert groups_of(scene.wait_of(driver)) == [(1, [actor.key])]


def busy_async_actor(scene: Scene, by: SceneProcess, loops: int = 1) -> SceneProcess:
    actor = scene.async_actor(loops=loops)
    return actor.runs(scene.call(actor, "work", by=by))


def test_a_task_on_an_event_loop_is_unobserved() -> None:
    scene = Scene()
    actor = busy_async_actor(scene, scene.driver())

    (target,) = unobserved_targets(scene, scene.wait_of(actor.running[0]))

    assert target.label == "coroutine of Actor.work, which is unreadable"


def test_a_task_on_an_event_loop_waits_for_the_call_that_blocks_the_loop() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_async_actor(scene, driver)
    loop = actor.threads[-1].gets(scene.call(actor, "inner", by=actor))

    wait = scene.wait_of(actor.running[0])

    assert (wait.kind, wait.evidence) == ("event loop", "exact")
    assert groups_of(wait) == [(1, [loop.key])]
    assert scene.graph()[loop.key].label == f"event loop of actor Actor {actor.actor_id[:8]}"


def test_an_actor_that_blocks_its_only_loop_to_wait_for_itself_is_deadlocked() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_async_actor(scene, driver)
    inner = scene.call(actor, "inner", by=actor)
    actor.running.append(inner)
    driver.gets(actor.running[0])
    loop = actor.threads[-1].gets(inner)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert set(diagnosis.findings[0].members) == {loop.key, inner.key}


def test_calls_wait_for_their_event_loop_that_computes() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_async_actor(scene, driver)
    driver.gets(actor.running[0])
    loop = actor.threads[-1].computes()

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("blocked", False)
    assert diagnosis.findings[0].final_blockers[0].vertex == loop.key


def test_a_call_on_one_of_two_loops_is_unobserved_while_one_of_them_is_idle() -> None:
    scene = Scene()
    actor = busy_async_actor(scene, scene.driver(), loops=2)
    actor.threads[-1].gets(scene.call(actor, "inner", by=actor))

    assert unobserved_targets(scene, scene.wait_of(actor.running[0]))


def test_a_task_in_an_unobserved_process_is_unobserved() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("f", by=driver)
    worker.is_unreadable = True
    driver.gets(call)

    (target,) = unobserved_targets(scene, scene.wait_of(call))

    assert target.label == "stack of f, which is unreadable"


def test_a_running_task_of_an_unreachable_owner_is_named_by_its_function() -> None:
    scene = Scene()
    driver = scene.driver()
    _, worker = scene.run("work", by=driver)
    driver.is_unreachable = True

    assert scene.graph()[worker.key].label == "work"


# Calls that an actor has not begun


def test_a_call_waits_for_the_running_call_of_its_actor() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver)

    wait = scene.wait_of(scene.call(actor, "queued", by=driver))

    assert wait.kind == "actor slot"
    assert groups_of(wait) == [(1, [actor.key])]
    assert wait.evidence == "exact"


def test_a_call_waits_for_any_running_call_of_its_actor() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=3)

    wait = scene.wait_of(scene.call(actor, "queued", by=driver).arrives())

    assert groups_of(wait) == [(1, [call.key for call in actor.running])]
    assert wait.evidence == "inferred"


def test_a_call_without_a_known_arrival_may_have_a_free_slot() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=3)

    (target,) = unobserved_targets(scene, scene.wait_of(scene.call(actor, "queued", by=driver)))

    assert target.label.startswith("free slot of actor Actor")


def test_an_arrival_counts_for_its_own_attempt_only() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=3)
    call = scene.call(actor, "queued", by=driver).arrives()
    scene.sample()
    (seen,) = scene.samples
    scene.samples = [replace(seen, tasks=tuple(replace(task, attempt=1) for task in seen.tasks))]

    assert unobserved_targets(scene, scene.wait_of(call))


def test_a_call_also_waits_for_earlier_calls_that_have_not_arrived() -> None:
    scene = Scene()
    driver, other = scene.driver(), scene.driver()
    actor = busy_actor(scene, driver, count=2)
    on_its_way = scene.call(actor, "first", by=driver)
    scene.call(actor, "of another", by=other)

    wait = scene.wait_of(scene.call(actor, "queued", by=driver).arrives())

    assert groups_of(wait) == [(1, [*(call.key for call in actor.running), on_its_way.key])]


def grouped(scene: Scene, by: SceneProcess) -> SceneProcess:
    """An actor with a slot in each of two concurrency groups and in the default group, all in use."""
    actor = scene.threaded_actor(3)
    actor.groups, actor.tasks_read = {"read": "io", "write": "io", "train": "compute"}, True
    return actor.runs(*(scene.call(actor, method, by=by) for method in ("read", "train", "other")))


def test_a_call_waits_for_calls_in_the_declared_concurrency_group_of_its_method() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    reading, training, other = (thread.key for thread in actor.slots)

    wait = scene.wait_of(scene.call(actor, "write", by=driver).arrives())

    assert groups_of(wait) == [(1, [reading])]
    assert wait.assumed == ("Actor.write runs in the concurrency group io of its actor, as declared",)
    assert [(group.needs, [target.vertex for target in group.targets]) for group in wait.proven_groups] == [
        (1, [reading, training, other])
    ]


def test_a_call_of_a_method_without_a_group_waits_for_calls_in_the_default_group() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)

    wait = scene.wait_of(scene.call(actor, "another", by=driver).arrives())

    assert groups_of(wait) == [(1, [actor.slots[2].key])]


def test_a_call_with_a_name_of_its_own_may_be_in_any_group() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    named = scene.call(actor, "write", by=driver).becomes(name="nightly write").arrives()
    written = scene.call(actor, "write", by=driver).arrives()
    actor.running[1].becomes(name="training")

    assert len(groups_of(scene.wait_of(named))[0][1]) == 3
    assert groups_of(scene.wait_of(written)) == [(1, [thread.key for thread in actor.slots[:2]])]


def test_a_deadlock_within_a_declared_concurrency_group_is_suspected_with_an_assumption() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    actor.slots[0].gets(scene.call(actor, "write", by=actor).arrives())
    driver.gets(actor.running[0])

    (finding, *_) = scene.sample().second_sample().diagnose().findings

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.assumed == ("Actor.write runs in the concurrency group io of its actor, as declared",)


def test_a_fully_stuck_actor_needs_no_assumption_about_its_groups() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    queued = scene.call(actor, "write", by=actor).arrives()
    for thread in actor.slots:
        thread.gets(queued)
    driver.gets(actor.running[0])

    (finding, *_) = scene.sample().second_sample().diagnose().findings

    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", True, ())


def test_a_call_of_an_idle_actor_is_about_to_begin() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.call(scene.actor(), "next", by=driver)

    assert scene.graph()[call.key].wait is None


def test_a_call_of_an_unreachable_actor_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver)
    actor.is_unreachable = True

    (target,) = unobserved_targets(scene, scene.wait_of(scene.call(actor, "queued", by=driver)))

    assert target.label.endswith("which was not observed")


def test_a_task_that_its_worker_does_not_list_has_an_unobserved_target() -> None:
    scene = Scene()
    call = scene.task("f", by=scene.driver())

    assert unobserved_targets(scene, scene.wait_of(call))


def test_a_call_of_an_unlisted_actor_has_an_unobserved_target() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    call = scene.call(actor, "lost", by=driver, state="PENDING_NODE_ASSIGNMENT")
    scene.actors.clear()

    assert unobserved_targets(scene, scene.wait_of(call))


def test_many_calls_behind_many_running_ones_keep_the_graph_small() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=MANY + 1)
    calls = [scene.call(actor, "queued", by=driver).arrives() for _ in range(100)]

    graph = scene.graph()

    assert {len(wait.groups[0].targets) for call in calls if (wait := graph[call.key].wait)} == {1}


def test_a_task_in_an_unspecific_state_has_an_unknown_target() -> None:
    scene = Scene()
    call = scene.task("f", by=scene.driver(), state="PENDING_OBJ_STORE_MEM_AVAIL")

    assert unknown_labels(scene, scene.wait_of(call)) == ["scheduler (PENDING_OBJ_STORE_MEM_AVAIL)"]


# Arguments


def pending_call(scene: Scene, driver: SceneProcess, arguments: int) -> tuple[Wait, list[Key]]:
    """The wait of a call whose owner has passed this many unavailable refs, and the tasks that make them."""
    makers = [scene.run("make", by=driver) for _ in range(arguments)]
    driver.passes(*(call for call, _ in makers))
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")
    return scene.wait_of(call), [worker.key for _, worker in makers]


def test_the_only_unavailable_argument_is_the_missing_one() -> None:
    scene = Scene()

    wait, makers = pending_call(scene, scene.driver(), 1)

    assert wait.kind == "arguments"
    assert groups_of(wait) == [(1, makers)]
    assert wait.evidence == "exact"


def test_any_of_several_unavailable_arguments_may_be_missing() -> None:
    scene = Scene()

    wait, makers = pending_call(scene, scene.driver(), 3)

    assert groups_of(wait) == [(1, makers)]
    assert wait.evidence == "inferred"
    assert wait.inferred == "any of the 3 pending refs that its owner passed as arguments"


def test_possible_waiters_share_many_arguments() -> None:
    scene = Scene()
    driver = scene.driver()

    wait, makers = pending_call(scene, driver, MANY + 1)

    shared = AnyKey("arguments", (driver.worker_id,))
    assert groups_of(wait) == [(1, [shared])]
    assert (wait_of_all := scene.graph()[shared].wait) is not None
    assert groups_of(wait_of_all) == [(1, makers)]
    assert wait_of_all.evidence == "inferred"


def test_an_unlisted_argument_is_unobserved() -> None:
    scene = Scene()

    wait, _ = pending_call(scene, scene.driver(), 0)

    assert unobserved_targets(scene, wait)


def test_an_available_argument_is_no_dependency() -> None:
    scene = Scene()
    driver = scene.driver()
    made, pending = scene.task("made", by=driver), scene.task("pending", by=driver)
    driver.passes(pending).knows(made, argument_uses=1, size_bytes=8)
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    assert groups_of(scene.wait_of(call)) == [(1, [pending.key])]


def test_arguments_of_other_owners_are_no_dependencies() -> None:
    scene = Scene()
    driver, other = scene.driver(), scene.driver()
    mine, theirs = scene.task("mine", by=driver), scene.task("theirs", by=other)
    driver.passes(mine)
    other.passes(theirs)
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    assert groups_of(scene.wait_of(call)) == [(1, [mine.key])]


def test_a_call_never_waits_for_its_own_value() -> None:
    scene = Scene()
    driver = scene.driver()
    first = scene.task("first", by=driver)
    second = scene.task("second", by=driver, state="PENDING_ARGS_AVAIL")
    third = scene.task("third", by=driver, state="PENDING_ARGS_AVAIL")
    driver.passes(first, second)

    assert groups_of(scene.wait_of(second)) == [(1, [first.key])]
    assert groups_of(scene.wait_of(third)) == [(1, [first.key, second.key])]


def test_an_actor_handle_is_no_missing_argument() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.passes(f"{'f' * 16}{actor.actor_id}01000000")
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    assert unobserved_targets(scene, scene.wait_of(call))


def test_a_borrowed_argument_may_be_missing_though_its_owner_has_it() -> None:
    scene = Scene()
    owner, borrower = scene.driver(), scene.driver()
    made, pending = scene.task("made", by=owner), scene.task("pending", by=borrower)
    owner.has(made)
    borrower.passes(pending).knows(made, argument_uses=1)
    call = scene.task("use", by=borrower, state="PENDING_ARGS_AVAIL")

    wait = scene.wait_of(call)

    assert pending.key in [target.vertex for target in wait.groups[0].targets]
    assert scene.diagnose().verdict == "blocked"
    assert wait.total == 2


# The order of calls


def test_a_call_not_sent_yet_waits_for_the_earlier_one_that_lacks_an_argument() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.passes(scene.task("make", by=driver))
    earlier = scene.call(actor, "first", by=driver, state="PENDING_ARGS_AVAIL")
    later = scene.call(actor, "second", by=driver, state="PENDING_NODE_ASSIGNMENT")

    wait = scene.wait_of(later)

    assert wait.kind == "order"
    assert groups_of(wait) == [(1, [earlier.key])]


def test_a_call_is_not_behind_calls_of_other_callers_or_actors() -> None:
    scene = Scene()
    driver, other, actor, another = scene.driver(), scene.driver(), scene.actor(), scene.actor()
    scene.call(actor, "first", by=other, state="PENDING_ARGS_AVAIL")
    scene.call(another, "first", by=driver, state="PENDING_ARGS_AVAIL")
    later = scene.call(actor, "second", by=driver, state="PENDING_NODE_ASSIGNMENT")

    assert unknown_labels(scene, scene.wait_of(later)) == ["caller, which has not sent it yet"]


def test_many_calls_behind_many_that_lack_arguments_keep_the_graph_small() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    for _ in range(MANY + 1):
        scene.call(actor, "first", by=driver, state="PENDING_ARGS_AVAIL")
    later = [scene.call(actor, "second", by=driver, state="PENDING_NODE_ASSIGNMENT") for _ in range(100)]

    graph = scene.graph()

    assert {len(wait.groups[0].targets) for call in later if (wait := graph[call.key].wait)} == {1}


# Actors that are not created yet


def test_a_call_waits_for_the_creation_of_its_actor() -> None:
    scene = Scene()
    scene.node(free={}, CPU=1.0)
    driver = scene.driver()
    actor, creation = scene.pending_actor("Late", by=driver, CPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    call = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")

    wait = scene.wait_of(call)

    assert wait.kind == "actor creation"
    assert groups_of(wait) == [(1, [creation.key])]


def test_a_call_of_an_actor_in_creation_waits_for_its_constructor() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, creation = scene.pending_actor("Late", by=driver)
    maker = scene.worker().runs(creation)
    call = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")

    wait = scene.wait_of(call)

    assert wait.kind == "actor creation"
    assert groups_of(wait) == [(1, [maker.key])]


def test_a_call_of_an_actor_with_an_unlisted_creation_has_an_unknown_target() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, _ = scene.pending_actor("Late", by=driver)
    driver.submitted.clear()
    call = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")

    (label,) = unknown_labels(scene, scene.wait_of(call))

    assert label.startswith("creation of actor Late")


def test_a_task_that_waits_for_a_value_that_it_put_does_not_wait_for_itself() -> None:
    scene = Scene()
    call, worker = scene.run("reserve", by=scene.driver())
    worker.gets(f"{call.task.task_id}01e1f505")

    assert scene.diagnose().verdict == "blocked"


def test_a_shared_vertex_is_not_counted_among_the_waiters() -> None:
    scene = Scene()
    driver = scene.driver()
    makers = [scene.run("make", by=driver) for _ in range(MANY + 1)]
    driver.passes(*(call for call, _ in makers))
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    (finding,) = scene.diagnose().findings

    assert finding.members == (call.key,)
    assert finding.helpers == (AnyKey("arguments", (driver.worker_id,)),)
    assert (finding.waiters_direct, finding.waiters_total) == (1, 1)
    assert {(one.waiters_direct, one.waiters_total) for one in finding.final_blockers} == {(1, 1)}

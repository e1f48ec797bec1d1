"""Waits of threads for each other within a process: locks, futures, generators, and calls with unknown wakers."""

from __future__ import annotations

from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Vertex, Wait
from dstack.model.vertex_facts import reason
from dstack.model.vertex_keys import UnknownKey
from tests.unit.scenes import Scene, SceneProcess, SceneThread, groups_of


def labels(scene: Scene, wait: Wait) -> list[str]:
    """The labels of the targets, which are unknown though everything was observed."""
    graph = scene.graph()
    targets: list[Vertex] = [graph[target.vertex] for group in wait.groups for target in group.targets]
    assert all(target.kind == "unknown" and not target.unobserved for target in targets), targets
    return [describe(target) for target in targets]


def unknown_wakers(scene: Scene, wait: Wait) -> list[str]:
    """The calls that wait for an unknown waker."""
    graph = scene.graph()
    targets = [graph[target.vertex] for group in wait.groups for target in group.targets]
    return [target.waker_of.text for target in targets if target.waker_of]


def driver_with(scene: Scene, *names: str) -> tuple[SceneProcess, list[SceneThread]]:
    driver = scene.driver()
    return driver, [driver.thread(name, "user") for name in names]


# Locks


def test_a_lock_is_waited_for_at_its_holder() -> None:
    scene = Scene()
    _, (holder, waiter) = driver_with(scene, "holder", "waiter")
    waiter.wants_lock("0x10", holder)

    wait = scene.wait_of(waiter)

    assert (wait.kind, wait.evidence) == ("lock", "exact")
    assert groups_of(wait) == [(1, [holder.key])]


def test_an_inferred_holder_is_marked_so() -> None:
    scene = Scene()
    _, (holder, waiter) = driver_with(scene, "holder", "waiter")
    waiter.wants_lock("0x10", holder, inferred="with block")

    wait = scene.wait_of(waiter)

    assert (wait.evidence, wait.inferred) == ("inferred", reason("with block"))


def test_waiters_for_a_lock_without_a_known_holder_share_a_target() -> None:
    scene = Scene()
    _, (one, two, other) = driver_with(scene, "one", "two", "other")
    one.wants_lock("0x10")
    two.wants_lock("0x10")
    other.wants_lock("0x20")

    waits = [scene.wait_of(thread) for thread in (one, two, other)]

    assert waits[0].groups == waits[1].groups != waits[2].groups
    assert unknown_wakers(scene, waits[0]) == ["threading.Lock.acquire"]


def test_an_unread_holder_is_unobserved() -> None:
    scene = Scene()
    driver, (unread, waiter) = driver_with(scene, "unread", "waiter")
    waiter.wants_lock("0x10", unread)
    driver.threads.remove(unread)

    (target,) = (target for group in scene.wait_of(waiter).groups for target in group.targets)

    assert scene.graph()[target.vertex].unobserved


# Futures


def test_a_queued_future_is_waited_for_at_any_thread_of_its_executor() -> None:
    scene = Scene()
    _, (waiter, one, two) = driver_with(scene, "waiter", "pool_0", "pool_1")
    waiter.awaits_future(one, two, inferred="queued future")

    wait = scene.wait_of(waiter)

    assert groups_of(wait) == [(1, [one.key, two.key])]
    assert wait.evidence == "inferred"


def test_each_of_several_futures_is_needed() -> None:
    scene = Scene()
    _, (waiter, one, two) = driver_with(scene, "waiter", "pool_0", "pool_1")
    waiter.awaits_all((one,), (one, two), ())

    wait = scene.wait_of(waiter)

    assert groups_of(wait)[:2] == [(1, [one.key]), (1, [one.key, two.key])]
    assert unknown_wakers(scene, wait) == ["concurrent.futures.wait"]
    assert (wait.needed, wait.total) == (3, 3)


def test_a_future_without_a_known_thread_can_complete() -> None:
    scene = Scene()
    _, (waiter,) = driver_with(scene, "waiter")
    waiter.awaits_future()

    assert unknown_wakers(scene, scene.wait_of(waiter)) == ["Future.result"]
    assert scene.diagnose().findings == ()


def test_threads_that_run_futures_are_vertices_without_user_code() -> None:
    scene = Scene()
    driver, (waiter,) = driver_with(scene, "waiter")
    runner = driver.thread("pool_0", "ray")
    waiter.awaits_all((runner,))

    assert groups_of(scene.wait_of(waiter)) == [(1, [runner.key])]
    assert runner.key in scene.graph()


# Generators


def test_the_next_item_is_made_by_the_generators_task() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("numbers", by=driver)
    driver.threads[0].gets_next_item(f"{call.task.task_id}03000000")

    wait = scene.wait_of(driver)

    assert wait.kind == "generator"
    assert groups_of(wait) == [(1, [worker.key])]


def test_an_item_of_an_ended_generator_is_about_to_arrive() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.task("numbers", by=driver)
    item = f"{call.task.task_id}03000000"
    driver.knows(item, state="FINISHED").threads[0].gets_next_item(item)

    assert labels(scene, scene.wait_of(driver)) == ["value that is already available and being fetched"]


# Calls with unknown wakers


def test_a_task_in_a_named_wait_waits_for_an_unknown_of_that_name() -> None:
    scene = Scene()
    driver = scene.driver()
    _, worker = scene.run("consume", by=driver)
    worker.threads[0].is_in("queue.Queue.get", "0x30")

    wait = scene.wait_of(worker)

    assert (wait.kind, wait.kind_name) == ("other", "queue.Queue.get")
    assert unknown_wakers(scene, wait) == ["queue.Queue.get"]


def test_threads_in_the_background_that_wait_for_work_are_no_finding() -> None:
    scene = Scene()
    driver, (consumer,) = driver_with(scene, "consumer")
    consumer.is_in("queue.Queue.get")
    rays = driver.thread("logs", "ray").is_in("queue.Queue.get")

    assert unknown_wakers(scene, scene.wait_of(consumer)) == ["queue.Queue.get"]
    assert rays.key not in scene.graph()
    assert scene.diagnose().findings == ()


def test_a_ray_thread_with_a_waiter_is_a_vertex() -> None:
    scene = Scene()
    driver = scene.driver()
    rays = driver.thread("logs", "ray").is_in("queue.Queue.get")
    driver.joins(rays)

    assert groups_of(scene.wait_of(driver)) == [(1, [rays.key])]
    assert unknown_wakers(scene, scene.wait_of(rays)) == ["queue.Queue.get"]


def test_a_task_that_waits_for_a_lock_keeps_its_cpu() -> None:
    scene = Scene()
    node = scene.node(CPU=1.0, free={"CPU": 0.0})
    driver = scene.driver()
    _, holder = scene.run("hold", by=driver, node=node, CPU=1.0)
    asks = scene.task("ask", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 1.0})
    holder.threads[0].wants_lock("0x10")

    assert groups_of(scene.wait_of(asks)) == [(1, [holder.key])]


# Deadlocks through threads, and look-alikes


def ring(scene: Scene) -> tuple[SceneProcess, SceneProcess, SceneThread, SceneThread]:
    """A driver waits for an actor's call, which needs a lock of a thread, which waits for the driver's task.

    The actor runs ``work``, blocked on a lock; its thread ``holder`` has the lock and gets ``back`` of a second actor,
    which is queued there behind ``ask``, which gets ``more`` of the first, which is queued behind ``work``.
    """
    driver, first, second = scene.driver(), scene.actor("First"), scene.actor("Second")
    work = scene.call(first, "work", by=driver)
    holder = first.thread("holder", "user")
    ask = scene.call(second, "ask", by=driver)
    more = scene.call(first, "more", by=second)
    back = scene.call(second, "back", by=first)
    driver.gets(work)
    first.runs(work)
    first.threads[0].wants_lock("0x10", holder, inferred="with block")
    holder.gets(back)
    second.runs(ask).gets(more)
    return first, second, first.threads[0], holder


def test_a_cycle_through_a_lock_and_a_thread_is_a_deadlock() -> None:
    scene = Scene()
    _, second, worker, holder = ring(scene)

    diagnosis = scene.sample().second_sample().diagnose()

    (finding,) = diagnosis.findings
    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.assumed == ("a lock is held by the thread in a with block of it",)
    assert {worker.key, holder.key, second.key} <= set(finding.cycle)
    assert any("waits for a lock, held by" in step.text and "inferred" in step.text for step in finding.explanation)
    assert len(finding.members) == 5  # these three, and the two queued calls
    assert finding.blocked_behind == (scene.procs[0].key,)


def test_a_cycle_with_a_running_holder_is_no_deadlock() -> None:
    scene = Scene()
    *_, holder = ring(scene)
    holder.computes()

    assert scene.sample().second_sample().diagnose().verdict == "running"


def test_a_cycle_with_a_timeout_on_the_lock_is_no_deadlock() -> None:
    scene = Scene()
    _, _, worker, holder = ring(scene)
    worker.wants_lock("0x10", holder, timeout_s=60.0)

    assert scene.sample().second_sample().diagnose().verdict == "running"


def test_a_cycle_with_an_unknown_holder_is_suspected() -> None:
    scene = Scene()
    _, _, worker, _ = ring(scene)
    worker.wants_lock("0x10")

    assert scene.sample().second_sample().diagnose().verdict == "stalled"


def test_a_cycle_with_another_lock_in_the_second_sample_is_not_confirmed() -> None:
    scene = Scene()
    _, _, worker, holder = ring(scene)
    scene.sample()
    worker.wants_lock("0x20", holder, inferred="with block")

    assert scene.second_sample().diagnose().verdict == "running"


def test_threads_that_acquire_two_locks_in_opposite_orders_are_a_deadlock() -> None:
    scene = Scene()
    _, (one, two) = driver_with(scene, "one", "two")
    one.wants_lock("0x10", two)
    two.wants_lock("0x20", one)

    (finding,) = scene.sample().second_sample().diagnose().findings

    assert (finding.kind, set(finding.members)) == ("deadlock", {one.key, two.key})


def test_a_thread_that_acquires_its_own_lock_again_is_a_deadlock() -> None:
    scene = Scene()
    _, (one,) = driver_with(scene, "one")
    one.wants_lock("0x10", one)

    assert scene.diagnose().verdict == "deadlock"


def test_an_executor_whose_threads_all_wait_for_queued_work_is_a_deadlock() -> None:
    scene = Scene()
    driver, pool = driver_with(scene, "pool_0", "pool_1")
    for thread in pool:
        thread.awaits_future(*pool, inferred="queued future")
    driver.threads[0].awaits_future(pool[0])

    (finding,) = scene.diagnose().findings

    assert finding.kind == "deadlock"
    assert finding.blocked_behind == (driver.key,)


def test_an_executor_with_a_running_thread_is_no_deadlock() -> None:
    scene = Scene()
    driver, pool = driver_with(scene, "pool_0", "pool_1")
    pool[0].awaits_future(*pool, inferred="queued future")
    driver.threads[0].awaits_future(pool[0])

    assert scene.diagnose().verdict == "running"


def test_all_futures_are_needed_though_one_of_them_runs() -> None:
    scene = Scene()
    driver, (runs, hangs) = driver_with(scene, "runs", "hangs")
    hangs.wants_lock("0x10", hangs)
    driver.threads[0].awaits_all((runs,), (hangs,))

    assert driver.key in scene.diagnose().findings[0].blocked_behind


def test_a_consumer_and_a_producer_that_wait_for_each_other_are_a_deadlock() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = scene.actor("Producer")
    numbers = scene.call(actor, "numbers", by=driver)
    other = scene.call(actor, "other", by=driver)
    task, consumer = scene.run("consume", by=driver)
    consumer.threads[0].gets_next_item(f"{numbers.task.task_id}02000000")
    actor.runs(numbers).gets(task)

    assert other.key in scene.graph()
    assert scene.sample().second_sample().diagnose().verdict == "deadlock"


# Unread calls and threads


def test_threads_that_were_not_read_are_distinct_vertices() -> None:
    scene = Scene()
    unread = 77
    actors = [scene.actor(name) for name in ("Ann", "Bob")]
    for actor in actors:
        actor.runs(scene.call(actor, "go", by=scene.driver())).joins(unread)

    findings = scene.diagnose().findings

    targets = [target.vertex for actor in actors for group in scene.wait_of(actor).groups for target in group.targets]
    assert targets == [UnknownKey("thread", (actor.worker_id, unread)) for actor in actors]
    assert [finding.members for finding in findings] == [(actor.key,) for actor in actors]
    assert [blocker.vertex for finding in findings for blocker in finding.final_blockers] == targets
    assert "thread 77 of actor Ann" in findings[0].summary
    assert "thread 77 of actor Bob" in findings[1].summary


def test_calls_with_unreadable_targets_are_distinct_vertices() -> None:
    scene = Scene()
    drivers = [scene.driver(), scene.driver()]
    for driver in drivers:
        driver.threads[0].waits_unreadably("no memory")

    findings = scene.diagnose().findings

    assert [finding.members for finding in findings] == [(driver.key,) for driver in drivers]

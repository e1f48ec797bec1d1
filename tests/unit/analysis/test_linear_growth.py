"""A diagnosis of twice as many objects of any kind makes about twice as many function calls."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import msgspec
import pytest
from rich.console import Console

from dstack.analysis.second_sample import plan_readings
from dstack.analysis.solve.reduction import cores, residue, stuck_graph
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.snapshot import Snapshot
from dstack.report.check_json import check_json
from dstack.report.text import print_report
from tests.unit.scenes import Scene, SceneProcess, group_of

SIZE = 60
CONDITION = "threading.Condition.wait"


def calls_at_one_actor(size: int) -> Scene:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(4 * size)]
    clerk.runs(calls[0])
    driver.gets(*calls)
    return scene


def calls_at_a_deadlocked_actor(size: int) -> Scene:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(4 * size)]
    clerk.runs(calls[0]).gets(calls[1])
    driver.gets(*calls)
    return scene


def tasks_of_one_owner(size: int) -> Scene:
    scene = Scene()
    driver = scene.driver()
    first, _ = scene.run("first", by=driver)
    tasks = [scene.task("next", by=driver, state="PENDING_ARGS_AVAIL") for _ in range(4 * size)]
    driver.passes(first)
    driver.gets(*tasks)
    return scene


def tasks_that_lack_many_arguments(size: int) -> Scene:
    scene = Scene()
    driver = scene.driver()
    before = [scene.run("before", by=driver)[0] for _ in range(size)]
    driver.passes(*before)
    driver.gets(*(scene.task("next", by=driver, state="PENDING_ARGS_AVAIL") for _ in range(size)))
    return scene


def infeasible_tasks(size: int) -> Scene:
    scene = Scene()
    driver = scene.driver()
    for number in range(4 * size):
        needs = {"TPU": float(1 + number % 7)}
        scene.task("big", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources=needs)
    driver.gets(*driver.submitted)
    return scene


def threads_of_one_process(size: int) -> Scene:
    scene = Scene()
    driver, pool = scene.driver(), scene.actor("Pool")
    pool.runs(scene.call(pool, "run", by=driver))
    for _ in range(4 * size):
        pool.thread("worker", "user").is_in(CONDITION, "0x1")
    driver.gets(*driver.submitted)
    return scene


def full_slots(size: int) -> Scene:
    scene = Scene()
    driver, gate = scene.driver(), scene.actor("Gate")
    for _ in range(size - 1):
        gate.thread()
    gate.runs(*(scene.call(gate, "enter", by=driver) for _ in range(size)))
    for thread in gate.threads:
        thread.is_in(CONDITION, "0x1")
    driver.gets(*driver.submitted)
    return scene


def stalled_chains(size: int) -> Scene:
    scene = Scene()
    for number in range(size):
        driver, actor = scene.driver(), scene.actor("Gate")
        call = scene.call(actor, "enter", by=driver)
        actor.runs(call).is_in(CONDITION, f"{number:#x}")
        driver.gets(call)
    return scene


def ranks_of_a_collective(size: int) -> Scene:
    scene = Scene()
    driver = scene.driver()
    for _ in range(size):
        actor = scene.actor("Trainer")
        actor.runs(scene.call(actor, "train", by=driver)).is_in("all_reduce of torch.distributed")
    driver.gets(*driver.submitted)
    return scene


def ranks_of_a_process_group(size: int, operation: str = "broadcast") -> Scene:
    """Half of the ranks are in one collective, and the others in another one or in a get of the first rank."""
    scene = Scene()
    driver = scene.driver()
    ranks = [scene.actor("Rank", owner_id=driver.worker_id).works_for() for _ in range(size)]
    for number, rank in enumerate(ranks):
        rank.tasks_read = True
        group = group_of(number, *range(size))
        rank.runs(scene.call(rank, "train", by=driver)).is_member(group)
        if number < size // 2:
            rank.collects("all_reduce", group)
        elif operation:
            rank.collects(operation, group, peer=0)
        else:
            rank.gets(scene.call(ranks[0], "weight", by=rank))
    driver.gets(*driver.submitted)
    return scene


def separate_cycles(size: int) -> Scene:
    scene = Scene()
    driver = scene.driver()
    for _ in range(size):
        ring(scene, driver)
    return scene


def ring(scene: Scene, driver: SceneProcess) -> None:
    left, right = scene.actor("Left"), scene.actor("Right")
    left.runs(scene.call(left, "run", by=driver))
    right.runs(scene.call(right, "run", by=driver))
    left.gets(scene.call(right, "step", by=left))
    right.gets(scene.call(left, "step", by=right))


def pollers(size: int) -> Scene:
    scene = Scene()
    call, _ = scene.run("work", by=scene.driver())
    for _ in range(size):
        scene.driver().gets(call, timeout_s=1.0)
    return scene


def sampled_twice(scene: Scene) -> Snapshot:
    worker_ids = [proc.worker_id for proc in scene.procs]
    return scene.sample().sample(only=worker_ids).snapshot()


def explain(snapshot: Snapshot) -> tuple[str, dict[str, Any]]:
    plan_readings(snapshot)
    analysed = AnalysedSnapshot.of(snapshot)
    out = io.StringIO()
    print_report(Console(file=out, highlight=False, width=100), analysed)
    document: dict[str, Any] = msgspec.json.decode(check_json(analysed))
    return out.getvalue(), document


def calls_made(action: Callable[[], object]) -> int:
    """The number of function calls, including functions written in C."""
    count = 0

    def note(frame: FrameType, what: str, argument: object) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    "much",
    [
        calls_at_one_actor,
        calls_at_a_deadlocked_actor,
        tasks_of_one_owner,
        tasks_that_lack_many_arguments,
        infeasible_tasks,
        threads_of_one_process,
        full_slots,
        stalled_chains,
        ranks_of_a_collective,
        ranks_of_a_process_group,
        partial(ranks_of_a_process_group, operation=""),
        separate_cycles,
        pollers,
    ],
)
def test_twice_as_many_objects_make_twice_as_many_calls(much: Callable[[int], Scene]) -> None:
    once, twice = sampled_twice(much(SIZE)), sampled_twice(much(2 * SIZE))
    explain(once)

    calls = [calls_made(partial(explain, snapshot)) for snapshot in (once, twice)]

    assert calls[1] < 2.6 * calls[0]


def cycles_that_wait_for_cycles(size: int) -> dict[str, list[tuple[int, list[str]]]]:
    """Each cycle is a deadlock of its own, and also waits for the cycle before it."""
    waits = {}
    for number in range(size):
        before = [(1, [f"a{number - 1}"])] if number else []
        waits[f"a{number}"] = [(1, [f"b{number}"]), *before]
        waits[f"b{number}"] = [(1, [f"a{number}"])]
    return waits


def test_each_of_many_chained_deadlocks_is_searched_once() -> None:
    def find(size: int) -> None:
        waits = cycles_that_wait_for_cycles(size)
        assert len(cores(waits, stuck_graph(waits, residue(waits)))) == size

    calls = [calls_made(partial(find, size)) for size in (200, 400)]

    assert calls[1] < 2.2 * calls[0]

"""The paths of a profile in one sample: their steps, and how time is shared; random graphs against brute force."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.stacks.wait_paths import (
    CYCLE,
    IDLE,
    MAX_PATHS,
    OTHERS,
    Hindsight,
    Nodes,
    OwnWaits,
    PathNode,
    PathReader,
    Paths,
    Root,
    paths_of,
    require_roots,
)
from dstack.errors import UsageError
from dstack.model.profile import PathStep, ProfileOptions
from dstack.model.snapshot import producer_task_id
from dstack.model.vertex_keys import Key, TaskKey
from tests.unit.scenes import Scene

DRIVERS = ProfileOptions()


def reader_of(scene: Scene) -> PathReader:
    snapshot = scene.snapshot()
    index = SampleIndex(snapshot, snapshot.samples[0])
    return PathReader(index, wait_for_graph(index))


def paths_in(scene: Scene, options: ProfileOptions = DRIVERS) -> dict[str, float]:
    """The paths of all roots as text, each with its fraction."""
    reader = reader_of(scene)
    roots = reader.roots(options)
    nodes = reader.nodes(roots)
    return {
        " > ".join([root.name, *(step.name for step in path)]): round(fraction, 6)
        for root in roots
        for path, fraction in paths_of(nodes, root).items()
    }


def key(number: int) -> Key:
    return TaskKey(str(number))


def node(name: object, *targets: int, state: str = "") -> PathNode:
    return PathNode((PathStep(str(name), state=state),), tuple(map(key, targets)))  # type: ignore[arg-type]


def names(paths: Paths) -> dict[str, float]:
    return {" ".join(step.name for step in path): round(fraction, 6) for path, fraction in paths.items()}


# Steps


def test_a_path_leads_from_the_driver_through_its_waits_to_what_runs() -> None:
    scene = Scene()
    driver = scene.driver()
    outer, worker = scene.run("outer", by=driver)
    inner, _ = scene.run("inner", by=worker)
    driver.gets(outer)
    worker.gets(inner)

    (path,) = paths_in(scene)

    assert path == "driver train.py > run > ray.get > outer > ray.get > inner > on CPU"


def test_a_queued_call_leads_to_the_call_that_it_is_queued_behind() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(4)]
    clerk.runs(calls[0])
    driver.gets(*calls)

    found = paths_in(scene)

    queued = {path: fraction for path, fraction in found.items() if "Clerk.stamp: queued behind" in path}
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-5)
    assert sum(queued.values()) == pytest.approx(0.75, abs=1e-5)
    assert len(queued) == 1  # behind one call, or behind calls that are queued themselves
    assert all(path.split(" > ").count("Clerk.stamp: queued behind") == 1 for path in queued)


def test_an_actor_is_followed_and_may_have_nothing_to_do() -> None:
    scene = Scene()
    driver, idle, busy = scene.driver(), scene.actor("Clerk"), scene.actor("Cook")
    call = scene.call(busy, "cook", by=driver)
    busy.runs(call)
    driver.gets(call)
    scene.call(idle, "stamp", by=driver)

    assert paths_in(scene, ProfileOptions(of="Clerk")) == {f"actor Clerk > {IDLE.name}": 1.0}
    assert list(paths_in(scene, ProfileOptions(of="Cook"))) == ["actor Cook > Cook.cook > on CPU"]
    with pytest.raises(UsageError, match="no actor, class or rank called Waiter"):
        require_roots([], ProfileOptions(of="Waiter"))


def test_drivers_of_one_script_are_told_apart() -> None:
    scene = Scene()
    scene.driver()
    scene.driver()

    roots = reader_of(scene).roots(DRIVERS)

    assert len({root.name for root in roots}) == 2
    assert all(root.name.startswith("driver train.py (pid ") for root in roots)


# Sharing


def brute_force(nodes: Nodes, at: Key) -> Paths:
    """All ways from a node to an end, each with its share."""
    one = nodes[at]
    if not one.targets:
        return {one.steps: 1.0}
    found: Paths = {}
    for target in one.targets:
        for path, fraction in brute_force(nodes, target).items():
            whole = (*one.steps, *path)
            found[whole] = found.get(whole, 0.0) + fraction / len(one.targets)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_shares_are_those_of_all_ways(seed: int) -> None:
    random = Random(seed)
    size = random.randint(1, 12)
    nodes = {
        key(i): node(i % 5, *random.sample(range(i + 1, size), min(size - i - 1, random.randint(0, 3))))
        for i in range(size)
    }

    found = paths_of(nodes, Root("", (key(0),)))

    expected = brute_force(nodes, key(0))
    assert found.keys() == expected.keys()
    assert all(math.isclose(found[path], expected[path]) for path in expected)
    assert math.isclose(sum(found.values()), 1.0)


def test_a_cycle_is_the_end_of_a_path() -> None:
    nodes = {key(0): node("a", 1), key(1): node("b", 0)}

    assert names(paths_of(nodes, Root("", (key(0),)))) == {f"a b {CYCLE.name}": 1.0}


def test_a_wide_wait_keeps_its_heaviest_paths_and_all_of_its_time() -> None:
    count = 3 * MAX_PATHS
    nodes = {key(0): node("top", *range(1, count))} | {key(i): node(i) for i in range(1, count)}

    found = paths_of(nodes, Root("", (key(0),)))

    assert len(found) == MAX_PATHS
    assert found[(PathStep("top"), OTHERS)] > 0.5
    assert math.isclose(sum(found.values()), 1.0)


def test_a_chain_that_is_too_long_ends_and_keeps_its_time() -> None:
    nodes = {key(i): node("step", i + 1) for i in range(1_000)} | {key(1_000): node("end")}

    (found,) = paths_of(nodes, Root("", (key(0),))).items()

    assert found[1] == 1.0


# Hindsight


def test_in_hindsight_a_wait_was_for_what_ended_last() -> None:
    samples = [node("get", 1, 2, 3), node("get", 1, 3), node("get", 3), node("next", 1)]
    hindsight = Hindsight()

    choices = [hindsight.choice({key(0): one})[key(0)] for one in reversed(samples)]

    assert [sorted(map(str, one)) for one in choices] == [["task:1"], ["task:3"], ["task:3"], ["task:3"]]


@pytest.mark.parametrize("seed", range(100))
def test_hindsight_is_the_last_missing_of_each_wait(seed: int) -> None:
    random = Random(seed)
    samples: list[PathNode] = []
    expected: list[Sequence[int]] = []
    for wait in range(random.randint(1, 4)):
        missing = random.sample(range(1, 9), random.randint(1, 6))
        of_wait: list[list[int]] = []
        while missing:
            of_wait += [list(missing)] * random.randint(1, 3)
            missing = random.sample(missing, random.randint(0, len(missing) - 1))
        samples += [node(f"get {wait}", *one) for one in of_wait]
        expected += [sorted(of_wait[-1])] * len(of_wait)
    hindsight = Hindsight()
    choices: list[Mapping[Key, frozenset[Key]]] = [hindsight.choice({key(0): one}) for one in reversed(samples)]

    found = [sorted(int(str(one).partition(":")[2]) for one in choice[key(0)]) for choice in reversed(choices)]

    assert found == [list(one) for one in expected]


# The waits of a root


def test_another_wait_is_for_a_ref_that_the_last_one_was_not_for() -> None:
    waits = OwnWaits()
    missing = ["", "ab", "b", "", "b", "bc", "c", "d"]

    assert [waits.number(Root("driver", (), frozenset(one))) for one in missing] == [0, 1, 1, 1, 1, 2, 2, 3]
    assert waits.number(Root("actor", (), frozenset("d"))) == 1


def test_a_root_has_the_refs_that_it_waits_for_and_the_calls_that_it_runs() -> None:
    scene = Scene()
    driver, cook = scene.driver(), scene.actor("Cook")
    calls = [scene.call(cook, "cook", by=driver) for _ in range(2)]
    cook.runs(calls[0])
    driver.gets(*calls)
    (of_driver,), (of_actor,) = (reader_of(scene).roots(one) for one in (DRIVERS, ProfileOptions(of="Cook")))

    assert {producer_task_id(ref) for ref in of_driver.ids} == {call.task.task_id for call in calls}
    assert of_actor.ids == {calls[0].task.task_id}

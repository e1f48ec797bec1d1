"""Stacks with weights: equal ones are one, nothing is lost, and executions count once each."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.icicle import icicle
from dstack.analysis.stacks.weighted_stacks import (
    Shares,
    WeightedBranch,
    WeightedStacks,
    WeightedTree,
    app_samples,
    by_function,
    functions_of,
    innermost_of,
    places_of,
    recorded_stacks,
    stacks_of,
)
from dstack.model.profile import PathStep
from dstack.observed.processes import Frame
from tests.unit.analysis.stacks.recordings import frame, recording, thread
from tests.unit.analysis.stacks.test_stack_tree import execution, executions


def step(name: str) -> PathStep:
    return PathStep(name, "app.py", 1, name)


@given(executions())
def test_each_execution_counts_once_below_its_groups(all_executions: list[Execution]) -> None:
    stacks = stacks_of("now", all_executions, by=("node", "kind"))

    expected = Counter(((one.node, one.kind), one.path) for one in all_executions)
    assert {(one.groups, one.frames): one.weight for one in stacks.stacks} == expected
    assert stacks.weight == len(all_executions)
    assert stacks.unit == "executions"


@given(st.lists(st.tuples(st.text("ab", max_size=2), st.text("fg", max_size=3), st.integers(0, 5))))
def test_equal_stacks_are_summed_and_weightless_ones_left_out(drawn: list[tuple[str, str, int]]) -> None:
    stacks = WeightedStacks.summed(
        "drawn", "samples", (((group,), tuple(map(step, frames)), weight) for group, frames, weight in drawn)
    )

    assert stacks.weight == sum(weight for _, _, weight in drawn)
    assert all(stack.weight > 0 for stack in stacks.stacks)
    assert len({(stack.groups, stack.frames) for stack in stacks.stacks}) == len(stacks.stacks)


def test_without_groups_only_stacks_distinguish() -> None:
    stacks = stacks_of("now", [execution(1, "ab"), execution(2, "ab"), execution(3, "a")], by=())

    assert [(stack.groups, len(stack.frames), stack.weight) for stack in stacks.stacks] == [((), 1, 1), ((), 2, 2)]


LOOP = (frame("ray_main_loop"), frame("train", 5), frame("step", 10))
FETCH = (frame("ray_main_loop"), frame("train", 6), frame("fetch", 20), frame("ray_get"))
IDLE = (frame("ray_main_loop"), frame("ray_wait"))


def rows(stacks: WeightedStacks) -> dict[tuple[str, ...], int]:
    return {(*one.groups, *(f"{step.name}:{step.line}" for step in one.frames)): one.weight for one in stacks.stacks}


def test_samples_are_below_node_class_and_rank() -> None:
    stacks = recorded_stacks(
        recording({(thread(0), LOOP): 30, (thread(1), FETCH): 70, (thread(None, "driver x"), LOOP): 5})
    )

    assert stacks.unit == "samples"
    assert rows(stacks) == {
        ("node 10.0.0.1", "actor Trainer", "rank 0", "ray_main_loop:1", "train:5", "step:10"): 30,
        ("node 10.0.0.1", "actor Trainer", "rank 1", "ray_main_loop:1", "train:6", "fetch:20", "ray_get:1"): 70,
        ("node 10.0.0.1", "driver x", "ray_main_loop:1", "train:5", "step:10"): 5,
    }


def test_stacks_begin_at_the_first_frame_of_the_application() -> None:
    one = recording({(thread(0), FETCH): 7, (thread(1), IDLE): 2})

    assert rows(recorded_stacks(one, (), whole=False)) == {
        ("train:6", "fetch:20", "ray_get:1"): 7,
        ("ray_main_loop:1", "ray_wait:1"): 2,
    }


def test_samples_of_rays_own_threads_are_not_of_the_application() -> None:
    core = Frame(function="main_loop", file="/v/ray/_private/worker.py", line=1, origin="ray")
    data = Frame(function="map", file="/v/ray/data/map_operator.py", line=1, origin="ray")
    run = Frame(function="run", file="/usr/lib/python3.11/threading.py", line=1, origin="stdlib")
    one = recording({(thread(0), (run, core)): 2, (thread(0), (run,)): 4, (thread(0), (core, data)): 8})

    assert app_samples(one) == 8
    assert app_samples(recording({(thread(0), LOOP): 1})) == 1


def test_threads_without_a_rank_are_a_group_of_their_own() -> None:
    one = recording({(thread(0), LOOP): 1, (thread(None, "driver x"), LOOP): 2})

    assert Counter({stack.groups: stack.weight for stack in recorded_stacks(one, ("rank",)).stacks}) == {
        ("rank 0",): 1,
        ("no rank",): 2,
    }
    names = {recorded_stacks(one, (by,)).stacks[0].groups[0] for by in ("process", "thread", "job")}
    assert names == {"actor Trainer (pid 100, node 10.0.0.1)", 'thread "MainThread"', "no job"}


def test_two_recordings_are_compared_by_functions() -> None:
    moved = (frame("ray_main_loop"), frame("train", 8), frame("step", 11))
    now, before = (
        recorded_stacks(recording({(thread(0), LOOP): 3, (thread(0), moved): 4}), ()),
        recorded_stacks(recording({(thread(0), moved): 5}), ()),
    )

    assert [rows(one) for one in by_function(now, before)] == [
        {("ray_main_loop:1", "train:5", "step:10"): 7},
        {("ray_main_loop:1", "train:5", "step:10"): 5},
    ]


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.sampled_from([LOOP, FETCH, IDLE])), st.integers(1, 50), min_size=1, max_size=8
    ),
    st.booleans(),
)
def test_no_sample_is_lost(drawn: dict[tuple[int, tuple[object, ...]], int], whole: bool) -> None:
    one = recording({(thread(rank), stack): count for (rank, stack), count in drawn.items()})  # type: ignore[misc]

    stacks = recorded_stacks(one, whole=whole)

    assert stacks.weight == sum(drawn.values())
    assert by_function(stacks)[0].weight == stacks.weight


Drawn = list[tuple[str, str, int]]
drawn = st.lists(st.tuples(st.sampled_from("xy"), st.text("fg", max_size=4), st.integers(0, 9)), max_size=20)


def drawn_stacks(rows: Drawn) -> WeightedStacks:
    return WeightedStacks.summed(
        "drawn", "samples", (((group,), tuple(map(step, frames)), weight) for group, frames, weight in rows)
    )


def branches(root: WeightedBranch) -> list[WeightedBranch]:
    found = [root]
    for branch in found:
        found += branch.children
    return found


@given(drawn, drawn)
def test_shares_are_of_the_group_and_weights_by_brute_force(now: Drawn, before: Drawn) -> None:
    tree = WeightedTree(drawn_stacks(now), drawn_stacks(before))

    for branch in branches(tree.root):
        names = [one.name for one in branch.path]
        in_group = names[:1] if len(names) > 1 else []
        found = tree.shares([branch])
        assert found == Shares(
            weight_of(now, names), weight_of(now, in_group), weight_of(before, names), weight_of(before, in_group)
        )
        assert found.weight == tree.weights.own(branch) + sum(map(tree.weights.of, branch.children))


def weight_of(rows: Drawn, names: list[str]) -> int:
    return sum(weight for group, frames, weight in rows if [group, *frames][: len(names)] == names)


@given(drawn, drawn, st.booleans())
def test_widths_are_of_one_side(now: Drawn, before: Drawn, by_baseline: bool) -> None:
    tree = WeightedTree(drawn_stacks(now), drawn_stacks(before), by_baseline=by_baseline)

    picture = icicle([tree.root], tree.weights, 80)

    assert picture.weight == sum(weight for _, _, weight in (before if by_baseline else now))


def test_the_same_shares_of_twice_the_samples_are_no_change() -> None:
    once, twice = [("x", "f", 30), ("x", "g", 70)], [("x", "f", 60), ("x", "g", 140)]
    tree = WeightedTree(drawn_stacks(twice), drawn_stacks(once))

    assert {tree.shares([branch]).change for branch in branches(tree.root)} == {"same"}


def test_changes_in_percentage_points() -> None:
    tree = WeightedTree(drawn_stacks([("x", "f", 90), ("x", "g", 10)]), drawn_stacks([("x", "f", 1), ("x", "g", 1)]))
    (group,) = tree.root.children

    changes = {branch.path[-1].name: tree.shares([branch]) for branch in group.children}

    assert (changes["f"].now, changes["f"].then, changes["f"].change) == (90.0, 50.0, "more")
    assert (changes["g"].points, changes["g"].change) == (-40.0, "less")


def test_nothing() -> None:
    tree = WeightedTree(drawn_stacks([]))

    assert tree.shares([tree.root]) == Shares(0, 0, 0, 0)
    assert tree.shares([tree.root]).change == "same"


@given(st.lists(st.tuples(st.text("fgh", min_size=1, max_size=4), st.integers(1, 5))))
def test_a_function_counts_once_for_each_stack_that_it_is_in(drawn: list[tuple[str, int]]) -> None:
    stacks = WeightedStacks.summed("drawn", "samples", (((), tuple(map(step, frames)), w) for frames, w in drawn))

    found = {one.step.name: (one.total, one.own) for one in functions_of(stacks)}
    assert found == {
        name: (sum(w for frames, w in drawn if name in frames), sum(w for frames, w in drawn if frames[-1] == name))
        for name in set("".join(frames for frames, _ in drawn))
    }
    for name, (total, _) in found.items():
        paths = {frames[: frames.index(name)] for frames, _ in drawn if name in frames}
        assert places_of(stacks, step(name)) == (total, len(paths))


def test_the_innermost_function_of_the_application_has_the_time_of_what_it_calls() -> None:
    sleep = PathStep("time.sleep", state="sleeps")
    paths = [((step("f"), step("g"), sleep), 2), ((step("f"), sleep), 5), ((sleep,), 1)]
    stacks = WeightedStacks.summed("drawn", "samples", (((), path, weight) for path, weight in paths))

    assert [(one.step.name, one.own) for one in innermost_of(stacks)] == [("f", 5), ("g", 2), ("time.sleep", 1)]

"""Profiles as stacks, merged or in the order of time."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dstack.analysis.stacks.profiles import halves, profile_stacks, stacks_in_time
from dstack.analysis.stacks.weighted_stacks import WeightedTree
from dstack.model.profile import PathStep, RootTime
from tests.fuzzing.effort import tries
from tests.unit.analysis.stacks.made_profiles import GET, ON_CPU, QUEUE, ROOT, SCORE, SLEEP, in_turn, line, profile_of

WAITING, RUNNING = (line(5), GET, SCORE, SLEEP), (line(6), ON_CPU)


def test_in_the_order_of_time_a_stack_comes_back() -> None:
    profile = profile_of(in_turn((2, WAITING), (1, RUNNING), (3, WAITING)))

    assert [(one.frames, one.weight) for one in profile_stacks(profile).stacks] == [
        (WAITING, 5_000_000),
        (RUNNING, 1_000_000),
    ]
    assert [(one.frames, one.weight) for one in stacks_in_time(profile).stacks] == [
        (WAITING, 2_000_000),
        (RUNNING, 1_000_000),
        (WAITING, 3_000_000),
    ]
    last = halves(profile)[1]
    assert [one.weight for one in stacks_in_time(profile, last).stacks] == [3_000_000]


def test_paths_that_share_a_time_are_side_by_side_and_the_last_one_continues() -> None:
    long, short, other = (line(5), GET, SLEEP), (line(5), GET, QUEUE), (line(5), GET, ON_CPU)
    profile = profile_of(
        [
            RootTime(ROOT, long, 0, 4_000_000, 2_000_000),
            RootTime(ROOT, short, 0, 2_000_000, 1_000_000),
            RootTime(ROOT, other, 2_000_000, 2_000_000, 1_000_000),
        ]
    )

    found = [(one.frames[-1], one.weight) for one in stacks_in_time(profile).stacks]

    assert found == [(QUEUE, 1_000_000), (SLEEP, 2_000_000), (ON_CPU, 1_000_000)]


def test_many_paths_that_share_all_time_have_fewer_slices() -> None:
    """A file may have any shares, so the number of slices times the paths in them is bounded."""
    many = 1_500
    shares = [RootTime(ROOT, (line(at), SLEEP), at, 2 * (many - at), 1_000) for at in range(many)]

    found = stacks_in_time(profile_of(shares))

    assert many < len(found.stacks) < many * many / 3
    assert abs(found.weight - 1_000 * many) < len(found.stacks)


def test_an_ordered_tree_merges_only_what_follows_each_other() -> None:
    tree = WeightedTree(stacks_in_time(profile_of(in_turn((2, WAITING), (1, RUNNING), (3, WAITING)))), in_order=True)
    (root,) = tree.ordered(tree.root.children)
    below = tree.ordered(root.children)

    assert [(branch.place, tree.weights.of(branch)) for branch in below] == [
        (line(5), 2_000_000),
        (line(6), 1_000_000),
        (line(5), 3_000_000),
    ]
    assert tree.root.find(below[2].path, below[2].begin) is below[2]
    assert tree.root.find(below[2].path) is below[0]


def test_what_ends_between_others_is_the_own_time_of_its_branch() -> None:
    profile = profile_of(in_turn((1, RUNNING), (2, RUNNING[:1]), (3, RUNNING)))
    tree = WeightedTree(stacks_in_time(profile), in_order=True)
    branch = tree.root.find((PathStep(ROOT), line(6)))

    assert [tree.weights.of(child) for child in branch.children] == [1_000_000, 3_000_000]
    assert (tree.weights.of(branch), tree.weights.own(branch)) == (6_000_000, 2_000_000)


@pytest.mark.parametrize("seed", range(tries(100)))
def test_random_times_keep_their_sums(seed: int) -> None:
    random = Random(seed)
    paths = [(line(number), state) for number in range(4) for state in (SLEEP, ON_CPU)]
    times, at_us = list[RootTime](), 0
    for _ in range(random.randrange(1, 30)):
        chosen = random.sample(paths, random.choice((1, 1, 2, 4)))
        lasted_us = 4 * random.randrange(1, 10_000)
        times += [RootTime(ROOT, path, at_us, lasted_us, lasted_us // len(chosen)) for path in chosen]
        at_us += lasted_us
    profile = profile_of(times)

    found = stacks_in_time(profile)

    sums: Counter[object] = Counter()
    for one in found.stacks:
        sums[one.frames] += one.weight
    merged = {one.frames: one.weight for one in profile_stacks(profile).stacks}
    assert sums.keys() == merged.keys()
    assert all(abs(sums[path] - weight) <= len(times) for path, weight in merged.items())

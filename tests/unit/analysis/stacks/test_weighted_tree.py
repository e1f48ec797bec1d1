"""Trees of weighted stacks: sums are conserved, and comparisons are of shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.stacks.icicle import icicle
from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.analysis.stacks.weighted_tree import Shares, WeightedBranch, WeightedTree
from tests.unit.analysis.stacks.test_weighted_stacks import step

Drawn = list[tuple[str, str, int]]
drawn = st.lists(st.tuples(st.sampled_from("xy"), st.text("fg", max_size=4), st.integers(0, 9)), max_size=20)


def stacks_of(rows: Drawn) -> WeightedStacks:
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
    tree = WeightedTree(stacks_of(now), stacks_of(before))

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
    tree = WeightedTree(stacks_of(now), stacks_of(before), by_baseline=by_baseline)

    picture = icicle([tree.root], tree.weights, 80)

    assert picture.weight == sum(weight for _, _, weight in (before if by_baseline else now))


def test_the_same_shares_of_twice_the_samples_are_no_change() -> None:
    once, twice = [("x", "f", 30), ("x", "g", 70)], [("x", "f", 60), ("x", "g", 140)]
    tree = WeightedTree(stacks_of(twice), stacks_of(once))

    assert {tree.shares([branch]).change for branch in branches(tree.root)} == {"same"}


def test_changes_in_percentage_points() -> None:
    tree = WeightedTree(stacks_of([("x", "f", 90), ("x", "g", 10)]), stacks_of([("x", "f", 1), ("x", "g", 1)]))
    (group,) = tree.root.children

    changes = {branch.path[-1].name: tree.shares([branch]) for branch in group.children}

    assert (changes["f"].now, changes["f"].then, changes["f"].change) == (90.0, 50.0, "more")
    assert (changes["g"].points, changes["g"].change) == (-40.0, "less")


def test_nothing() -> None:
    tree = WeightedTree(stacks_of([]))

    assert tree.shares([tree.root]) == Shares(0, 0, 0, 0)
    assert tree.shares([tree.root]).change == "same"

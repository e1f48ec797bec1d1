"""The rectangles of an icicle: they do not overlap, all branches are drawn, and narrow ones are folded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.icicle import Icicle, IcicleCell, Measure, Weights, icicle, weigh_by
from dstack.analysis.stacks.stack_tree import StackBranch, merge
from dstack.model.profile import PathStep
from dstack.model.vertex_keys import Key, ThreadKey
from tests.unit.analysis.stacks.test_stack_tree import execution, executions

MEASURES: tuple[Measure, ...] = ("executions", "waiting", "running")


def drawn(all_executions: list[Execution], width: int, measure: Measure = "executions") -> Icicle[StackBranch]:
    root = merge(all_executions)
    return icicle([root], Weights(root, weigh_by(measure)), width)


def cells(picture: Icicle[StackBranch]) -> list[IcicleCell[StackBranch]]:
    return [cell for row in picture.rows for cell in row]


def below(picture: Icicle[StackBranch], cell: IcicleCell[StackBranch]) -> list[IcicleCell[StackBranch]]:
    """The cells right below one."""
    row = picture.rows[cell.depth + 1] if cell.depth + 1 < len(picture.rows) else ()
    return [one for one in row if cell.start <= one.start < cell.start + cell.width]


@given(executions(), st.integers(1, 100), st.sampled_from(MEASURES))
def test_cells_of_a_row_are_in_order_and_do_not_overlap(
    all_executions: list[Execution], width: int, by: Measure
) -> None:
    for depth, row in enumerate(drawn(all_executions, width, by).rows):
        ends = [0, *(cell.start + cell.width for cell in row)]
        assert all(cell.start >= end for cell, end in zip(row, ends, strict=False))
        assert all(cell.width >= 1 for cell in row)
        assert ends[-1] <= width
        assert all(cell.depth == depth for cell in row)


@given(executions(), st.integers(1, 100), st.sampled_from(MEASURES))
def test_the_weights_below_a_cell_and_its_own_are_its_weight(
    all_executions: list[Execution], width: int, by: Measure
) -> None:
    picture = drawn(all_executions, width, by)

    for cell in cells(picture):
        if not cell.is_folded:
            assert sum(one.weight for one in below(picture, cell)) + cell.own == cell.weight
    assert picture.weight == sum(map(weigh_by(by), all_executions))


@given(executions(), st.integers(1, 100), st.sampled_from(MEASURES))
def test_every_branch_with_weight_is_in_one_cell_or_below_a_folded_one(
    all_executions: list[Execution], width: int, by: Measure
) -> None:
    picture = drawn(all_executions, width, by)
    weights = Weights(merge(all_executions), weigh_by(by))
    placed: list[StackBranch] = []
    for cell in cells(picture):
        ahead = list(cell.branches)
        placed += ahead
        while cell.is_folded and ahead:
            inside = [child for child in ahead.pop().children if weights.of(child)]
            placed += inside
            ahead += inside

    paths = [branch.path for branch in placed]
    assert len(paths) == len(set(paths))
    with_weight = [one for one in all_executions if weigh_by(by)(one)]
    assert set(paths) == {one.path[:depth] for one in with_weight for depth in range(len(one.path) + 1)}


@given(executions(), st.integers(1, 100))
def test_cells_lie_within_the_cell_above(all_executions: list[Execution], width: int) -> None:
    picture = drawn(all_executions, width)

    for row, above in zip(picture.rows[1:], picture.rows, strict=False):
        for cell in row:
            parent = next(one for one in above if one.start <= cell.start < one.start + one.width)
            assert cell.start + cell.width <= parent.start + parent.width
            assert all(branch.path[:-1] == parent.branches[0].path for branch in cell.branches)


@given(executions(), st.integers(20, 200))
def test_widths_are_to_scale_by_a_cell(all_executions: list[Execution], width: int) -> None:
    picture = drawn(all_executions, width)

    for cell in cells(picture):
        parent = next((one for one in cells(picture) if cell in below(picture, one)), None)
        if parent and not cell.is_folded and not any(one.is_folded for one in below(picture, parent)):
            assert abs(cell.width - parent.width * cell.weight / parent.weight) <= 1


@given(executions(), st.integers(2, 100))
def test_folded_cells_can_be_opened_until_all_are_drawn(all_executions: list[Execution], width: int) -> None:
    root = merge(all_executions)
    weights = Weights(root, weigh_by("executions"))
    ahead: list[tuple[StackBranch, ...]] = [(root,)]
    opened: set[tuple[PathStep, ...]] = set()
    while ahead:
        top = ahead.pop()
        for cell in cells(icicle(top, weights, width)):
            opened.update(branch.path for branch in cell.branches if not cell.is_folded)
            if cell.is_folded:
                assert cell.branches != top, "opening it shows more"
                ahead.append(cell.branches)

    assert opened == ({one.path[:depth] for one in all_executions for depth in range(len(one.path) + 1)})


def test_half_of_the_executions_are_half_as_wide() -> None:
    picture = drawn([execution(number, ("run", "left" if number < 5 else "right")) for number in range(10)], 80)

    assert [[(cell.label, cell.start, cell.width) for cell in row] for row in picture.rows] == [
        [("all", 0, 80)],
        [("run", 0, 80)],
        [("left", 0, 40), ("right", 40, 40)],
    ]


def test_executions_that_end_above_leave_room_below() -> None:
    picture = drawn([execution(1, "a"), execution(2, "ab")], 80)

    assert [(cell.label, cell.width, cell.own) for cell in picture.rows[1]] == [("a", 80, 1)]
    assert [(cell.label, cell.width, cell.own) for cell in picture.rows[2]] == [("b", 40, 1)]


def test_narrow_branches_are_one_cell_with_their_number() -> None:
    many = [execution(number, ("wide",)) for number in range(900)]
    few = [execution(number, (f"narrow{number}",)) for number in range(20)]

    picture = drawn(many + few, 80)

    assert [(cell.label, cell.weight) for cell in picture.rows[1]] == [("wide", 900), ("… 20 more", 20)]


def test_a_single_narrow_branch_has_its_name() -> None:
    picture = drawn([*(execution(number, ("wide",)) for number in range(900)), execution(901, ("narrow",))], 80)

    assert [(cell.label, cell.width) for cell in picture.rows[1]] == [("wide", 79), ("narrow", 1)]


def test_some_of_many_narrow_branches_are_widened_and_marked() -> None:
    root = merge([execution(number, (f"narrow{number:03}",)) for number in range(200)])
    weights = Weights(root, weigh_by("executions"))
    folded = icicle([root], weights, 80)
    (more,) = folded.rows[1]

    opened = icicle(more.branches, weights, 80)

    assert folded.to_scale
    assert not opened.to_scale
    assert [cell.label for cell in opened.rows[0]][-2:] == ["narrow008", "… 191 more"]


@pytest.mark.parametrize(("measure", "label", "weight"), [("waiting", "a", 2), ("running", "b", 1)])
def test_only_counted_executions_have_width(measure: Measure, label: str, weight: int) -> None:
    all_executions = [execution(1, "a"), execution(2, "a"), execution(3, "b", "running"), execution(4, "c", "off CPU")]

    picture = drawn(all_executions, 80, measure)

    assert [(cell.label, cell.weight, cell.width) for cell in picture.rows[1]] == [(label, weight, 80)]


def test_an_inner_branch_is_drawn_at_full_width() -> None:
    root = merge([execution(1, "abc"), execution(2, "abd"), execution(3, "e")])
    weights = Weights(root, weigh_by("executions"))

    picture = icicle([root.children[0]], weights, 60)

    assert [(cell.label, cell.width) for row in picture.rows for cell in row] == [
        ("a", 60),
        ("b", 60),
        ("c", 30),
        ("d", 30),
    ]


def test_widths_follow_any_other_weight() -> None:
    root = merge([execution(1, "a"), execution(2, "b")])
    micros: dict[Key, int] = {ThreadKey("", 1): 3_000_000, ThreadKey("", 2): 1_000_000}

    picture = icicle([root], Weights(root, lambda one: micros[one.key]), 80)

    assert [(cell.label, cell.width, cell.weight) for cell in picture.rows[1]] == [
        ("a", 60, 3_000_000),
        ("b", 20, 1_000_000),
    ]


def test_the_cell_at_a_point() -> None:
    picture = drawn([execution(1, "a"), execution(2, "b")], 80)

    right = picture.at(1, 79)
    assert right is not None
    assert right.label == "b"
    assert picture.at(2, 0) is None
    assert picture.at(0, 80) is None


def test_an_empty_tree_has_no_cells() -> None:
    assert drawn([], 80).rows == ()
    assert drawn([execution(1, "a")], 80, "running").rows == ()

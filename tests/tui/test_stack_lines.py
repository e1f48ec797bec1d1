"""The lines of stacks: those of recorded and of generated snapshots unfold, and are harmless."""

from __future__ import annotations

import pytest
from hypothesis import given

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.views.all_stacks import Stacks
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.tui.views.stacks_pages import branch_page, stack_in_words, stack_page
from dstack.tui.views.stacks_trees import MergedTree, ProcessTree, source_lines
from dstack.tui.widgets.outline import Line
from dstack.words import UNSEEN
from tests.tui.sources import RECORDED
from tests.unit.scenes import Scene
from tests.unit.support.random_snapshots import related_snapshots

DEEPEST = 4
NAMES = sorted(path.name for path in RECORDED.glob("*.json.gz"))


def unfolded(lines: list[Line], depth: int = DEEPEST) -> list[Line]:
    """The lines and their descendants, down to a depth, since a cycle of waits unfolds without end."""
    found = list(lines)
    for line in lines:
        if depth:
            children = line.children() if callable(line.children) else line.children
            found += unfolded(list(children), depth - 1)
    return found


def all_lines(snapshot: Snapshot) -> list[Line]:
    """The lines of both trees and of all pages."""
    if not snapshot.samples:
        return []
    stacks = Stacks(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices)
    found = unfolded(ProcessTree(stacks, set()).lines())
    for whole in (False, True):
        tree = MergedTree.of(stacks, whole=whole, grouping="kind")
        found += unfolded(tree.lines())
        for branch in (tree.root, *tree.root.children):
            found += unfolded(branch_page(tree, branch))
    for key in stacks.vertices:
        stack = stacks.pages.page(key)
        assert stack is not None
        found += unfolded(stack_page(stacks, stack))
        assert not UNSEEN.search(stack_in_words(stack).replace("\n", ""))
    return found


def test_a_stack_of_a_thread_that_ran_while_it_was_read_is_marked_as_inconsistent() -> None:
    scene = Scene()
    thread = scene.actor("Busy").thread("worker", "user")
    thread.is_torn = True
    snapshot = scene.sample().snapshot()
    stacks = Stacks(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices)
    stack = stacks.pages.page(thread.key)

    assert stack is not None
    assert any(TORN_STACK in line.text.plain for line in stack_page(stacks, stack))
    assert TORN_STACK in stack_in_words(stack)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_snapshot_unfolds(name: str) -> None:
    snapshot = load(RECORDED / name)
    stacks = Stacks(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices)

    assert all_lines(snapshot)
    for tree in (
        ProcessTree(stacks, set()).lines(),
        *(stack_page(stacks, one) for one in map(stacks.pages.page, stacks.vertices) if one),
    ):
        keys = [line.key for line in unfolded(tree)]
        assert len(keys) == len(set(keys)), "keys are unique"


@given(related_snapshots())
def test_generated_snapshots_unfold_and_are_harmless(snapshot: Snapshot) -> None:
    assert not any(UNSEEN.search(line.text.plain) for line in all_lines(snapshot))


def test_source_lines_lose_their_common_indentation() -> None:
    sources = {"a.py": {9: "        deep()", 10: "    for x in y:", 11: "        work(x)", 30: "far()"}}

    lines = [line.text.plain for line in source_lines("key", sources, "a.py", 10)]

    assert lines == ["    9     deep()", "›  10 for x in y:", "   11     work(x)"]


def test_a_line_of_source_with_a_line_break_in_it_is_one_line() -> None:
    lines = [line.text.plain for line in source_lines("key", {"a.py": {1: "one\ntwo", 2: "three"}}, "a.py", 2)]

    assert lines == ["    1 one two", "›   2 three"]

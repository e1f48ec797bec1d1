"""The distributed stack: it follows refs across nodes, folds similar branches, and is bounded."""

from __future__ import annotations

import io
import re

from rich.console import Console

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.distributed_stack import MAX_CHILDREN, MAX_DEPTH, StackNode, roots, stitch, vertices_in
from dstack.report.text import SHOWN_BRANCHES, WIDTH, print_report
from tests.unit.scenes import Scene, SceneProcess


def distributed_stack_of(scene: Scene, top: SceneProcess) -> StackNode:
    snapshot = scene.snapshot()
    return stitch(SampleIndex(snapshot, snapshot.samples[0]), scene.diagnose().vertices, [[top.key]])[0]


def chain(length: int) -> Scene:
    """A driver that waits for a task that waits for a task, and so on; the last computes."""
    scene = Scene()
    waiter = scene.driver()
    for number in range(length):
        call, worker = scene.run(f"step{number}", by=waiter, node=scene.node(CPU=1.0))
        waiter.gets(call)
        waiter = worker
    return scene


def path(node: StackNode) -> list[str]:
    """The names along the first branches."""
    names = [node.details.execution]
    while node.children:
        node = node.children[0]
        names.append(node.details.execution)
    return names


def text_of(scene: Scene) -> str:
    out = io.StringIO()
    print_report(Console(file=out, highlight=False), AnalysedSnapshot.of(scene.snapshot()), details=True)
    return out.getvalue()


def test_a_stack_follows_refs_across_nodes_to_the_leaf() -> None:
    scene = chain(3)

    stack = distributed_stack_of(scene, scene.procs[0])

    assert path(stack) == ["driver train.py", "step0", "step1", "step2"]
    ips = [node.ip for node in scene.nodes]
    leaf = stack.children[0].children[0].children[0]
    assert (leaf.details.node_ip, leaf.wait_kind) == (ips[-1], None)
    assert [frame.function for frame in leaf.frames] == ["step2"]


def test_similar_branches_are_one_with_a_count() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(50)]
    clerk.runs(calls[0])
    driver.gets(*calls)

    stack = distributed_stack_of(scene, driver)

    assert [(child.details.execution, child.count) for child in stack.children] == [
        ("Clerk.stamp", 1),
        ("Clerk.stamp", 49),
    ]


def test_branches_that_differ_below_are_not_folded() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = []
    for name in ("short", "long"):
        call, worker = scene.run("work", by=driver)
        inner, _ = scene.run(name, by=worker)
        worker.gets(inner)
        calls.append(call)
    driver.gets(*calls)

    stack = distributed_stack_of(scene, driver)

    assert [(child.count, path(child)) for child in stack.children] == [(1, ["work", "short"]), (1, ["work", "long"])]


def test_a_cycle_ends_where_it_began() -> None:
    scene = Scene()
    actor = scene.actor("Ledger")
    total = scene.call(actor, "total", by=scene.driver())
    entry = scene.call(actor, "entry", by=actor)
    actor.runs(total).gets(entry)

    stack = distributed_stack_of(scene, actor)

    assert path(stack) == ["Ledger.total", "Ledger.entry", "Ledger.total"]
    assert stack.children[0].children[0].repeats


def test_a_deep_chain_is_cut_and_marked() -> None:
    scene = chain(3000)

    stack = distributed_stack_of(scene, scene.procs[0])
    text = text_of(scene)

    assert len(path(stack)) == MAX_DEPTH + 1
    assert "more waits below, not shown" in text
    assert "all depends on step2999" in text, "the end is shown"
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_wide_wait_is_cut_and_marked() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = []
    for number in range(MAX_CHILDREN + 100):
        call, _ = scene.run(f"work{number}", by=driver)
        calls.append(call)
    driver.gets(*calls)

    stack = distributed_stack_of(scene, driver)

    assert (len(stack.children), stack.left_out) == (MAX_CHILDREN, 100)
    assert f"{MAX_CHILDREN + 100 - SHOWN_BRANCHES} more waits below, not shown" in text_of(scene)


def test_a_shared_dependency_is_followed_once() -> None:
    """A ladder in which every rung waits for both ends of the next has 2**20 paths."""
    scene = Scene()
    driver = scene.driver()
    rung = [scene.run("left", by=driver), scene.run("right", by=driver)]
    driver.gets(*(call for call, _ in rung))
    for _ in range(20):
        below = [scene.run(name, by=rung[0][1]) for name in ("left", "right")]
        for _, worker in rung:
            worker.gets(*(call for call, _ in below))
        rung = below

    stack = distributed_stack_of(scene, driver)

    assert len(path(stack)) == MAX_DEPTH + 1
    assert len(text_of(scene).splitlines()) < 200


def test_layers_that_all_wait_for_all_are_cut() -> None:
    scene = Scene()
    driver = scene.driver()
    layer = [scene.run(f"end{number}", by=driver) for number in range(40)]
    for depth in range(25):
        below = [call for call, _ in layer]
        layer = [scene.run(f"work{depth}/{number}", by=driver) for number in range(40)]
        for _, worker in layer:
            worker.gets(*below)
    driver.gets(*(call for call, _ in layer))

    text = text_of(scene)

    assert len(text.splitlines()) < 1000
    assert "30 more waits below, not shown" in text


def test_roots_are_the_executions_without_waiters() -> None:
    scene = chain(2)
    driver = scene.procs[0]
    vertices = scene.diagnose().vertices

    assert roots(vertices, set(vertices)) == [driver.key]


def test_a_cycle_has_one_of_its_members_as_the_root() -> None:
    scene = Scene()
    actor = scene.actor("Ledger")
    total = scene.call(actor, "total", by=scene.driver())
    entry = scene.call(actor, "entry", by=actor)
    actor.runs(total).gets(entry)
    vertices = scene.diagnose().vertices

    (root,) = roots(vertices, {actor.key, entry.key})

    snapshot = scene.snapshot()
    node = stitch(SampleIndex(snapshot, snapshot.samples[0]), vertices, [[root]])[0]
    assert vertices_in(node) == {actor.key, entry.key}


def test_a_chain_is_printed_as_numbered_steps() -> None:
    text = text_of(chain(MAX_DEPTH))

    steps = [line for line in text[text.index("Stitched stack") :].splitlines() if " → step" in line]
    assert [re.match(r" *(\d+)  ray.get → step(\d+) ", line).groups() for line in steps] == [  # type: ignore[union-attr]
        (str(number + 2), str(number)) for number in range(MAX_DEPTH)
    ]
    assert {line.index("ray.get") for line in steps} == {4}


def test_branches_that_were_printed_before_are_one_line() -> None:
    scene = Scene()
    driver = scene.driver()
    shared, _ = scene.run("shared", by=driver)
    calls = []
    for number in range(8):
        call, worker = scene.run(f"work{number}", by=driver)
        worker.gets(shared)
        calls.append(call)
    driver.gets(shared, *calls)

    text = text_of(scene)

    assert text.count("shared (2), as above") == 8
    assert text.count("→ shared  ") == 1


def test_waiters_at_one_line_are_one_stack_whatever_their_actors_are_called() -> None:
    scene = Scene()
    late = scene.call(scene.actor("Late"), "load", by=scene.driver())
    for number in range(40):
        actor = scene.actor("Trainer", name=f"trainer {number}")
        actor.runs(scene.call(actor, "step", by=scene.procs[0])).gets(late)
        actor.threads[0].line = 12

    text = text_of(scene)

    stack = text[text.index("Stitched stack") : text.index("Observed")]
    assert stack.count("Trainer.step") == 1
    assert '40 × Trainer.step  first: "trainer' in stack


def test_only_details_have_stitched_stacks() -> None:
    scene = chain(3)
    out = io.StringIO()
    print_report(Console(file=out, highlight=False), AnalysedSnapshot.of(scene.snapshot()))

    assert "Stitched stack" not in out.getvalue()
    assert "Stitched stack" in text_of(scene)

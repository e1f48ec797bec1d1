"""Cures: what each change frees, by worlds that run to their end with the change, and by small scenes."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dstack.analysis.findings.cures import fix_of
from dstack.model.diagnosis import Cure, CureKind, Diagnosis
from tests.examples.applied_cures import CURED, MORE, NOT_ENOUGH
from tests.examples.applied_fixes import Applied
from tests.examples.expected import expected_of
from tests.examples.recorded import document_of, recorded
from tests.fuzzing.effort import examples
from tests.paths import EXAMPLES
from tests.unit.analysis.findings.kinds.small_findings import ring
from tests.unit.scenes import Call, Scene, SceneProcess
from tests.unit.simulations.tasks import DRIVER, Block, ClusterScene, SimulatedCluster, Work

many = examples(1000)


@dataclass
class NamedScene(ClusterScene):
    """A cluster in which each actor has a class of its own, and each work a name, as ``A0.work3`` or ``task4``."""

    def _actor(self, groups: tuple[int, ...]) -> SceneProcess:
        proc = super()._actor(groups)
        assert proc.actor is not None
        proc.actor = self.scene.becomes(proc.actor, class_name=f"A{len(self.scene.actors) - 1}")
        return proc

    def _submit(self, work: Work, by: SceneProcess) -> Call:
        call = super()._submit(work, by)
        name = f"work{len(self.calls)}" if work.actor is not None else f"task{len(self.calls)}"
        return call.becomes(name=f"A{work.actor}.{name}" if work.actor is not None else name)


@st.composite
def full_clusters(draw: st.DrawFn) -> SimulatedCluster:
    """Clusters whose actors and GPUs are all in use by works that get results of others, most of which are queued."""
    slots: list[tuple[int, ...]] = draw(st.lists(st.sampled_from([(1,), (1,), (2,)]), min_size=1, max_size=3))
    places = [(actor, slot) for actor, counts in enumerate(slots) for slot in range(counts[0])]
    running = [Work(actor=actor, owner=DRIVER, phase="runs", slot=slot) for actor, slot in places]
    running += [Work(actor=None, owner=DRIVER, phase="runs", has_gpu=True)] * draw(st.integers(0, 1))
    queued = [
        Work(actor=actor, owner=DRIVER, phase="queued") for actor in draw(st.lists(_below(len(slots)), max_size=5))
    ]
    lacking = [Work(actor=None, owner=DRIVER, phase="wants a GPU")] * draw(st.integers(0, 2 * running[-1].has_gpu))
    works = [replace(work) for work in (*running, *queued, *lacking)]
    for work in works[: len(running)]:
        others = draw(st.lists(_below(len(works)), min_size=1, max_size=2, unique=True))
        work.block = Block(works=tuple(others), needs=len(others))
    awaited = draw(st.lists(_below(len(works)), min_size=1, max_size=3, unique=True))
    driver = Block(works=tuple(awaited), needs=len(awaited))
    return SimulatedCluster(slots=slots, works=works, driver=driver, free_gpus=0, reads_tasks=True)


def _below(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


def only_deadlock(cluster: SimulatedCluster) -> tuple[Diagnosis, dict[str, int]] | None:
    """The diagnosis of a cluster with one finding, a deadlock, and the numbers of works by their names."""
    shown = NamedScene(cluster)
    diagnosis = shown.scene.diagnose()
    is_alone = [finding.kind for finding in diagnosis.findings] == ["deadlock"]
    event("one deadlock" if is_alone else "other findings")
    return (diagnosis, {call.task.name: number for number, call in enumerate(shown.calls)}) if is_alone else None


def unfinished_with(cluster: SimulatedCluster) -> set[int]:
    cluster = copy.deepcopy(cluster)
    cluster.works_fail = False  # a cure does not count on errors
    cluster.run(random.Random(0))
    return cluster.unfinished()


def in_finding(diagnosis: Diagnosis, cluster: SimulatedCluster) -> dict[object, int]:
    """The works of the finding by their vertices."""
    numbers = NamedScene(cluster).work_numbers()
    finding = diagnosis.findings[0]
    return {key: numbers[key] for key in (*finding.members, *finding.blocked_behind) if key in numbers}


def with_slot(cluster: SimulatedCluster, actor: int) -> SimulatedCluster:
    changed = copy.deepcopy(cluster)
    changed.slots[actor] = (changed.slots[actor][0] + 1,)
    return changed


def with_gpu(cluster: SimulatedCluster) -> SimulatedCluster:
    changed = copy.deepcopy(cluster)
    changed.free_gpus += 1
    return changed


def with_returned_ref(cluster: SimulatedCluster, number: int) -> SimulatedCluster | None:
    """The cluster in which a work has returned what it waits for; None where a ray.wait decides what that means."""
    changed = copy.deepcopy(cluster)
    own = changed.works[number].block
    assert own is not None
    blocks = [changed.driver, *(work.block for work in changed.works if work.phase == "runs")]
    if own.is_wait or own.in_helper or any(one and one.is_wait and number in one.works for one in blocks):
        return None
    for work in changed.works:
        work.block = _instead(work.block, number, own)
    changed.driver = _instead(changed.driver, number, own)
    changed.works[number].block = None
    return changed


def _instead(block: Block | None, number: int, own: Block) -> Block | None:
    if block is None or number not in block.works:
        return block
    works = tuple(dict.fromkeys((*(one for one in block.works if one != number), number, *own.works)))
    return replace(block, works=works, needs=len(works))


def changed_by(cluster: SimulatedCluster, cure: Cure, numbers: dict[str, int]) -> SimulatedCluster | None:
    """The cluster with a cure, None for kinds of cures that a simulated cluster does not have."""
    match cure.kinds:
        case ("slots",):
            actors = {cluster.works[numbers[name]].actor for name in (*cure.starts, *cure.same_way)}
            (actor,) = actors
            assert actor is not None
            return with_slot(cluster, actor)
        case ("more resources",):
            return with_gpu(cluster)
        case ("returned ref",):
            return with_returned_ref(cluster, numbers[cure.text.rpartition(" in ")[2]])
    return None


@given(full_clusters())
@many
def test_cures_free_what_ends_in_a_cluster_with_the_change_and_none_is_missed(cluster: SimulatedCluster) -> None:
    if (found := only_deadlock(cluster)) is None:
        return
    diagnosis, numbers = found
    works, cures = in_finding(diagnosis, cluster), diagnosis.findings[0].cures

    for cure in cures:
        changed = changed_by(cluster, cure, numbers)
        if changed is not None:
            event(cure.kinds[0])
            left = {works[key] for key in cure.left if key in works}
            assert left == unfinished_with(changed) & set(works.values()), cure.text

    single = [with_slot(cluster, actor) for actor in range(len(cluster.slots))]
    if any(set(works.values()).isdisjoint(unfinished_with(changed)) for changed in (*single, with_gpu(cluster))):
        event("one slot or GPU is enough")
        assert cures[0].frees_all
        assert len(cures[0].kinds) == 1


# Scenes


def cures_of(scene: Scene) -> tuple[Cure, ...]:
    (finding,) = scene.diagnose().findings
    return finding.cures


def texts(cures: tuple[Cure, ...], *, free_all: bool) -> list[str]:
    return [cure.text for cure in cures if cure.frees_all == free_all]


def mutual(scene: Scene) -> tuple[SceneProcess, SceneProcess]:
    """A cashier that waits for a kitchen, which waits for another call of the cashier, and the driver behind both."""
    driver, cashier, kitchen = scene.driver(), scene.actor("Cashier"), scene.actor("Kitchen")
    order = scene.call(cashier, "order", by=driver)
    cook = scene.call(kitchen, "cook", by=cashier)
    paid = scene.call(cashier, "is_paid", by=kitchen)
    driver.gets(order)
    cashier.runs(order).gets(cook)
    kitchen.runs(cook).gets(paid)
    return cashier, kitchen


def test_the_smallest_change_is_first() -> None:
    scene = Scene()
    mutual(scene)

    cures = cures_of(scene)

    assert texts(cures, free_all=True) == [
        "raise max_concurrency of Cashier to 2 (now 1)",
        "give Cashier.is_paid a concurrency group of its own",
        "return the ObjectRef instead of ray.get in Cashier.order",
        "make Cashier.is_paid and Cashier.order async def, with await instead of ray.get",
    ]
    assert (cures[0].freed, cures[0].total, cures[0].starts, cures[0].is_certain) == (4, 4, ("Cashier.is_paid",), True)


def test_a_ref_that_is_returned_to_a_member_frees_only_the_one_that_returns_it() -> None:
    scene = Scene()
    cashier, _ = mutual(scene)

    (moved,) = [cure for cure in cures_of(scene) if not cure.frees_all]

    assert (moved.text, moved.freed) == ("return the ObjectRef instead of ray.get in Kitchen.cook", 1)
    assert cashier.key in moved.left


def test_a_call_that_would_wait_as_its_like_do_only_moves_the_deadlock() -> None:
    scene = Scene()
    driver, node = scene.driver(), scene.actor("Node")
    outer, inner = scene.call(node, "visit", by=driver), scene.call(node, "visit", by=node)
    driver.gets(outer)
    node.runs(outer).gets(inner)

    cures = cures_of(scene)

    (slots,) = [cure for cure in cures if cure.kinds == ("slots",)]
    assert (slots.text, slots.freed, slots.same_way) == (
        "raise max_concurrency of Node to 2 (now 1)",
        0,
        ("Node.visit",),
    )


def test_a_fix_names_the_best_changes_and_one_that_only_moves_the_deadlock() -> None:
    two, ring_of_five = (document_of(recorded(name))["findings"][0] for name in ("two_actors", "ring_of_five"))

    assert two["advice"]["text"] == (
        "Raise max_concurrency of Cashier to 2 (now 1); or give Cashier.is_paid a concurrency group of its own; or "
        "return the ObjectRef instead of ray.get in Cashier.order."
    )
    assert ring_of_five["advice"]["text"].endswith(
        "It is not enough to raise max_concurrency of Member to 2 (now 1) if another Member.pass_token waits in the "
        "same way."
    )


def test_a_fix_that_frees_a_part_says_how_much() -> None:
    cures = (
        Cure(kinds=("slots",), text="raise it", freed=1, total=3),
        Cure(kinds=("lock",), text="x", freed=1, total=3),
    )

    assert fix_of(cures) == "Raise it. This frees only 1 of 3."
    assert fix_of([]) == ""


def test_calls_that_keep_their_slots_count() -> None:
    scene = Scene()
    driver, gate, other = scene.driver(), scene.actor("Gate"), scene.actor("Other")
    first, again, last = (scene.call(gate, name, by=driver) for name in ("enter", "enter", "open"))
    helped = scene.call(other, "help", by=gate)
    driver.gets(first, again)
    gate.runs(first).gets(helped)
    other.runs(helped).gets(last)

    slots = [cure for cure in cures_of(scene) if cure.kinds == ("slots",)]

    assert [cure.text for cure in slots] == ["raise max_concurrency of Gate to 3 (now 1)"]
    assert slots[0].frees_all


def test_two_changes_are_named_together_where_none_is_enough() -> None:
    scene = Scene()
    driver, left, right, middle = scene.driver(), scene.actor("Left"), scene.actor("Right"), scene.actor("Middle")
    ask, answer = scene.call(middle, "ask", by=driver), scene.call(middle, "answer", by=left)
    go, stay = scene.call(left, "go", by=middle), scene.call(left, "stay", by=right)
    come = scene.call(right, "come", by=middle)
    driver.gets(ask)
    middle.runs(ask).gets(go, come)
    left.runs(go).gets(answer)
    right.runs(come).gets(stay, scene.call(right, "again", by=right))

    cures = cures_of(scene)

    assert not any(cure.frees_all for cure in cures if cure.kinds in (("slots",), ("more resources",)))
    assert all(len(cure.kinds) == 2 for cure in cures if cure.frees_all and cure.kinds[0] == "slots")
    assert cures[0].frees_all


def test_as_much_more_of_a_resource_as_the_request_lacks() -> None:
    scene = Scene()
    node = scene.node(free={"CPU": 2.0, "GPU": 1.0}, CPU=4.0, GPU=4.0)
    driver = scene.driver(node)
    train, worker = scene.run("train", by=driver, node=node, GPU=3.0)
    child = scene.task("evaluate", by=worker, required_resources={"GPU": 2.0}, state="PENDING_NODE_ASSIGNMENT")
    driver.gets(train)
    worker.gets(child)

    cures = cures_of(scene)

    assert "add 1 GPU" in texts(cures, free_all=True)
    assert "return the ObjectRef instead of ray.get in train" in texts(cures, free_all=True)


def test_a_wait_for_one_of_several_things_is_freed_only_probably() -> None:
    document = document_of(recorded("hangs/gate_without_slot"))

    (finding,) = document["findings"]

    slots = finding["cures"][0]
    assert (slots["kinds"], slots["freed"], slots["total"], slots["is_certain"]) == (["slots"], 4, 4, False)


def test_a_wait_for_two_deadlocks_is_freed_with_the_other_one() -> None:
    scene = Scene()
    (first,), (second,) = ring(scene, "Self"), ring(scene, "Other")
    scene.driver().gets(first.running[0], second.running[0])

    cures = [finding.cures[0] for finding in scene.diagnose().findings]

    assert [(cure.freed, cure.total, cure.with_others) for cure in cures] == [(3, 3, True), (3, 3, True)]


def test_findings_other_than_deadlocks_have_no_cures() -> None:
    document = document_of(recorded("hangs/too_many_gpus"))

    assert [finding["cures"] for finding in document["findings"]] == [[]]


# Examples


@pytest.mark.parametrize("applied", CURED, ids=lambda one: one.example)
def test_the_first_cure_of_an_example_is_the_one_that_was_applied(applied: Applied) -> None:
    cures = document_of(recorded(applied.example))["findings"][0]["cures"]

    assert applied.words in cures[0]["text"]
    assert cures[0]["freed"] == cures[0]["total"]


@pytest.mark.parametrize("applied", MORE, ids=lambda one: f"{one.example}: {one.words}")
def test_what_was_applied_is_among_what_is_enough(applied: Applied) -> None:
    cures = document_of(recorded(applied.example))["findings"][0]["cures"]

    assert any(applied.words in cure["text"] and cure["freed"] == cure["total"] for cure in cures)


def test_each_kind_of_change_was_applied_to_an_example() -> None:
    found = [(one, document_of(recorded(one.example))["findings"][0]["cures"]) for one in (*CURED, *MORE)]
    kinds = {kind for one, cures in found for cure in cures if one.words in cure["text"] for kind in cure["kinds"]}

    assert kinds == {*get_args(CureKind)}


@pytest.mark.parametrize("applied", NOT_ENOUGH, ids=lambda one: f"{one.example}: {one.words}")
def test_what_is_not_enough_is_said_to_leave_waits(applied: Applied) -> None:
    cures = document_of(recorded(applied.example))["findings"][0]["cures"]

    assert [cure["freed"] < cure["total"] for cure in cures if applied.words in cure["text"]] == [True]


@pytest.mark.parametrize("applied", [*CURED, *MORE, *NOT_ENOUGH], ids=lambda one: f"{one.example}: {one.words}")
def test_a_cure_can_be_applied(applied: Applied, tmp_path: Path) -> None:
    compile(applied.write(tmp_path).read_text(), applied.example, "exec")


def test_all_deadlocks_of_examples_without_libraries_have_a_cure_that_was_applied() -> None:
    own = [path for path in EXAMPLES.rglob("*.py") if not {"libraries", "case_studies"} & {*path.parts}]
    deadlocks = [path for path in own if "test_" not in path.name and expected_of(path).finding == "deadlock"]

    assert {str(path.relative_to(EXAMPLES).with_suffix("")) for path in deadlocks} == {one.example for one in CURED}

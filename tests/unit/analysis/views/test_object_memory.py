"""Who holds which bytes of the object store, in words."""

from __future__ import annotations

import json

from msgspec.structs import replace

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.object_memory import ObjectMemory
from dstack.model.snapshot import KeptSum, ObjectSum, ObjectUse, Snapshot, StoredObject, StoredObjects
from dstack.observed.node import ObjectPlace, RayletReport
from dstack.report.memory_text import in_a_sentence, memory_json, print_memory
from dstack.report.rich_text import plain_text
from tests.unit.scenes import TAKEN_AT, Scene

MIB = 1 << 20
REF, OUTER = "ab" * 28, "cd" * 28


def full_store(*, tasks: int = 1) -> Snapshot:
    """Two actors use what a driver has put, which is an argument of its unfinished tasks, too."""
    scene = Scene()
    node = scene.node(CPU=2.0, object_store_memory=200.0 * MIB)
    scene.available[node.node_id]["object_store_memory"] = 120.0 * MIB
    driver, holders = scene.driver(node), [scene.actor("Holder", node) for _ in range(2)]
    for number in range(tasks):
        scene.task(f"train{number}", driver).becomes(state="PENDING_NODE_ASSIGNMENT")
    taken = scene.sample().snapshot()
    value = StoredObject(
        ref=REF,
        size_bytes=80 * MIB,
        owner_id=driver.worker_id,
        is_put=True,
        uses=(
            ObjectUse(worker_id=driver.worker_id, local=2, argument=tasks),
            ObjectUse(worker_id=holders[0].worker_id, is_mapped=True),
        ),
        inside=(OUTER,),
        place=ObjectPlace(node_ids=(node.node_id,), is_spilled=True),
    )
    kept = (KeptSum(worker_id=one.worker_id, objects=1, size_bytes=80 * MIB, mapped_bytes=80 * MIB) for one in holders)
    stored = StoredObjects(
        total=3,
        size_bytes=100 * MIB,
        largest=(value,),
        by_maker=(
            ObjectSum(objects=2, size_bytes=20 * MIB, maker="load"),
            ObjectSum(objects=1, size_bytes=80 * MIB, is_put=True, owner_id=driver.worker_id),
        ),
        by_process=tuple(kept),
    )
    report = RayletReport(
        node_id=node.node_id,
        written_at=TAKEN_AT,
        argument_bytes=80 * MIB,
        counts={"pending spills": 2, "bytes to spill": MIB, "queued pulls": 1},
    )
    return replace(taken, stored=stored, raylet_reports=(report,))


def memory(taken: Snapshot) -> ObjectMemory:
    return ObjectMemory(SampleIndex(taken, taken.samples[0]))


def test_makers_and_keepers_are_summed_by_function_and_class() -> None:
    found = memory(full_store())

    assert [one.words for one in found.makers] == [
        "ray.put in driver train.py: 80 MiB in 1 object",
        "load: 20 MiB in 2 objects",
    ]
    assert [one.words for one in found.keepers] == ["2 × actor Holder: 160 MiB in 2 objects, 160 MiB of it in use"]


def test_each_thing_that_keeps_a_value_is_named() -> None:
    found = memory(full_store())
    (value,) = found.stored.largest

    references, argument, used, inside = found.why_kept(value)
    assert references.startswith("2 references in driver train.py (pid ")
    assert argument.startswith("argument of train0 that driver train.py (pid ")
    assert used.startswith("value in use by actor Holder ")
    assert inside == f"inside of object {OUTER}"
    assert found.place(value) == "in memory on node 10.0.0.1 and in external storage"


def test_of_several_tasks_it_is_unknown_which_take_a_value() -> None:
    found = memory(full_store(tasks=3))

    assert "argument of 3 unfinished tasks that " in " ".join(found.why_kept(found.stored.largest[0]))


def test_a_store_has_what_its_raylet_counts() -> None:
    (store,) = memory(full_store()).nodes

    assert store.words == (
        "80 MiB used of 200 MiB; 80 MiB pinned as arguments of tasks; "
        "2 objects being spilled (1.0 MiB); 1 object waiting to be pulled"
    )


def test_the_listing_says_what_is_left_out() -> None:
    taken = full_store()

    text = plain_text(lambda console: print_memory(console, memory(taken), 20))

    assert text.startswith("100 MiB in 3 objects")
    assert f"80 MiB  ray.put in driver train.py  {REF}, in memory on node 10.0.0.1" in text
    assert "2 smaller objects not shown" in text
    document = json.loads(memory_json(taken, memory(taken)))
    assert (document["objects_total"], document["objects"][0]["ref"]) == (3, REF)
    assert document["objects"][0]["is_spilled"] is True


def test_without_values_the_stores_are_shown() -> None:
    taken = replace(full_store(), stored=None)

    text = plain_text(lambda console: print_memory(console, memory(taken), 20))

    assert "80 MiB used of 200 MiB" in text
    assert "No process reports a value" in text


def test_a_sentence_has_the_largest_keepers() -> None:
    assert in_a_sentence(memory(full_store())) == (
        "80 MiB used of 200 MiB; kept by 2 × actor Holder: 160 MiB in 2 objects, 160 MiB of it in use"
    )

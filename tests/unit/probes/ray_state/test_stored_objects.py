"""The values in the object store, joined from the replies of core workers."""

from __future__ import annotations

from dstack.model.snapshot import KeptSum, ObjectSum, ObjectUse
from dstack.observed.node import CoreWorkerReply, ObjectPlace, Ref
from dstack.probes.ray_state.stored_objects import stored_objects

MIB = 1 << 20
DRIVER, WORKER = "d" * 56, "e" * 56
TASK = "a" * 48
RESULT, PUT, SMALL = f"{TASK}01000000", f"{'0' * 40}0100000001e1f505", f"{'b' * 48}01000000"


def ref(ref_id: str, holder: str, size: int = MIB, state: str | None = None, **known: object) -> Ref:
    return Ref(ref=ref_id, holder_id=holder, size_bytes=size, state=state, **known)  # type: ignore[arg-type]


def replies() -> dict[str, CoreWorkerReply]:
    """A driver that owns a result, a put object and a small one, and a worker that uses the result."""
    owned = (
        ref(RESULT, DRIVER, state="FINISHED", local_uses=1, argument_uses=2),
        ref(PUT, DRIVER, 3 * MIB, "FINISHED", inside=(RESULT,), is_contained=True),
        ref(SMALL, DRIVER, 100, "FINISHED", local_uses=1),
    )
    used = (ref(RESULT, WORKER, local_uses=1, call_site="(deserialize task arg) train"), ref(PUT, WORKER, -1))
    place = ObjectPlace(node_ids=("1" * 56,), is_spilled=True, spilled_on="1" * 56)
    return {
        DRIVER: CoreWorkerReply(worker_id=DRIVER, refs=owned, makers={TASK: "load"}, places={RESULT: place}),
        WORKER: CoreWorkerReply(worker_id=WORKER, refs=used, mapped={RESULT: MIB}),
    }


def test_a_value_has_its_owner_maker_place_and_all_uses() -> None:
    stored = stored_objects(replies(), 10)

    assert stored is not None
    assert (stored.total, stored.size_bytes) == (2, 4 * MIB)
    put, result = stored.largest
    assert (put.ref, put.is_put, put.owner_id, put.inside, put.place) == (PUT, True, DRIVER, (RESULT,), None)
    assert [use.worker_id for use in put.uses] == [DRIVER, WORKER]
    assert (result.maker, result.is_put, result.owner_id) == ("load", False, DRIVER)
    assert result.place == ObjectPlace(node_ids=("1" * 56,), is_spilled=True, spilled_on="1" * 56)
    assert result.uses == (
        ObjectUse(worker_id=DRIVER, local=1, argument=2),
        ObjectUse(worker_id=WORKER, local=1, is_mapped=True, call_site="(deserialize task arg) train"),
    )


def test_sums_are_of_all_values_also_of_those_that_are_not_listed() -> None:
    stored = stored_objects(replies(), 1)

    assert stored is not None
    assert [one.ref for one in stored.largest] == [PUT]
    assert stored.by_maker == (
        ObjectSum(objects=1, size_bytes=3 * MIB, is_put=True, owner_id=DRIVER),
        ObjectSum(objects=1, size_bytes=MIB, maker="load"),
    )
    assert stored.by_process == (
        KeptSum(worker_id=DRIVER, objects=2, size_bytes=4 * MIB),
        KeptSum(worker_id=WORKER, objects=1, size_bytes=MIB, mapped_bytes=MIB),
    )


def test_small_values_are_in_no_object_store() -> None:
    assert stored_objects({DRIVER: CoreWorkerReply(worker_id=DRIVER, refs=(ref(SMALL, DRIVER, 100),))}, 10) is None

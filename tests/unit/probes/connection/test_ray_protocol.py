"""Every piece of Ray's protobufs that dstack reads is in its tables, and may be another one without an exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from google.protobuf import message_factory

from dstack.errors import ClusterError
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_protocol import PIECES, protocol
from dstack.probes.connection.ray_stubs import common_pb2
from dstack.probes.connection.rpc import CallFailure, UnaryCall
from dstack.probes.node.core_worker_replies import PIECES as CORE_WORKER
from dstack.probes.node.core_worker_replies import GrpcModules, is_from, observed, omission, places
from dstack.probes.node.ray_messages import NEW, Filled, Piece, Protocol, Unusable, is_repeated
from dstack.probes.node.wire import CoreWorker, Questions
from dstack.probes.ray_state import control_plane
from dstack.probes.ray_state.control_plane import Inventory, take_inventory
from dstack.probes.ray_state.task_events import failed_tasks, history_of, times_of
from tests.versions.doctored import Doctored, doctored_pool

POOL = protocol().pool
CLUSTER = Cluster("127.0.0.1:1", "2.60.0")
TEXT = "task:execute"
"""The value of every text; events of this name have a description."""
OF_AGENTS = ("InternalKVMultiGetReply", "MapFieldEntry", "GetTracebackReply")
QUESTIONS: Questions = {"metadata": [], "timeout_s": 1.0, "limit": 9, "details": True, "with_refs": True, "places": 0}
FIELDS = [
    (piece, name)
    for piece in (*PIECES, *CORE_WORKER)
    if piece.kind == "field" and not piece.owner.endswith("Request")
    for name in piece.names.split()
]


NAMED = {
    (piece.owner, name)
    for piece in (*PIECES, *CORE_WORKER)
    for names in piece.names.split()
    for name in names.partition(":")[0].split("|")
}


OWNERS = {owner for owner, _ in NAMED}


def name_of(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix("ray.rpc.")


def full(message: Any, *, sparse: bool = False) -> Any:
    """The message with a value in each field that the tables name; if it is ``sparse``, only with named messages."""
    for field in message.DESCRIPTOR.fields:
        if (name_of(message.DESCRIPTOR), field.name) not in NAMED:
            continue
        part, of = getattr(message, field.name), field.message_type
        if sparse and (of is None or of.GetOptions().map_entry or name_of(of) not in OWNERS):
            continue
        if of is not None and of.GetOptions().map_entry:
            key, value = value_of(of.fields_by_name["key"]), of.fields_by_name["value"]
            if value.message_type is None:
                part[key] = value_of(value)
            else:
                full(part[key], sparse=sparse)
        elif of is not None:
            full(part.add() if is_repeated(field) else part, sparse=sparse)
        elif is_repeated(field):
            part.append(value_of(field))
        else:
            setattr(message, field.name, value_of(field))
    return message


SIZE = 1 << 20
"""That of a value in the object store."""


def value_of(field: Any) -> Any:
    if field.type == field.TYPE_BYTES:
        return b"\x01" * 28
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    kinds: dict[int, Any] = {field.CPPTYPE_STRING: TEXT, field.CPPTYPE_BOOL: True}
    return kinds.get(field.cpp_type, SIZE)


def reply_of(method: str, pool: Any = POOL, *, sparse: bool = False) -> Any:
    """A reply with everything in it, or :func:`sparse <full>`, in the form that another Ray's descriptors give it."""
    package = "ray.rpc.autoscaler." if method == "GetClusterStatus" else "ray.rpc."
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}{method}Reply"))
    known = message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}{method}Reply"))
    return kind.FromString(full(known(), sparse=sparse).SerializeToString())


def checked(of: Protocol, reply: Any) -> Any:
    try:
        return of.checked(reply)
    except Unusable as error:
        return CallFailure(str(error), "malformed")


def inventory(monkeypatch: pytest.MonkeyPatch, of: Protocol, pool: Any = POOL, *, sparse: bool = False) -> Inventory:
    def call_all(calls: Sequence[UnaryCall], _: Any) -> list[Any]:
        return [checked(of, reply_of(call.method, pool, sparse=sparse)) for call in calls]

    monkeypatch.setattr(control_plane, "call_all", call_all)
    return take_inventory(CLUSTER, 1.0)


def inventory_or_error(monkeypatch: pytest.MonkeyPatch, of: Protocol, pool: Any = POOL) -> Inventory | str:
    try:
        return inventory(monkeypatch, of, pool)
    except ClusterError as error:
        return error.message


def core_worker(of: Protocol, pool: Any = POOL, *, sparse: bool = False) -> Any:
    reply = checked(of, reply_of("GetCoreWorkerStats", pool, sparse=sparse))
    if isinstance(reply, CallFailure):
        return reply
    modules = GrpcModules(None, common_pb2, None, None, of)
    located = checked(of, reply_of("GetObjectLocationsOwner", pool, sparse=sparse))
    worker: CoreWorker = {"worker_id": "", "ip": "", "port": 0, "pid": 0}
    return is_from(worker, reply), observed(reply, modules, QUESTIONS), places(["01" * 28], located)


def task_events(of: Protocol, pool: Any = POOL) -> Any:
    reply = checked(of, reply_of("GetTaskEvents", pool))
    if isinstance(reply, CallFailure):
        return reply
    rows = reply.events_by_task
    return history_of(reply, 1.0), failed_tasks(rows), times_of(rows)


class Recorder(Protocol):
    """Records which fields of messages are read."""

    def __init__(self) -> None:
        super().__init__((), POOL, NEW)
        self.read: set[tuple[str, str]] = set()

    def checked(self, reply: Any) -> Any:
        return Filled(self, reply, name_of(reply.DESCRIPTOR))

    def has(self, message: str, field: str) -> bool:
        self.read.add((message, field))
        return True


def test_the_tables_have_exactly_the_fields_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    for sparse in (False, True):
        inventory(monkeypatch, recorder, sparse=sparse)
        core_worker(recorder, sparse=sparse)
        omission(recorder.checked(reply_of("GetCoreWorkerStats", sparse=sparse)))
    task_events(recorder)

    assert {one for one in recorder.read if one[1] != "WhichOneof"} <= NAMED
    named = {(piece.owner, text.partition(":")[0]) for piece, text in FIELDS if piece.owner not in OF_AGENTS}
    assert {
        (of, names) for of, names in named if not {(of, name) for name in names.split("|")} & recorder.read
    } == set()


def doctored() -> Iterator[Any]:
    for piece, text in FIELDS:
        names = text.partition(":")[0]
        yield pytest.param(piece, names.partition("|")[0], id=f"{piece.owner}.{names}")


@pytest.mark.parametrize(("piece", "name"), list(doctored()))
def test_a_renamed_field_is_named_and_turns_off_what_it_feeds(
    monkeypatch: pytest.MonkeyPatch, piece: Piece, name: str
) -> None:
    pool = doctored_pool(Doctored(protobufs={f"{piece.owner}.{name}": "renamed"}))
    other = Protocol((*PIECES, *CORE_WORKER), pool, NEW)
    whole = Protocol((*PIECES, *CORE_WORKER), POOL, NEW)

    assert any(f"no field {name} of {piece.owner}" in lost.reason for lost in other.lost)
    found: list[Any] = [core_worker(other, pool), task_events(other, pool)]
    before: list[Any] = [core_worker(whole), task_events(whole)]
    found.append(inventory_or_error(monkeypatch, other, pool))
    before.append(inventory_or_error(monkeypatch, whole))
    assert found != before or not piece.is_vital
    if isinstance(found[-1], str):
        assert piece.is_vital
        assert f"no field {name} of {piece.owner}" in found[-1]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"ActorInfoGcsService.GetAllActorInfo": None}, "no method GetAllActorInfo of ActorInfoGcsService"),
        ({"TaskStatus.FINISHED": "DONE"}, "no value FINISHED of TaskStatus"),
    ],
)
def test_other_lost_pieces_are_named(names: dict[str, str | None], reason: str) -> None:
    lost = Protocol(PIECES, doctored_pool(Doctored(protobufs=names)), NEW).lost

    assert any(reason in one.reason and one.is_vital for one in lost)


def test_a_field_of_another_type_is_lost() -> None:
    piece = Piece("the nodes", "GcsNodeInfo", "node_id:text", is_vital=True)
    (lost,) = Protocol([piece], POOL, NEW).lost

    assert "no field node_id of GcsNodeInfo with the type text" in lost.reason


def test_a_new_value_is_named() -> None:
    pool = doctored_pool(Doctored(new_values={"ActorTableData.ActorState": "MIGRATING"}))

    assert [lost.reason for lost in Protocol(PIECES, pool, NEW).lost] == [
        "this Ray has the ActorTableData.ActorState MIGRATING, which dstack does not know"
    ]


def test_the_installed_ray_has_all_pieces() -> None:
    assert protocol((*PIECES, *CORE_WORKER)).lost == []


def test_what_older_rays_do_not_have_is_not_lost() -> None:
    pool = doctored_pool(Doctored(protobufs={"ActorTableData.label_selector": None}))

    assert len(Protocol(PIECES, pool, NEW).lost) == 1
    assert Protocol(PIECES, pool, (2, 46)).lost == []

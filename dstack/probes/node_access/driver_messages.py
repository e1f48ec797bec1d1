"""Requests to dstack's driver on the cluster, as JSON, and its replies, as MessagePack."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from dstack.model.snapshot import Model
from dstack.observed.node import NodeAnswer, RecordedRound
from dstack.probes.node import wire
from dstack.probes.node_access.answers import MALFORMED, MalformedAnswer, NodeFailure, unpacked, unpacked_round


class NodeParts(TypedDict):
    """What a request has of its own for each node: see :class:`dstack.probes.node.wire.NodeRequest`."""

    workers: list[wire.CoreWorker]
    targets: list[wire.Target]


class Request(TypedDict):
    """Requests a sample of these ``nodes``, by node id, until ``deadline``, a ``time.monotonic()``."""

    number: int
    is_first: bool
    nodes: dict[str, NodeParts]
    questions: wire.Questions
    options: wire.Options
    deadline: float


class Reply(Model, frozen=True):
    """One node's answer to the request with that number, as its probe has packed it, or the failure."""

    number: int
    node_id: str
    answer: bytes = b""
    failure: NodeFailure | None = None

    def result(self) -> NodeAnswer | NodeFailure:
        """The validated answer, or the failure, such as a malformed answer."""
        if self.failure is not None:
            return self.failure
        try:
            return unpacked(self.answer)
        except MalformedAnswer:
            return MALFORMED


class RecordRequest(TypedDict):
    """Requests rounds of a recording of the ``targets``, by node id, from now until ``end``, a ``time.monotonic()``.

    With ``end`` 0 the probes are only started. A further request replaces the one before: the next round of each node
    has its targets, and ends in its time.
    """

    targets: dict[str, list[wire.Target]]
    options: wire.RecordOptions
    end: float


class RoundReply(Model, frozen=True):
    """One round of one node, or why its recording has ended; no further reply of the node follows one ``is_last``.

    With neither of them the probe has started.
    """

    node_id: str
    round: bytes = b""
    failure: NodeFailure | None = None
    is_last: bool = False

    def result(self) -> RecordedRound | NodeFailure | None:
        """The validated round, the failure, or None when the probe has started."""
        if self.failure is not None or not self.round:
            return self.failure
        try:
            return unpacked_round(self.round)
        except MalformedAnswer:
            return MALFORMED


def encoded(reply: Reply | RoundReply) -> bytes:
    """A reply as it is sent."""
    return msgspec.msgpack.encode(reply)


def decoded(payload: bytes | bytearray) -> Reply:
    """A received :class:`Reply`."""
    return msgspec.msgpack.decode(payload, type=Reply)


def decoded_round(payload: bytes | bytearray) -> RoundReply:
    """A received :class:`RoundReply`."""
    return msgspec.msgpack.decode(payload, type=RoundReply)

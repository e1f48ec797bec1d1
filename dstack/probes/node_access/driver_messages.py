"""Requests to dstack's driver on the cluster, and its replies, as the driver and its parent pickle them."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from dstack.probes.node import wire
from dstack.probes.node_access.answers import NodeFailure


class NodeParts(TypedDict):
    """What a request has of its own for each node: see :class:`dstack.probes.node.wire.NodeRequest`."""

    workers: list[wire.CoreWorker]
    targets: list[wire.Target]


class SampleRequest(NamedTuple):
    """Requests a sample of these ``nodes``, by node id, until ``deadline``, a ``time.monotonic()``."""

    number: int
    is_first: bool
    nodes: dict[str, NodeParts]
    questions: wire.Questions
    options: wire.SampleOptions
    deadline: float


class Reply(NamedTuple):
    """One node's answer to the request with that number, as its probe has packed it, or the failure."""

    number: int
    node_id: str
    answer: bytes | NodeFailure


class RecordRequest(NamedTuple):
    """Requests rounds of a recording of the ``targets``, by node id, from now until ``end``, a ``time.monotonic()``.

    With ``end`` 0 the probes are only started. A further request replaces the one before: the next round of each node
    has its targets, and ends in its time.
    """

    targets: dict[str, list[wire.Target]]
    options: wire.RecordOptions
    end: float


class RoundReply(NamedTuple):
    """One round of one node, as its probe has packed it, or why its recording has ended.

    It is None when the probe has started. No further reply of the node follows one ``is_last``.
    """

    node_id: str
    round: bytes | NodeFailure | None
    is_last: bool

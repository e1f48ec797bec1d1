"""What is requested of dstack's driver on the cluster, and the answers of nodes' probes, whose bounds are checked.

The driver and its parent pickle requests and replies. A probe has packed its answer, which is decoded here only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple, TypedDict, TypeVar

import msgspec

from dstack.model.snapshot import Model, need_of
from dstack.observed.node import Cause, NodeAnswer, RecordedRound
from dstack.probes.node import wire
from dstack.probes.node.wire import encoded

MAX_ANSWER_BYTES = 512 * 2**20
"""The most that an answer may unpack to: that of a driver with 2,000,000 tasks and refs."""
_T = TypeVar("_T")


class MalformedAnswer(Exception):
    """An answer with another form than those of dstack's probes."""


class NodeFailure(Model, frozen=True):
    """Why a node has no answer; its fields are those of :class:`dstack.observed.node.Failure`."""

    reason: str
    cause: Cause = "other"
    remedy: str | None = None


MALFORMED = NodeFailure("the reply of its probe is malformed", "malformed")

_ROUND = msgspec.json.Decoder(RecordedRound)
_ANSWER = msgspec.json.Decoder(NodeAnswer, dec_hook=need_of)


def unpacked(data: bytes) -> NodeAnswer:
    """The answer that was packed on its node. Raises :class:`MalformedAnswer`."""
    return _decoded(_text(data), _ANSWER)


def unpacked_round(data: bytes) -> RecordedRound:
    """The round of a recording that was packed on its node. Raises :class:`MalformedAnswer`."""
    return _decoded(_text(data), _ROUND)


def result_of(reply: bytes | NodeFailure, unpack: Callable[[bytes], _T]) -> _T | NodeFailure:
    """What a node has sent, or the failure, such as a malformed answer."""
    if isinstance(reply, NodeFailure):
        return reply
    try:
        return unpack(reply)
    except MalformedAnswer:
        return MALFORMED


def validated(answer: NodeAnswer) -> NodeAnswer:
    """A copy of the answer of a probe of this host, as if it came from elsewhere. Raises :class:`MalformedAnswer`."""
    return _decoded(_encoded(answer), _ANSWER)


def validated_round(found: RecordedRound) -> RecordedRound:
    """As :func:`validated`, of a round of a recording."""
    return _decoded(_encoded(found), _ROUND)


def _encoded(answer: NodeAnswer | RecordedRound) -> bytes:
    try:
        return msgspec.json.encode(answer)
    except UnicodeEncodeError:  # a name that is no valid Unicode
        return encoded(answer)


def _text(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_ANSWER_BYTES)
    except zlib.error as error:
        raise MalformedAnswer from error
    if not unpacker.eof:
        raise MalformedAnswer
    return text


def _decoded(text: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswer from error


class _NodeParts(TypedDict):
    workers: list[wire.CoreWorker]
    targets: list[wire.ReadTarget]


class NodeParts(_NodeParts, total=False):
    """What a request has of its own for each node: see :class:`dstack.probes.node.wire.NodeRequest`."""

    logs: wire.LogRequest
    outlines: dict[str, str]
    dumps: wire.DumpRequest


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

    targets: dict[str, list[wire.ReadTarget]]
    options: wire.RecordOptions
    end: float


class RoundReply(NamedTuple):
    """One round of one node, as its probe has packed it, or why its recording has ended.

    It is None when the probe has started. No further reply of the node follows one ``is_last``.
    """

    node_id: str
    round: bytes | NodeFailure | None
    is_last: bool

"""Validates the answers of nodes' probes against the wire's types."""

from __future__ import annotations

import zlib
from functools import cache
from typing import TypeVar

import msgspec

from dstack.model import Model, need_of
from dstack.observed_node import Cause
from dstack.probes.node import wire

MAX_ANSWER_BYTES = 512 * 2**20
"""The most that an answer may unpack to: that of a driver with 2,000,000 tasks and refs."""
_T = TypeVar("_T")


class MalformedAnswer(Exception):
    """An answer with another form than those of dstack's probes."""


class NodeFailure(Model, frozen=True):
    """Why a node has no answer; its fields are those of :class:`dstack.observed_node.Failure`."""

    reason: str
    cause: Cause = "other"
    remedy: str | None = None


MALFORMED = NodeFailure("the reply of its probe is malformed", "malformed")


# Decoders are made when they are first needed: dstack's driver needs none, and msgspec marks the classes that it may
# decode. Marked classes cannot be sent to nodes by value (msgspec 0.20).


@cache
def _answers() -> msgspec.json.Decoder[wire.Answer]:
    return msgspec.json.Decoder(wire.Answer, dec_hook=need_of)


@cache
def _rounds() -> msgspec.json.Decoder[wire.RecordedRound]:
    return msgspec.json.Decoder(wire.RecordedRound)


def unpacked(data: bytes) -> wire.Answer:
    """Validates an answer that was packed on its node. Raises :class:`MalformedAnswer`."""
    return _unpacked(data, _answers())


def unpacked_round(data: bytes) -> wire.RecordedRound:
    """Validates a round of a recording that was packed on its node. Raises :class:`MalformedAnswer`."""
    return _unpacked(data, _rounds())


def _unpacked(data: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_ANSWER_BYTES)
        if not unpacker.eof:
            raise MalformedAnswer
        return decoder.decode(text)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswer from error


def validated(answer: object) -> wire.Answer:
    """Validates and copies the answer of a probe of this host. Raises :class:`MalformedAnswer`."""
    try:
        return msgspec.convert(answer, wire.Answer, dec_hook=need_of)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedAnswer from error


def validated_round(answer: object) -> wire.RecordedRound:
    """Validates and copies a round that a probe of this host has recorded. Raises :class:`MalformedAnswer`."""
    try:
        return msgspec.convert(answer, wire.RecordedRound)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedAnswer from error

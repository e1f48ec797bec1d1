"""Validates the answers of nodes' probes against the wire's types."""

from __future__ import annotations

import msgspec

from dstack.model import Cause, Model
from dstack.probes.node import wire


class MalformedAnswer(Exception):
    """An answer with another form than those of dstack's probes."""


class NodeFailure(Model, frozen=True):
    """Why a node has no answer; its fields are those of :class:`dstack.model.Failure`."""

    reason: str
    cause: Cause = "other"
    remedy: str | None = None


MALFORMED = NodeFailure("the reply of its probe is malformed", "malformed")

_ROUND = msgspec.json.Decoder(wire.RecordedRound)
_ANSWER = msgspec.json.Decoder(wire.Answer)


def decoded(data: bytes | msgspec.Raw) -> wire.Answer:
    """Validates an answer in JSON, in which keys are strings. Raises :class:`MalformedAnswer`."""
    try:
        return _ANSWER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswer from error


def validated(answer: object) -> wire.Answer:
    """Validates and copies the answer of a probe of this host. Raises :class:`MalformedAnswer`."""
    try:
        return msgspec.convert(answer, wire.Answer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedAnswer from error


def decoded_round(data: bytes | msgspec.Raw) -> wire.RecordedRound:
    """Validates a round of a recording in JSON. Raises :class:`MalformedAnswer`."""
    try:
        return _ROUND.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswer from error


def validated_round(answer: object) -> wire.RecordedRound:
    """Validates and copies a round that a probe of this host has recorded. Raises :class:`MalformedAnswer`."""
    try:
        return msgspec.convert(answer, wire.RecordedRound)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedAnswer from error
